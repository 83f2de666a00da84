#include "sim/prepare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>

#include "core/error.h"

namespace foreshard::sim {
namespace {

constexpr std::uint32_t kMaxStreams = 64;
constexpr int kMaxIssues = 20;
/// No size, count or amount of work of a real job comes near (an exabyte); below it sums stay in
/// range.
constexpr std::int64_t kMost = std::int64_t{1} << 60;
constexpr std::int64_t kLongestHostWork = 86'400'000'000'000;  // ns
bool absurd(std::int64_t n) { return n < 0 || n > kMost; }

std::string place(std::uint32_t program, std::string_view table, std::size_t index) {
  return "programs[" + std::to_string(program) + "]." + std::string(table) + "[" +
         std::to_string(index) + "]";
}

class ProgramCheck {
 public:
  ProgramCheck(const Schedule& schedule, std::uint32_t index)
      : program_(schedule.programs[index]), index_(index), issues_("schedule") {}

  void run() {
    const std::size_t streams = program_.streams.size();
    if (streams < 1 || streams > kMaxStreams) {
      issues_.add(place(index_, "streams", 0), "has " + std::to_string(streams) + " streams",
                  "1 to 64");
      issues_.throw_if_any();
    }
    check_tables();
    check_segments();
    check_instructions();
    issues_.throw_if_any();
  }

 private:
  static constexpr auto kKinds = static_cast<std::size_t>(InstructionKind::kMark) + 1;

  void add(std::string_view table, std::size_t i, std::string message) {
    ++count_;
    issues_.add(place(index_, table, i), std::move(message));
  }

  void check_tables() {
    for (std::size_t i = 0; i < program_.launches.size() && count_ < kMaxIssues; ++i) {
      const Launch& l = program_.launches[i];
      if (l.stream >= program_.streams.size())
        add("launches", i, "runs on a stream that does not exist");
      if (absurd(l.flops.value) || absurd(l.read.value) || absurd(l.written.value)) {
        add("launches", i, "has negative or impossibly large work");
      }
      if (!program_.attributes.empty() &&  // absent from schedules that are only simulated
          std::uint64_t{l.first_attribute} + l.attributes > program_.attributes.size()) {
        add("launches", i, "has attributes outside the table");
      }
      if (!program_.operands.empty() &&
          std::uint64_t{l.first_operand} + l.inputs + l.outputs > program_.operands.size()) {
        add("launches", i, "has operands outside the table");
      }
    }
    for (std::size_t i = 0; i < program_.collectives.size() && count_ < kMaxIssues; ++i) {
      const Collective& c = program_.collectives[i];
      if (c.stream >= program_.streams.size())
        add("collectives", i, "runs on a stream that does not exist");
      if (absurd(c.bytes.value)) add("collectives", i, "has negative or impossibly many bytes");
    }
    for (std::size_t i = 0; i < program_.copies.size() && count_ < kMaxIssues; ++i) {
      const Copy& c = program_.copies[i];
      if (c.stream >= program_.streams.size())
        add("copies", i, "runs on a stream that does not exist");
      if (absurd(c.bytes.value)) add("copies", i, "has negative or impossibly many bytes");
    }
    for (std::size_t i = 0; i < program_.buffers.size() && count_ < kMaxIssues; ++i) {
      const Buffer& b = program_.buffers[i];
      if (b.pool >= program_.streams.size())
        add("buffers", i, "belongs to the pool of a stream that does not exist");
      if (absurd(b.bytes.value)) add("buffers", i, "has a negative or impossibly large size");
    }
    for (std::size_t i = 0; i < program_.host_work.size() && count_ < kMaxIssues; ++i) {
      if (program_.host_work[i].reference_ns < 0 ||
          program_.host_work[i].reference_ns > kLongestHostWork) {
        add("host_work", i, "has negative time, or more than a day");
      }
    }
  }

  void check_segments() {
    const std::size_t n = program_.instructions.size();
    const auto check = [&](const Segment& s, std::string_view table, std::size_t i) {
      if (s.begin > s.end || s.end > n) add(table, i, "is not a range of instructions");
    };
    check(program_.init, "init", 0);
    for (std::size_t i = 0; i < program_.steps.size(); ++i) check(program_.steps[i], "steps", i);
    for (std::size_t i = 0; i < program_.carries.size() && count_ < kMaxIssues; ++i) {
      const Carry& c = program_.carries[i];
      if (c.before.value >= program_.buffers.size() || c.now.value >= program_.buffers.size()) {
        add("carries", i, "names a buffer that does not exist");
      }
    }
  }

  void check_instructions() {
    std::array<std::uint64_t, kKinds> limit{};
    for (std::size_t k = 0; k < kKinds; ++k) limit[k] = table_size(static_cast<InstructionKind>(k));
    const std::size_t streams = program_.streams.size();
    for (std::size_t i = 0; i < program_.instructions.size() && count_ < kMaxIssues; ++i) {
      const Instruction& in = program_.instructions[i];
      const std::uint64_t most = limit[static_cast<std::size_t>(in.kind)];
      if (in.id >= most) {
        add("instructions", i,
            "id " + std::to_string(in.id) + " is outside its table of " + std::to_string(most));
      }
      if (in.stream >= streams && uses_stream(in.kind))
        add("instructions", i, "uses a stream that does not exist");
    }
  }

