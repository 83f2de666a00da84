#include "study/size.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "schedules/planner/framework_table.h"
#include "study/evaluate.h"
#include "study/parallel.h"

namespace foreshard {
namespace {

constexpr std::int64_t kMostGpus = 512;

std::vector<std::int64_t> gpu_counts(const SizeQuestion& q, const HardwareProfile& h) {
  if (!q.gpus.empty()) return q.gpus;
  std::vector<std::int64_t> out;
  for (std::int64_t n = std::max(1, h.gpus_per_node()); n <= kMostGpus; n *= 2) out.push_back(n);
  return out;
}

/// The job on `gpus` GPUs: the shard group grows, copies stay.
Job resized(const SizeQuestion& q, const HardwareProfile& h, std::int64_t gpus,
            std::int64_t micro_batch) {
  Job job = q.job;
  job.hardware = h;
  job.gpus = gpus;
  job.config.micro_batch = micro_batch;
  if (row_of(job.config.framework).whole_copies()) {
    job.config.replicate = gpus;
    return job;
  }
  if (job.config.replicate > 1 && job.config.shard > 1) {  // HSDP: the shard group was asked for.
    if (gpus % job.config.shard != 0)
      throw InputError(Issue{
          "--shard", "", fmt::format("{} does not divide {} GPUs", job.config.shard, gpus), ""});
    job.config.replicate = gpus / job.config.shard;
  } else {
    job.config.shard = gpus;
    job.config.replicate = 1;
  }
  return job;
}

std::optional<double> price_of(const SizeQuestion& q, const HardwareProfile& h) {
  const auto find = [&](const std::string& name) -> std::optional<double> {
    const auto it = q.prices.find(name);
    return it == q.prices.end() ? std::nullopt : std::optional<double>(it->second);
  };
  if (const auto p = find(h.name)) return p;
  for (const std::string& alias : h.aliases)
    if (const auto p = find(alias)) return p;
  if (const auto p = find(h.gpu.name)) return p;
  for (const auto& [name, price] : q.prices)  // "h100" for "h100-80"
    if (h.gpu.name.rfind(name + "-", 0) == 0) return price;
  if (h.node.price_per_hour.known()) return h.node.price_per_hour.value / h.gpus_per_node();
  if (h.gpu.price_per_hour.known()) return h.gpu.price_per_hour.value;
  return std::nullopt;
}

SizeRow row_of(const Job& job, const Evaluation& e) {
  SizeRow row;
  row.hardware = job.hardware.name;
  row.gpus = job.gpus;
  row.micro_batch = job.config.micro_batch;
  row.fits = e.result.memory.fits;
  row.retries = is_borderline(e.result.memory) ? e.result.memory.retries_total : 0;
  row.step = e.result.step_time;
  row.tokens_per_s_per_gpu = e.tokens_per_second_per_gpu();
  row.samples_per_s_per_gpu = e.samples_per_second_per_gpu(job);
  row.mfu = e.model_flops_utilisation(job);
  row.memory = e.result.memory.device_peak;
  row.capacity = e.result.memory.capacity;
  if (!e.result.critical_path.empty()) row.limited_by = e.result.critical_path[0].resource;
  if (!row.fits)
    row.note = fmt::format("has {}, peak without a limit {}", format_memory(row.capacity),
                           format_memory(row.memory));
  return row;
}

/// Rows that fit, those without allocator retries first, then by throughput.
bool is_better(const SizeRow& a, const SizeRow& b) {
  if (a.fits != b.fits) return a.fits;
  if (!a.fits) return false;
  if ((a.retries == 0) != (b.retries == 0)) return a.retries == 0;
  return a.samples_per_s_per_gpu > b.samples_per_s_per_gpu;
}

/// The best of all micro-batches; grows them until one does not fit.
SizeRow best_row(const SizeQuestion& q, const HardwareProfile& h, std::int64_t gpus) {
  const std::vector<std::int64_t> batches =
      q.micro_batches.empty() ? std::vector<std::int64_t>{1, 2, 4, 8, 16} : q.micro_batches;
  std::optional<SizeRow> best;
  for (const std::int64_t b : batches) {
    SizeRow row;
    try {
      const Job job = resized(q, h, gpus, b);
      row = row_of(job, evaluate(job));
    } catch (const InputError& e) {
      row.hardware = h.name;
      row.gpus = gpus;
      row.micro_batch = b;
      row.note = e.issues()[0].text();
    }
    if (!best || is_better(row, *best)) best = row;
    if (!row.fits) break;
  }
  return *best;
}

void add_budget(SizeRow& row, const SizeQuestion& q, const HardwareProfile& h) {
  if (!row.fits || q.tokens <= 0 || row.tokens_per_s_per_gpu <= 0) return;
  const double seconds = q.tokens / (row.tokens_per_s_per_gpu * static_cast<double>(row.gpus));
  row.days = seconds / 86400;
  row.gpu_hours = seconds / 3600 * static_cast<double>(row.gpus);
  if (const auto price = price_of(q, h)) row.price = *price * row.gpu_hours;
  row.meets_deadline = !q.deadline_days || row.days <= *q.deadline_days;
}

}  // namespace

SizeResult size(const SizeQuestion& q, const std::function<void(int, int)>& progress) {
  SizeResult out;
  std::vector<std::pair<const HardwareProfile*, std::int64_t>> wanted;
  for (const HardwareProfile& h : q.hardware)
    for (const std::int64_t gpus : gpu_counts(q, h)) wanted.emplace_back(&h, gpus);
  out.rows.resize(wanted.size());
  Progress report(progress, wanted.size());
  parallel_for(wanted.size(), [&](std::size_t i) {
    const auto [hardware, gpus] = wanted[i];
    out.rows[i] = best_row(q, *hardware, gpus);
    add_budget(out.rows[i], q, *hardware);
    report.one_more();
  });
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
    better(out.smallest, i, [](const SizeRow& a, const SizeRow& b) { return a.gpus < b.gpus; });
    if (out.rows[i].price)
      better(out.cheapest, i,
             [](const SizeRow& a, const SizeRow& b) { return *a.price < *b.price; });
  }
  return out;
}

}  // namespace foreshard
