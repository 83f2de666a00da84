#include "schedules/structure.h"

#include <fmt/format.h>

#include <algorithm>

#include "schedules/names.h"

namespace foreshard {
namespace {

/// Of a tensor that may have been refused: negative sizes count as none, more than any buffer holds
/// as that.
std::int64_t elements_of(const Tensor& t) {
  __int128 n = 1;
  for (int d = 0; d < t.rank; ++d)
    n = std::min<__int128>(n * std::max<std::int64_t>(t.shape[static_cast<std::size_t>(d)], 0),
                           kLargestBuffer);
  return static_cast<std::int64_t>(n);
}

/// Checks one program. Every `check_*` reports at most until the issue list is full.
class ProgramChecker {
 public:
  ProgramChecker(const Schedule& schedule, std::size_t index, IssueList& issues)
      : schedule_(schedule),
        p_(schedule.programs[index]),
        path_(fmt::format("programs[{}]", index)),
        issues_(issues) {}

  void run() {
    check_tables();
    for (std::size_t i = 0; i < p_.buffers.size() && open(); ++i) check_buffer(i);
    for (std::size_t i = 0; i < p_.tensors.size() && open(); ++i) check_tensor(i);
    for (std::size_t i = 0; i < p_.launches.size() && open(); ++i) check_launch(i);
    for (std::size_t i = 0; i < p_.collectives.size() && open(); ++i) check_collective(i);
    for (std::size_t i = 0; i < p_.copies.size() && open(); ++i) check_copy(i);
    for (std::size_t i = 0; i < p_.host_work.size() && open(); ++i) check_host_work(i);
    for (std::size_t i = 0; i < p_.marks.size() && open(); ++i) check_mark(i);
    for (std::size_t i = 0; i < p_.parameters.size() && open(); ++i) check_parameter(i);
    for (std::size_t i = 0; i < p_.instructions.size() && open(); ++i) check_instruction(i);
    if (open()) check_segments();
  }

 private:
  bool open() const { return issues_.issues().size() < kMostIssues; }
  void report(std::string_view table, std::size_t i, std::string message) {
    issues_.add(fmt::format("{}.{}[{}]", path_, table, i), std::move(message));
  }

  /// True if `index` points into a table of `size`; `none_allowed` lets UINT32_MAX through. Asked
  /// for every index of a program: what reports is a function of its own.
  bool check_index(std::string_view table, std::size_t i, std::string_view what,
                   std::uint32_t index, std::size_t size, bool none_allowed = false) {
    if (index < size || (none_allowed && index == UINT32_MAX)) return true;
    report_index(table, i, what, index, size);
    return false;
  }
  [[gnu::noinline]] void report_index(std::string_view table, std::size_t i, std::string_view what,
                                      std::uint32_t index, std::size_t size) {
    report(table, i,
           index == UINT32_MAX
               ? fmt::format("{} is missing", what)
               : fmt::format("{} {} does not exist (there are {})", what, index, size));
  }
  void check_stream(std::string_view table, std::size_t i, StreamIndex s) {
    check_index(table, i, "stream", s, p_.streams.size());
  }

  void check_tables() {
    if (p_.streams.empty()) issues_.add(path_ + ".streams", "a program needs at least one stream");
    if (p_.streams.size() > kMostStreams)
      issues_.add(path_ + ".streams",
                  fmt::format("{} streams; at most {}", p_.streams.size(), kMostStreams));
    if (p_.names.empty() || !p_.names[0].empty())
      issues_.add(path_ + ".names", "the first name must be \"\"");
  }

  void check_buffer(std::size_t i) {
    const Buffer& b = p_.buffers[i];
    if (b.bytes.value < 0 || b.bytes.value > kLargestBuffer)
      report("buffers", i,
             fmt::format("{} bytes; allowed are 0 to {}", b.bytes.value, kLargestBuffer));
    check_stream("buffers", i, b.pool);
    check_index("buffers", i, "unit", b.unit.value, p_.units.size(), true);
    check_index("buffers", i, "scope", b.scope.value, p_.scopes.size(), true);
    check_index("buffers", i, "name", b.name, p_.names.size());
  }

