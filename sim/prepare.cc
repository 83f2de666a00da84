#include "sim/prepare.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "core/error.h"
#include "schedules/structure.h"

namespace foreshard::sim {
namespace {

/// No amount of work of a real job comes near; below it sums stay in range.
constexpr std::int64_t kMost = std::int64_t{1} << 60;
constexpr std::int64_t kLongestHostWork = 86'400'000'000'000;  // ns

/// What only who adds up times needs to know of a program that has passed check_structure().
void check_amounts(const RankProgram& p, std::size_t index, IssueList& issues) {
  const auto add = [&](const char* table, std::size_t i, const char* message) {
    if (issues.issues().size() < kMostIssues)
      issues.add("programs[" + std::to_string(index) + "]." + table + "[" + std::to_string(i) + "]",
                 message);
  };
  for (std::size_t i = 0; i < p.launches.size(); ++i) {
    const Launch& l = p.launches[i];
    if (l.flops.value > kMost || l.read.value > kMost || l.written.value > kMost)
      add("launches", i, "has impossibly large work");
  }
  for (std::size_t i = 0; i < p.host_work.size(); ++i)
    if (p.host_work[i].reference_ns > kLongestHostWork) add("host_work", i, "has more than a day");
}

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

void require_schedule(const Schedule& schedule) {
  IssueList issues("schedule");
  check_structure(schedule, issues);
  issues.throw_if_any();
  for (std::size_t p = 0; p < schedule.programs.size(); ++p)
    check_amounts(schedule.programs[p], p, issues);
  issues.throw_if_any();
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
