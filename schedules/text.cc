#include "schedules/text.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/format.h"
#include "core/op_kind.h"
#include "schedules/names.h"
#include "schedules/structure.h"

namespace foreshard {
namespace {

std::string or_root(const std::string& scope) { return scope.empty() ? "root" : scope; }

std::string shape_text(const RankProgram& p, TensorId id) {
  if (!id.valid()) return "-";
  const Tensor& t = p.tensors[id.value];
  std::string out = fmt::format("b{}[", t.buffer.value);
  for (int d = 0; d < t.rank; ++d) out += fmt::format("{}{}", d ? "x" : "", t.shape[d]);
  return out + "]";
}

std::string operands_text(const RankProgram& p, const Launch& l) {
  std::string out;
  constexpr std::uint32_t kMost = 4;
  const auto list = [&](std::uint32_t first, std::uint32_t count) {
    for (std::uint32_t i = 0; i < std::min(count, kMost); ++i)
      out += (i ? ", " : "") + shape_text(p, p.operands[first + i]);
    if (count > kMost) out += fmt::format(", ... {} in all", count);
  };
  if (l.inputs + l.outputs == 0 || !has_tensors(p)) return out;
  out = "  ";
  list(l.first_operand, l.inputs);
  out += " -> ";
  list(l.first_operand + l.inputs, l.outputs);
  return out;
}

std::string launch_text(const RankProgram& p, const Launch& l) {
  std::string out(name_of(l.op));
  if (l.scope.valid()) out += " " + or_root(p.scopes[l.scope.value]);
  if (l.kernels != 1) out += fmt::format(" ({} kernels)", l.kernels);
  out += operands_text(p, l);
  if (l.flops.value > 0)
    out += fmt::format("  {}FLOP", format_count(static_cast<double>(l.flops.value)));
  if (l.read.value + l.written.value > 0) out += "  " + format_bytes_decimal(l.read + l.written);
  return out;
}

std::string collective_text(const RankProgram& p, const std::vector<Group>& groups,
                            const Collective& c) {
  std::string out(name_of(c.kind));
  if (c.unit.valid()) out += " " + or_root(p.units[c.unit.value].name);
  const Group& g = groups[c.group.value];
  out += fmt::format("  {} {} over {}({})", format_bytes_decimal(c.bytes), name_of(c.dtype), g.name,
                     g.size);
  if (c.op != ReduceOp::kNone) out += fmt::format(" {}", name_of(c.op));
  if (c.launched_together.value > 0)
    out += fmt::format(", one of {} together", format_bytes_decimal(c.launched_together));
  return out;
}

std::string mark_text(const RankProgram& p, const Mark& m) {
  std::string out(name_of(m.kind));
  if (m.kind == MarkKind::kPhase) out = name_of(m.phase);
  if (m.kind == MarkKind::kStep || m.kind == MarkKind::kMicroBatch)
    out += fmt::format(" {}", m.number);
  if (m.kind == MarkKind::kUnitAction) out = p.names[m.name];
  if (m.kind == MarkKind::kModule || m.kind == MarkKind::kRecompute)
    out = (m.kind == MarkKind::kRecompute ? "recompute " : "") +
          (m.scope.valid() ? or_root(p.scopes[m.scope.value]) : "?");
  if (m.kind == MarkKind::kUnitAction && m.unit.valid())
    out += " " + or_root(p.units[m.unit.value].name);
  return out;
}

std::string names_of_streams(const RankProgram& p) {
  std::string out;
  for (std::size_t i = 0; i < p.streams.size(); ++i)
    out += fmt::format("{}{} {}", i ? " · " : "", i, p.streams[i].name);
  return out;
}

bool same_units(const RankProgram& a, const RankProgram& b) {
  return std::equal(a.units.begin(), a.units.end(), b.units.begin(), b.units.end(),
                    [](const ShardUnit& x, const ShardUnit& y) {
                      return x.name == y.name && x.numel == y.numel &&
                             x.padded_numel == y.padded_numel && x.shard_numel == y.shard_numel;
                    });
}

std::string bytes_or_dash(std::int64_t n) { return n == 0 ? "-" : with_thousands(n); }

std::string sizes_text(const RankProgram& p) {
  return fmt::format("{} instructions, {} buffers, {} steps written out; streams {}",
                     with_thousands(static_cast<std::int64_t>(p.instructions.size())),
                     with_thousands(static_cast<std::int64_t>(p.buffers.size())), p.steps.size(),
                     names_of_streams(p));
}

std::string units_text(const RankProgram& p) {
  if (p.units.empty()) return "";
  std::string out = fmt::format("  {:<40} {:>16} {:>16} {:>14}  {}\n", "unit", "elements", "padded",
                                "on each rank", "gather / reduce");
  for (const ShardUnit& u : p.units)
    out += fmt::format("  {:<40} {:>16} {:>16} {:>14}  {} / {}\n", or_root(u.name),
                       with_thousands(u.numel.value), bytes_or_dash(u.padded_numel.value),
                       bytes_or_dash(u.shard_numel.value), name_of(u.gather_dtype),
                       name_of(u.reduce_dtype));
  return out;
}

}  // namespace

std::string describe_buffer(const RankProgram& p, BufferId id) {
  const Buffer& b = p.buffers[id.value];
  std::string owner;
  if (b.unit.valid())
    owner = ", " + or_root(p.units[b.unit.value].name);
  else if (b.scope.valid())
    owner = ", " + or_root(p.scopes[b.scope.value]);
  if (b.name != 0) owner += ", " + p.names[b.name];
  return fmt::format("b{} ({}{}, {})", id.value, name_of(b.category), owner,
                     format_memory(b.bytes));
}

std::string title_of(const RankProgram& p, const Instruction& i) {
  using K = InstructionKind;
  switch (i.kind) {
    case K::kLaunch: {
      const Launch& l = p.launches[i.id];
      std::string out(name_of(l.op));
      if (l.scope.valid() && !p.scopes[l.scope.value].empty()) out += " " + p.scopes[l.scope.value];
      return out;
    }
    case K::kCollective: {
      const Collective& c = p.collectives[i.id];
      std::string out(name_of(c.kind));
      if (c.unit.valid()) out += " " + or_root(p.units[c.unit.value].name);
      return out;
    }
    case K::kCopy:
      return "copy " + std::string(name_of(p.copies[i.id].direction));
    case K::kHost:
      return p.names[p.host_work[i.id].name];
    case K::kMark:
      return mark_text(p, p.marks[i.id]);
    default:
      return std::string(name_of(i.kind));
  }
}

std::string describe_instruction(const RankProgram& p, const std::vector<Group>& groups,
                                 const Instruction& i) {
  using K = InstructionKind;
  const auto on = [&](StreamIndex s) { return fmt::format("[{}]", p.streams[s].name); };
  switch (i.kind) {
    case K::kAlloc:
      return "alloc  " + describe_buffer(p, BufferId(i.id));
    case K::kFree:
      return "free   " + describe_buffer(p, BufferId(i.id));
    case K::kRecordStream:
      return fmt::format("record_stream  b{} used by {}", i.id, on(i.stream));
    case K::kLaunch:
      return on(p.launches[i.id].stream) + " " + launch_text(p, p.launches[i.id]);
    case K::kCollective:
      return on(p.collectives[i.id].stream) + " " + collective_text(p, groups, p.collectives[i.id]);
    case K::kCopy: {
      const Copy& c = p.copies[i.id];
      return fmt::format("{} copy {}  {} -> {}  {}{}", on(c.stream), name_of(c.direction),
                         shape_text(p, c.source), shape_text(p, c.destination),
                         format_bytes_decimal(c.bytes), c.blocks_host ? "  host waits" : "");
    }
    case K::kRecordEvent:
      return fmt::format("{} record event {}", on(i.stream), i.id);
    case K::kWaitEvent:
      return fmt::format("{} wait for event {}", on(i.stream), i.id);
    case K::kSyncEvent:
      return fmt::format("host waits for event {}", i.id);
    case K::kSyncStream:
      return fmt::format("host waits for {}", on(i.stream));
    case K::kSyncDevice:
      return "host waits for the device";
    case K::kHost:
      return fmt::format("host work {} {}", p.names[p.host_work[i.id].name],
                         format_time(nanoseconds(p.host_work[i.id].reference_ns)));
    case K::kMark:
      return fmt::format("{} {}", p.marks[i.id].begin ? "begin" : "end",
                         mark_text(p, p.marks[i.id]));
  }
  return "?";
}

std::string describe_schedule(const Schedule& s) {
  std::string out = fmt::format("{}\n{}\n", s.model, s.description);
  out += fmt::format("{} rank{}, {} program{}", s.world, s.world == 1 ? "" : "s", s.programs.size(),
                     s.programs.size() == 1 ? "" : "s");
  for (const Group& g : s.groups)
    out += fmt::format(" · group {}: {} ranks, stride {}", g.name, g.size, g.stride);
  out += "\n";
  for (std::size_t i = 0; i < s.programs.size();) {
    const std::string sizes = sizes_text(s.programs[i]);
    std::size_t last = i;
    while (last + 1 < s.programs.size() && sizes_text(s.programs[last + 1]) == sizes &&
           same_units(s.programs[last + 1], s.programs[i]))
      ++last;
    out += last == i ? fmt::format("program {}: {}\n", i, sizes)
                     : fmt::format("programs {} to {}, each: {}\n", i, last, sizes);
    if (i == 0 || !same_units(s.programs[i], s.programs[0])) out += units_text(s.programs[i]);
    i = last + 1;
  }
  for (const std::string& n : s.not_modelled) out += "not modelled: " + n + "\n";
  for (const std::string& n : s.remarks) out += "note: " + n + "\n";
  return out;
}

std::string describe_step(const Schedule& s, const ShowOptions& options) {
  const RankProgram& p = s.programs.at(options.program);
  if (p.steps.empty()) return "";
  const Segment segment =
      p.steps[std::min(options.step.value_or(p.steps.size() - 1), p.steps.size() - 1)];
  std::string out;
  std::size_t depth = 0;
  for (std::uint32_t at = segment.begin; at < segment.end; ++at) {
    const Instruction& i = p.instructions[at];
    const bool memory = i.kind == InstructionKind::kAlloc || i.kind == InstructionKind::kFree ||
                        i.kind == InstructionKind::kRecordStream;
    if (memory && !options.memory) continue;
    if (i.kind == InstructionKind::kMark) {
      if (!options.marks) continue;
      const Mark& m = p.marks[i.id];
      if (!m.begin) {
        depth -= depth > 0 ? 1 : 0;
        continue;
      }
      out += fmt::format("{:>7}  {:{}}{}\n", "", "", 2 * depth, mark_text(p, m));
      ++depth;
      continue;
    }
    out += fmt::format("{:>7}  {:{}}{}\n", at, "", 2 * depth, describe_instruction(p, s.groups, i));
  }
  return out;
}

}  // namespace foreshard