  void check_tensor(std::size_t i) {
    const Tensor& t = p_.tensors[i];
    const bool none =
        std::find(t.shape.begin(), t.shape.begin() + t.rank, 0) != t.shape.begin() + t.rank;
    if (!check_index("tensors", i, "buffer", t.buffer.value, p_.buffers.size(), none)) return;
    if (!check_index("tensors", i, "group", t.group.value, schedule_.groups.size(), true)) return;
    if (t.offset_per_rank != 0 && !t.group.valid())
      return report("tensors", i, "offset_per_rank without a group");
    if (t.offset < 0 || t.offset_per_rank < 0) return report("tensors", i, "negative offset");
    const std::int64_t ranks = t.group.valid() ? schedule_.groups[t.group.value].size - 1 : 0;
    __int128 end =
        static_cast<__int128>(t.offset) + static_cast<__int128>(t.offset_per_rank) * ranks;
    bool empty = false;
    __int128 last = 0, numel = 1;
    for (int d = 0; d < t.rank; ++d) {
      if (t.shape[d] < 0 || t.stride[d] < 0)
        return report("tensors", i, "negative shape or stride");
      if (t.shape[d] == 0)
        empty = true;
      else
        last += static_cast<__int128>(t.shape[d] - 1) * t.stride[d];
      numel *= t.shape[d];
      if (last > kLargestBuffer || numel > kLargestBuffer)
        return report("tensors", i, "shape is too large");
    }
    if (!t.buffer.valid()) return;
    if (!empty) end += (last + 1) * size_of(t.dtype);
    if (end > p_.buffers[t.buffer.value].bytes.value)
      report(
          "tensors", i,
          fmt::format("reaches byte {} of buffer {}, which has {}", static_cast<std::int64_t>(end),
                      t.buffer.value, p_.buffers[t.buffer.value].bytes.value));
  }

  void check_launch(std::size_t i) {
    const Launch& l = p_.launches[i];
    check_stream("launches", i, l.stream);
    check_index("launches", i, "scope", l.scope.value, p_.scopes.size(), true);
    if (has_tensors(p_) &&
        std::uint64_t{l.first_operand} + l.inputs + l.outputs > p_.operands.size())
      return report("launches", i, "operands lie outside the operand table");
    if ((has_tensors(p_) || !p_.attributes.empty()) &&
        std::uint64_t{l.first_attribute} + l.attributes > p_.attributes.size())
      return report("launches", i, "attributes lie outside the attribute table");
    for (std::uint32_t o = 0; has_tensors(p_) && o < std::uint32_t{l.inputs} + l.outputs && open();
         ++o)
      check_index("launches", i, "operand tensor", p_.operands[l.first_operand + o].value,
                  p_.tensors.size(), true);
    if (l.flops.value < 0 || l.read.value < 0 || l.written.value < 0)
      report("launches", i, "negative flops or bytes");
  }

  void check_collective(std::size_t i) {
    const Collective& c = p_.collectives[i];
    check_stream("collectives", i, c.stream);
    check_index("collectives", i, "unit", c.unit.value, p_.units.size(), true);
    check_index("collectives", i, "input tensor", c.input.value, p_.tensors.size(), true);
    check_index("collectives", i, "output tensor", c.output.value, p_.tensors.size(), true);
    if (c.bytes.value < 0 || c.bytes.value > kLargestBuffer)
      report("collectives", i, "impossible number of bytes");
    if (c.launched_together.value != 0 && c.launched_together < c.bytes)
      report("collectives", i, "more bytes than are launched together with it");
    if (!check_index("collectives", i, "group", c.group.value, schedule_.groups.size())) return;
    if (c.root < 0 || c.root >= schedule_.groups[c.group.value].size)
      report("collectives", i, "root outside the group");
    if (c.input.value < p_.tensors.size() && c.output.value < p_.tensors.size()) check_moved(i);
  }

