#include "study/grouping_study.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/format.h"
#include "core/parallel.h"
#include "study/evaluate.h"
#include "study/headroom.h"

namespace foreshard {
namespace {

/// From the smallest up, those that are at least 0.2 % faster than the one before.
std::vector<Grouping> thinned(const std::vector<Grouping>& front) {
  std::vector<Grouping> out;
  for (auto g = front.rbegin(); g != front.rend(); ++g)
    if (out.empty() || out.back().step / g->step > 1.002) out.push_back(*g);
  return out;
}

/// K = 1, 2, ... as far as each makes fewer units than the one before.
std::vector<std::vector<std::int64_t>> even_groupings(std::int64_t blocks) {
  std::vector<std::vector<std::int64_t>> out;
  for (std::int64_t k = 1; k <= blocks; ++k) {
    std::vector<std::int64_t> sizes;
    for (std::int64_t left = blocks; left > 0; left -= k) sizes.push_back(std::min(k, left));
    if (out.empty() || sizes.size() < out.back().size()) out.push_back(std::move(sizes));
  }
  return out;
}

std::vector<SimulatedGrouping> candidates(const WrapCosts& costs,
                                          const std::vector<Grouping>& front) {
  std::vector<SimulatedGrouping> rows;
  for (const std::vector<std::int64_t>& sizes :
       even_groupings(static_cast<std::int64_t>(costs.blocks()))) {
    rows.emplace_back();
    rows.back().grouping = evaluate_grouping(costs, sizes);
    rows.back().even = true;
  }
  for (const Grouping& g : thinned(front)) {
    const auto same = [&g](const SimulatedGrouping& r) { return r.grouping.sizes == g.sizes; };
    auto row = std::find_if(rows.begin(), rows.end(), same);
    if (row == rows.end()) {
      row = rows.emplace(rows.end());
      row->grouping = g;
    }
    row->on_front = true;
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const SimulatedGrouping& a, const SimulatedGrouping& b) {
                     return a.grouping.sizes.size() < b.grouping.sizes.size();
                   });
  return rows;
}

void simulate(const Job& job, std::vector<SimulatedGrouping>& rows) {
  parallel_for(rows.size(), [&](std::size_t i) {
    SimulatedGrouping& row = rows[i];
    const Evaluation run = evaluate(with_grouping(job, row.grouping.sizes));
    row.step = run.result.step_time;
    row.memory = run.result.memory.device_peak;
    row.allocated = run.result.memory.allocated_peak;
    row.retries = run.result.memory.retries_total;
    row.fits = run.result.memory.fits;
  });
}

void choose(GroupingStudy& s, Bytes capacity) {
  const Choice choice = choose_row(s.rows, capacity);
  s.chosen = choice.chosen;
  if (!choice.roomy) {
    s.reason = "allocates least; none leaves enough of the device free";
    return;
  }
  const SimulatedGrouping &fastest = s.rows[choice.fastest], &chosen = s.rows[s.chosen];
  s.reason = s.chosen == choice.fastest
                 ? "the fastest"
                 : fmt::format(
                       "needs least memory within {:.0f} % of the fastest: {:.1f} % "
                       "slower, {} less",
                       100 * (kCloseEnough - 1), 100 * (chosen.step / fastest.step - 1),
                       format_memory(fastest.memory - chosen.memory));
}

}  // namespace

GroupingStudy study_groupings(const Job& job) {
  const WrapCosts costs = wrap_costs(job);
  const Grouping each = evaluate_grouping(costs, std::vector<std::int64_t>(costs.blocks(), 1));
  const MemoryResult m = evaluate(with_grouping(job, each.sizes)).result.memory;
  GroupingStudy study;
  // What is left of the device for buffers of groups: its memory less what one block a unit needs
  // beside its own buffers.
  study.front = grouping_front(costs, m.capacity - (m.device_peak - each.buffers));
  study.rows = candidates(costs, study.front);
  simulate(job, study.rows);
  study.each = study.rows.size() - 1;
  choose(study, m.capacity);
  return study;
}

}  // namespace foreshard
