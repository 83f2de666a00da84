#include "study/size.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/integers.h"
#include "core/parallel.h"
#include "schedules/planner/framework_table.h"
#include "study/evaluate.h"
#include "study/headroom.h"
#include "study/job_change.h"
#include "study/mesh_search.h"
#include "study/needed_memory.h"
#include "study/size_row.h"
#include "study/uncertainty.h"
#include "study/ways_to_fit.h"

namespace foreshard {
namespace {

constexpr std::int64_t kMostGpus = 512;

std::vector<std::int64_t> gpu_counts(const SizeQuestion& q, const HardwareProfile& h) {
  if (!q.gpus.empty()) return q.gpus;
  if (row_of(q.job.config.framework).ranks == RankLayout::kOneDevice) return {1};
  std::vector<std::int64_t> out;
  const std::int64_t per_node = std::max(1, h.gpus_per_node());
  const std::int64_t most =
      h.nodes > 0 ? std::min<std::int64_t>(kMostGpus, h.nodes * per_node) : kMostGpus;
  for (std::int64_t n = per_node; n <= most; n *= 2) out.push_back(n);
  return out;
}
/// Numbers of whole nodes strictly between two counts that can be asked for.
std::vector<std::int64_t> counts_between(const SizeQuestion& q, const HardwareProfile& h,
                                         std::int64_t low, std::int64_t high) {
  std::vector<std::int64_t> out;
  const std::int64_t per_node = std::max(1, h.gpus_per_node());
  for (std::int64_t n = low + per_node; n < high; n += per_node)
    if (undivided(q, n, 1).empty()) out.push_back(n);
  return out;
}

/// Rows of one machine between its last doubling that misses the deadline and the first that meets
/// it, down to the smallest that does.
std::vector<SizeRow> refined(const SizeQuestion& q, const HardwareProfile& h,
                             const std::vector<SizeRow>& doublings) {
  std::vector<SizeRow> out;
  const auto meets = [](const SizeRow& r) { return r.fits && r.meets_deadline; };
  const auto first = std::find_if(doublings.begin(), doublings.end(), meets);
  if (first == doublings.end() || first == doublings.begin()) return out;
  const std::vector<std::int64_t> counts =
      counts_between(q, h, std::prev(first)->gpus, first->gpus);
  for (std::size_t low = 0, high = counts.size(); low < high;) {
    const std::size_t middle = (low + high) / 2;
    out.push_back(budgeted_row(q, h, counts[middle]));
    if (meets(out.back()))
      high = middle;
    else
      low = middle + 1;
  }
  return out;
}

/// Rows of the counts that are asked for; then, with a deadline, those between.
std::vector<SizeRow> all_rows(const SizeQuestion& q,
                              const std::function<void(int, int)>& progress) {
  std::vector<std::pair<std::size_t, std::int64_t>> wanted;
  for (std::size_t h = 0; h < q.hardware.size(); ++h)
    for (const std::int64_t gpus : gpu_counts(q, q.hardware[h])) wanted.emplace_back(h, gpus);
  std::vector<SizeRow> asked(wanted.size());
  Progress report(progress, wanted.size());
  parallel_for(wanted.size(), [&](std::size_t i) {
    asked[i] = budgeted_row(q, q.hardware[wanted[i].first], wanted[i].second);
    report.one_more();
  });
  std::vector<std::vector<SizeRow>> of_machine(q.hardware.size());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    of_machine[wanted[i].first].push_back(std::move(asked[i]));
  if (q.gpus.empty() && q.tokens > 0 && q.deadline_days) {
    parallel_for(q.hardware.size(), [&](std::size_t h) {
      std::vector<SizeRow>& rows = of_machine[h];
      const std::vector<SizeRow> between = refined(q, q.hardware[h], rows);
      rows.insert(rows.end(), between.begin(), between.end());
      std::stable_sort(rows.begin(), rows.end(),
                       [](const SizeRow& a, const SizeRow& b) { return a.gpus < b.gpus; });
    });
  }
  std::vector<SizeRow> out;
  for (std::vector<SizeRow>& rows : of_machine) out.insert(out.end(), rows.begin(), rows.end());
  return out;
}

}  // namespace

bool prices_machine(const std::string& name, const HardwareProfile& h) {
  return name == h.name || name == h.gpu.name ||
         std::find(h.aliases.begin(), h.aliases.end(), name) != h.aliases.end() ||
         h.gpu.name.rfind(name + "-", 0) == 0;  // "h100" for "h100-80"
}

SizeResult size(const SizeQuestion& q, const std::function<void(int, int)>& progress) {
  SizeResult out;
  out.rows = all_rows(q, progress);
  const auto better = [&](std::optional<std::size_t>& best, std::size_t i, auto less) {
    if (!best || less(out.rows[i], out.rows[*best])) best = i;
  };
  for (std::size_t i = 0; i < out.rows.size(); ++i) {
    if (!out.rows[i].fits || out.rows[i].retries > 0) continue;
    better(out.fastest, i, [](const SizeRow& a, const SizeRow& b) {
      return a.samples_per_s_per_gpu * static_cast<double>(a.gpus) >
             b.samples_per_s_per_gpu * static_cast<double>(b.gpus);
    });
    if (q.tokens > 0 && !out.rows[i].meets_deadline) continue;
    better(out.smallest, i, [](const SizeRow& a, const SizeRow& b) {
      return std::tuple(a.gpus, a.price.value_or(0), a.days) <
             std::tuple(b.gpus, b.price.value_or(0), b.days);
    });
    if (out.rows[i].price)
      better(out.cheapest, i,
             [](const SizeRow& a, const SizeRow& b) { return *a.price < *b.price; });
  }
  for (const auto& named : {out.smallest, out.cheapest, out.fastest})
    if (named && out.rows[*named].p90.value == 0) add_range(out.rows[*named], q);
  const auto asked = std::find_if(out.rows.rbegin(), out.rows.rend(),
                                  [](const SizeRow& row) { return !row.refused; });
  if (!out.fastest && asked != out.rows.rend()) {
    const auto machine = std::find_if(q.hardware.begin(), q.hardware.end(),
                                      [&](const auto& h) { return h.name == asked->hardware; });
    const CheckpointKind checkpoint =
        q.checkpoints.empty() ? q.job.config.checkpoint : q.checkpoints.back();
    out.ways_to_fit =
        ways_to_fit(resized(q, {*machine, asked->gpus, asked->micro_batch, checkpoint}));
  }
  return out;
}

}  // namespace foreshard