  /// Its tensors say what it moves.
  void check_moved(std::size_t i) {
    const Collective& c = p_.collectives[i];
    const Tensor &in = p_.tensors[c.input.value], &out = p_.tensors[c.output.value];
    const auto bytes = [](const Tensor& t) { return elements_of(t) * size_of(t.dtype); };
    const std::int64_t ranks = schedule_.groups[c.group.value].size;
    const bool gathers = c.kind == CollectiveKind::kAllGather,
               scatters = c.kind == CollectiveKind::kReduceScatter;
    if (in.dtype != out.dtype || size_of(c.dtype) != size_of(in.dtype) ||
        (c.op != ReduceOp::kNone && c.dtype != in.dtype))
      return report("collectives", i,
                    fmt::format("is of {}, its tensors are {} and {}", name_of(c.dtype),
                                name_of(in.dtype), name_of(out.dtype)));
    const __int128 made = __int128{bytes(out)} * (scatters ? ranks : 1),
                   taken = __int128{bytes(in)} * (gathers ? ranks : 1);
    if (made != taken)
      return report("collectives", i,
                    fmt::format("{} of {} ranks from {} to {} bytes", name_of(c.kind), ranks,
                                bytes(in), bytes(out)));
    if (c.bytes.value != std::max(bytes(in), bytes(out)))
      report("collectives", i,
             fmt::format("says {} bytes, its tensors have {}", c.bytes.value,
                         std::max(bytes(in), bytes(out))));
  }

  void check_copy(std::size_t i) {
    const Copy& c = p_.copies[i];
    check_stream("copies", i, c.stream);
    check_index("copies", i, "source tensor", c.source.value, p_.tensors.size(), true);
    check_index("copies", i, "destination tensor", c.destination.value, p_.tensors.size(), true);
    if (c.bytes.value < 0 || c.bytes.value > kLargestBuffer)
      report("copies", i, "impossible number of bytes");
    if (c.input < -1 || c.input >= static_cast<std::int64_t>(p_.inputs.size()))
      report("copies", i, "input does not exist");
  }

  void check_host_work(std::size_t i) {
    if (p_.host_work[i].reference_ns < 0) report("host_work", i, "negative time");
    check_index("host_work", i, "name", p_.host_work[i].name, p_.names.size());
  }

  void check_mark(std::size_t i) {
    const Mark& m = p_.marks[i];
    check_index("marks", i, "scope", m.scope.value, p_.scopes.size(), true);
    check_index("marks", i, "unit", m.unit.value, p_.units.size(), true);
    check_index("marks", i, "name", m.name, p_.names.size());
  }

  void check_parameter(std::size_t i) {
    const ParameterView& v = p_.parameters[i];
    check_index("parameters", i, "local tensor", v.local.value, p_.tensors.size(), true);
    check_index("parameters", i, "group", v.group.value, schedule_.groups.size(), true);
    if (v.elements < 0 || v.first_element < 0 || v.first_element_per_rank < 0)
      return report("parameters", i, "negative number of elements");
    if (v.local.valid() && open() && v.local.value < p_.tensors.size() &&
        elements_of(p_.tensors[v.local.value]) < v.elements)
      report("parameters", i,
             fmt::format("{} elements in a view of {}", v.elements,
                         elements_of(p_.tensors[v.local.value])));
  }