  static bool uses_stream(InstructionKind kind) {
    return kind == InstructionKind::kRecordStream || kind == InstructionKind::kRecordEvent ||
           kind == InstructionKind::kWaitEvent || kind == InstructionKind::kSyncStream;
  }

  std::uint64_t table_size(InstructionKind kind) const {
    switch (kind) {
      case InstructionKind::kAlloc:
      case InstructionKind::kFree:
      case InstructionKind::kRecordStream:
        return program_.buffers.size();
      case InstructionKind::kLaunch:
        return program_.launches.size();
      case InstructionKind::kCollective:
        return program_.collectives.size();
      case InstructionKind::kCopy:
        return program_.copies.size();
      case InstructionKind::kRecordEvent:
      case InstructionKind::kWaitEvent:
      case InstructionKind::kSyncEvent:
        return program_.events;
      case InstructionKind::kHost:
        return program_.host_work.size();
      case InstructionKind::kMark:
        return program_.marks.size();
      case InstructionKind::kSyncStream:
      case InstructionKind::kSyncDevice:
        return UINT64_MAX;
    }
    return 0;
  }

  const RankProgram& program_;
  std::uint32_t index_;
  IssueList issues_;
  int count_ = 0;
};

void require_time(Time t, std::string_view what) {
  if (t.value < 0) throw InternalError("cost model gives a negative time for " + std::string(what));
}

CollectiveTable collective_table(const RankProgram& program, const ProgramShapes& shapes,
                                 std::uint32_t rank_class, const Layout& layout, std::size_t groups,
                                 const CostModel& cost) {
  CollectiveTable distinct;
  for (const std::uint32_t i : shapes.collectives) {
    const Collective& collective = program.collectives[i];
    const Communicator& communicator =
        layout.communicators[layout.find(rank_class, collective, groups)];
    distinct.push_back(cost.collective(collective, communicator.ranks));
    require_time(distinct.back().device, name_of(collective.kind));
  }
  CollectiveTable table;
  table.reserve(program.collectives.size());
  for (const std::uint32_t shape : shapes.collective_shape) table.push_back(distinct[shape]);
  return table;
}

}  // namespace

void check_program(const Schedule& schedule, std::uint32_t program) {
  ProgramCheck(schedule, program).run();
}

ProgramTiming prepare_program(const RankProgram& program, const ProgramShapes& shapes,
                              const CostModel& cost) {
  ProgramTiming t;
  t.program = &program;
  t.shapes = &shapes;
  t.streams = static_cast<std::uint32_t>(program.streams.size());
  t.host = cost.host();
  t.launches.reserve(shapes.launches.size());
  for (const std::uint32_t i : shapes.launches) {
    const LaunchCost c = cost.launch(program, program.launches[i]);
    require_time(c.device, name_of(program.launches[i].op));
    require_time(c.host, name_of(program.launches[i].op));
    t.launches.push_back({c.device.value, c.host.value, c.kernel_class, c.memory_share});
  }
  t.copies.reserve(program.copies.size());
  for (const Copy& c : program.copies) {
    t.copies.push_back(cost.copy(program, c));
    require_time(t.copies.back().device, "a copy");
  }
  t.host_work.reserve(program.host_work.size());
  for (const HostWork& w : program.host_work) {
    t.host_work.push_back(
        std::llround(static_cast<double>(w.reference_ns) * 1000 * t.host.cpu_factor));
  }
  return t;
}

std::vector<std::shared_ptr<const CollectiveTable>> prepare_collectives(
    const Schedule& schedule, const std::vector<ProgramShapes>& shapes, const Layout& layout,
    const CostModel& cost) {
  std::vector<std::shared_ptr<const CollectiveTable>> tables(layout.classes.size());
  std::map<std::vector<std::uint32_t>, std::shared_ptr<const CollectiveTable>> known;
  const std::size_t groups = schedule.groups.size();
  for (std::uint32_t c = 0; c < layout.classes.size(); ++c) {
    std::vector<std::uint32_t> key{layout.classes[c].program};
    for (std::size_t g = 0; g < groups; ++g) {
      const std::uint32_t comm = layout.communicator_of[c * groups + g];
      key.push_back(comm == kNone ? kNone : layout.communicators[comm].shape);
    }
    for (const Layout::Pair& p : layout.pairs) {
      if (p.rank_class == c) key.push_back(layout.communicators[p.communicator].shape);
    }
    std::shared_ptr<const CollectiveTable>& table = known[key];
    if (!table) {
      const RankProgram& program = schedule.programs[layout.classes[c].program];
      table = std::make_shared<const CollectiveTable>(
          collective_table(program, shapes[layout.classes[c].program], c, layout, groups, cost));
    }
    tables[c] = table;
  }
  return tables;
}

}  // namespace foreshard::sim