  void check_instruction(std::size_t i) {
    const Instruction& n = p_.instructions[i];
    using K = InstructionKind;
    switch (n.kind) {
      case K::kAlloc:
      case K::kFree:
        check_index("instructions", i, "buffer", n.id, p_.buffers.size());
        break;
      case K::kRecordStream:
        check_index("instructions", i, "buffer", n.id, p_.buffers.size());
        check_stream("instructions", i, n.stream);
        break;
      case K::kLaunch:
        check_index("instructions", i, "launch", n.id, p_.launches.size());
        break;
      case K::kCollective:
        check_index("instructions", i, "collective", n.id, p_.collectives.size());
        break;
      case K::kCopy:
        check_index("instructions", i, "copy", n.id, p_.copies.size());
        break;
      case K::kRecordEvent:
      case K::kWaitEvent:
        check_index("instructions", i, "event", n.id, p_.events);
        check_stream("instructions", i, n.stream);
        break;
      case K::kSyncEvent:
        check_index("instructions", i, "event", n.id, p_.events);
        break;
      case K::kSyncStream:
        check_stream("instructions", i, n.stream);
        break;
      case K::kSyncDevice:
        break;
      case K::kHost:
        check_index("instructions", i, "host work", n.id, p_.host_work.size());
        break;
      case K::kMark:
        check_index("instructions", i, "mark", n.id, p_.marks.size());
        break;
    }
  }

  void check_segments() {
    const auto size = static_cast<std::uint32_t>(p_.instructions.size());
    if (p_.init.begin > p_.init.end || p_.init.end > size)
      issues_.add(path_ + ".init", "lies outside the instructions");
    std::uint32_t at = p_.init.end;
    for (std::size_t i = 0; i < p_.steps.size() && open(); ++i) {
      const Segment s = p_.steps[i];
      if (s.begin < at || s.begin > s.end || s.end > size)
        report("steps", i, "steps must follow each other inside the instructions");
      at = s.end;
    }
    for (std::size_t i = 0; i < p_.carries.size() && open(); ++i) {
      check_index("carries", i, "buffer", p_.carries[i].before.value, p_.buffers.size());
      check_index("carries", i, "buffer", p_.carries[i].now.value, p_.buffers.size());
    }
  }

  const Schedule& schedule_;
  const RankProgram& p_;
  std::string path_;
  IssueList& issues_;
};

void check_groups(const Schedule& s, IssueList& issues) {
  for (std::size_t i = 0; i < s.groups.size() && issues.issues().size() < kMostIssues; ++i) {
    const Group& g = s.groups[i];
    const std::string path = fmt::format("groups[{}]", i);
    if (g.size < 1 || g.stride < 1 || g.size > kLargestWorld || g.stride > kLargestWorld) {
      issues.add(path, fmt::format("size {} and stride {} must be between 1 and {}", g.size,
                                   g.stride, kLargestWorld));
    } else if (g.size * g.stride > s.world || s.world % (g.size * g.stride) != 0) {
      issues.add(path, fmt::format("size {} x stride {} does not divide the world of {}", g.size,
                                   g.stride, s.world));
    }
  }
}

}  // namespace

void check_structure(const Schedule& s, IssueList& issues) {
  if (s.world < 1 || s.world > kLargestWorld) {
    issues.add("world", fmt::format("{} ranks; allowed are 1 to {}", s.world, kLargestWorld));
    return;
  }
  if (s.programs.empty()) issues.add("programs", "a schedule needs at least one program");
  if (s.program_of_rank.size() != 1 &&
      s.program_of_rank.size() != static_cast<std::size_t>(s.world))
    issues.add("program_of_rank",
               fmt::format("has {} entries; needs 1 or {}", s.program_of_rank.size(), s.world));
  for (std::size_t i = 0; i < s.program_of_rank.size() && issues.issues().size() < kMostIssues;
       ++i) {
    if (s.program_of_rank[i] >= s.programs.size())
      issues.add(fmt::format("program_of_rank[{}]", i),
                 fmt::format("program {} does not exist", s.program_of_rank[i]));
  }
  if (s.tokens_per_step < 0) issues.add("tokens_per_step", "is negative");
  if (!(s.model_flops_per_step >= 0)) issues.add("model_flops_per_step", "is negative");
  check_groups(s, issues);
  if (!issues.empty()) return;
  for (std::size_t i = 0; i < s.programs.size(); ++i) ProgramChecker(s, i, issues).run();
}

}  // namespace foreshard
