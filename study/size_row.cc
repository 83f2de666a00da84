#include "study/size_row.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/integers.h"
#include "schedules/planner/framework_table.h"
#include "study/evaluate.h"
#include "study/headroom.h"
#include "study/job_change.h"
#include "study/needed_memory.h"
#include "study/uncertainty.h"

namespace foreshard {
namespace {

/// Shard group and copies: what was asked for stays, the other follows from the GPUs.
void shape_mesh(const SizeQuestion& q, Job& job) {
  const std::int64_t shard = q.shard.value_or(0), replicate = q.replicate.value_or(0);
  const std::int64_t asked =
      std::max<std::int64_t>(1, shard) * std::max<std::int64_t>(1, replicate);
  if (shard > 0 && replicate > 0 ? asked != job.gpus : job.gpus % asked != 0)
    throw InputError(
        Issue{shard > 0 ? "--shard" : "--replicate", "",
              shard > 0 && replicate > 0
                  ? fmt::format("{} x --replicate {} is not {} GPUs", shard, replicate, job.gpus)
                  : fmt::format("{} does not divide {} GPUs", asked, job.gpus),
              ""});
  job.config.shard = shard > 0 ? shard : job.gpus / asked;
  job.config.replicate = replicate > 0 ? replicate : job.gpus / job.config.shard;
}

}  // namespace

std::string undivided(const SizeQuestion& q, std::int64_t gpus, std::int64_t micro_batch) {
  if (!q.global_batch || *q.global_batch % (gpus * micro_batch) == 0) return "";
  return fmt::format("--global-batch {} is not a multiple of {} GPUs x micro-batch {}",
                     *q.global_batch, gpus, micro_batch);
}

Job resized(const SizeQuestion& q, const SizeAttempt& a) {
  Job job = q.job;
  job.hardware = a.hardware;
  job.gpus = a.gpus;
  job.config.micro_batch = a.micro_batch;
  job.config.checkpoint = a.checkpoint;
  if (const std::string why = undivided(q, a.gpus, a.micro_batch); !why.empty())
    throw InputError(Issue{"", "", why, ""});
  if (q.global_batch) job.config.accumulate = *q.global_batch / (a.gpus * a.micro_batch);
  const FrameworkRow& framework = row_of(job.config.framework);
  if (framework.ranks == RankLayout::kOneDevice && a.gpus > 1)
    throw InputError(
        Issue{"--framework", "", fmt::format("{} trains on one GPU", framework.name), ""});
  const std::string lacks = settle_attention(job, job.attention_kernel != AttentionKernel::kFlash2);
  if (!lacks.empty() && takes_flash(job.config.attention))
    throw InputError(Issue{"--attention-kernel", "", lacks, ""});
  if (row_of(job.config.framework).whole_copies()) {
    job.config.replicate = a.gpus;
    return job;
  }
  shape_mesh(q, job);
  if (a.mesh) change::mesh(job, a.mesh->shard, a.mesh->replicate).apply(job);
  return job;
}

namespace {

/// Micro-batches of a step that are simulated; more of them are added as the last was.
constexpr std::int64_t kSimulatedMicroBatches = 4;

/// Smaller gains of a doubled micro-batch are within the model's error.
constexpr double kWorthDoubling = 1.02;
constexpr std::int64_t kMostSequences = 4096;

std::optional<double> price_of(const SizeQuestion& q, const HardwareProfile& h) {
  const auto find = [&](const std::string& name) -> std::optional<double> {
    const auto it = q.prices.find(name);
    return it == q.prices.end() ? std::nullopt : std::optional<double>(it->second);
  };
  if (const auto p = find(h.name)) return p;
  for (const std::string& alias : h.aliases)
    if (const auto p = find(alias)) return p;
  if (const auto p = find(h.gpu.name)) return p;
  for (const auto& [name, price] : q.prices)
    if (prices_machine(name, h)) return price;
  if (h.node.price_per_hour.known()) return h.node.price_per_hour.value / h.gpus_per_node();
  if (h.gpu.price_per_hour.known()) return h.gpu.price_per_hour.value;
  return std::nullopt;
}

std::int64_t whole_nodes(const HardwareProfile& h, std::int64_t gpus) {
  const std::int64_t per_node = std::max(1, h.gpus_per_node());
  return round_up(gpus, per_node);
}

std::string checkpoint_text(const ParallelConfig& c, CheckpointKind kind) {
  switch (kind) {
    case CheckpointKind::kNone:
      return "none";
    case CheckpointKind::kFull:
      return "full";
    case CheckpointKind::kEveryK:
      return fmt::format("every:{}", c.checkpoint_every);
    case CheckpointKind::kSelectiveOp:
      return "selective";
    case CheckpointKind::kModules:
      return "modules";
  }
  return "";
}

SizeRow empty_row(const SizeQuestion& q, const SizeAttempt& a) {
  SizeRow row;
  row.hardware = a.hardware.name;
  row.gpus = a.gpus;
  row.billed_gpus = whole_nodes(a.hardware, a.gpus);
  row.nodes = row.billed_gpus / std::max(1, a.hardware.gpus_per_node());
  row.micro_batch = a.micro_batch;
  row.checkpoint_kind = a.checkpoint;
  row.checkpoint = checkpoint_text(q.job.config, a.checkpoint);
  return row;
}

/// What a job that does not fit lacks.
std::string lack_of(const MemoryResult& m, const std::optional<Bytes>& enough) {
  std::string out;
  if (!m.fits_device)
    out = fmt::format("has {}, runs with {}", format_memory(m.capacity),
                      format_memory(enough.value_or(m.device_peak)));
  if (!m.fits_host())
    out += fmt::format("{}host memory of a node: has {}, needs {}", out.empty() ? "" : "; ",
                       format_memory(m.host_capacity), format_memory(m.host_node_peak));
  return out;
}

void add_result(SizeRow& row, const Job& job, const Evaluation& e) {
  row.accumulate = job.config.accumulate;
  row.shard = job.config.shard;
  row.replicate = job.config.replicate;
  row.outside = outside_calibration(job);
  row.global_batch = job.gpus * job.config.micro_batch * job.config.accumulate;
  row.fits = e.result.memory.fits;
  row.retries = is_borderline(e.result.memory) ? e.result.memory.retries_total : 0;
  row.step_retries = is_borderline(e.result.memory) ? e.result.memory.retries : 0;
  row.tight = row.fits && !leaves_headroom(e.result.memory.device_peak, e.result.memory.capacity);
  row.step = e.result.step_time;
  row.tokens_per_s_per_gpu = e.tokens_per_second_per_gpu();
  row.samples_per_s_per_gpu = e.samples_per_second_per_gpu(job);
  row.mfu = e.model_flops_utilisation(job);
  row.memory = e.result.memory.device_peak;
  row.capacity = e.result.memory.capacity;
  if (!e.result.critical_path.empty()) row.limited_by = name_of(e.result.critical_path[0].resource);
  if (!row.fits) row.note = lack_of(e.result.memory, std::nullopt);
}

/// Micro-batches after the second are alike: a step of many takes what a step of a few takes, and
/// for each further one what the last of these added. Memory does not grow after the second.
void add_micro_batches(SizeRow& row, const Job& job, std::int64_t accumulate) {
  Job shorter = job;
  shorter.config.accumulate = kSimulatedMicroBatches - 1;
  const Time each = row.step - evaluate(shorter).result.step_time;
  const auto more = accumulate - job.config.accumulate;
  const Time step = row.step + Time(each.value * more);
  const double faster = static_cast<double>(accumulate) /
                        static_cast<double>(job.config.accumulate) * (row.step / step);
  row.tokens_per_s_per_gpu *= faster;
  row.samples_per_s_per_gpu *= faster;
  row.mfu *= faster;
  row.step = step;
  row.accumulate = accumulate;
  row.global_batch = job.gpus * job.config.micro_batch * accumulate;
}

SizeRow attempt(const SizeQuestion& q, const SizeAttempt& a) {
  SizeRow row = empty_row(q, a);
  try {
    Job job = resized(q, a);
    const std::int64_t accumulate = job.config.accumulate;
    if (q.global_batch) job.config.accumulate = std::min(accumulate, kSimulatedMicroBatches);
    add_result(row, job, evaluate(job));
    if (row.fits && accumulate > job.config.accumulate) add_micro_batches(row, job, accumulate);
  } catch (const InputError& e) {
    row.refused = true;
    row.note = e.issues()[0].text();
  }
  return row;
}

/// Rows that fit, those without allocator retries first, then those with some memory free, then by
/// throughput.
bool is_better(const SizeRow& a, const SizeRow& b) {
  if (a.fits != b.fits) return a.fits;
  if (!a.fits) return false;
  if ((a.retries == 0) != (b.retries == 0)) return a.retries == 0;
  if (a.tight != b.tight) return b.tight;
  return a.samples_per_s_per_gpu > b.samples_per_s_per_gpu;
}

/// The need of a row that does not fit, as simulate states it: memory that is enough, not the peak
/// without a limit.
void state_need(SizeRow& row, const SizeQuestion& q, const SizeAttempt& a) {
  Job job = resized(q, a);
  job.config.accumulate = std::min(job.config.accumulate, kSimulatedMicroBatches);
  const Evaluation e = evaluate(job);
  const std::optional<Bytes> enough = needed_memory(job, e);
  row.memory = enough.value_or(row.memory);
  row.note = lack_of(e.result.memory, enough);
}

/// From the smallest on: they are tried until one does not fit. A global batch leaves only the
/// divisors of each GPU's share.
std::vector<std::int64_t> micro_batches_of(const SizeQuestion& q, std::int64_t gpus) {
  std::vector<std::int64_t> out = q.micro_batches;
  if (out.empty() && q.global_batch && *q.global_batch % gpus == 0) {
    const std::int64_t share = *q.global_batch / gpus;
    for (std::int64_t b = 1; b <= std::min(share, kMostSequences); ++b)
      if (share % b == 0) out.push_back(b);
  }
  if (out.empty())
    for (std::int64_t b = 1; b <= kMostSequences; b *= 2) out.push_back(b);
  std::sort(out.begin(), out.end());
  return out;
}

bool fits_well(const SizeRow& row) { return row.fits && row.retries == 0 && !row.tight; }

/// The best row so far. What does not fit is shown at its smallest need, what is refused only if
/// all is.
class BestRow {
 public:
  BestRow(const SizeQuestion& q, const HardwareProfile& h, std::int64_t gpus)
      : q_(q), h_(h), gpus_(gpus) {}

  SizeRow attempt(std::int64_t micro_batch, CheckpointKind checkpoint) {
    const SizeAttempt a{h_, gpus_, micro_batch, checkpoint};
    const SizeRow row = foreshard::attempt(q_, a);
    if (!best_ || (best_->refused && !row.refused) || is_better(row, *best_) ||
        (!best_->fits && !row.refused && row.memory < best_->memory))
      best_ = row, checkpoint_ = checkpoint;
    return row;
  }

  /// Hybrid sharding in place of shards over all GPUs, where nobody asked for either.
  void try_meshes() {
    if (q_.shard || q_.replicate || !fits_well(*best_)) return;
    if (!row_of(q_.job.config.framework).forms_units()) return;
    std::map<std::int64_t, SizeRow> rows;
    const std::int64_t micro_batch = best_->micro_batch;
    const auto speed = [&](Mesh mesh) -> std::optional<double> {
      const SizeRow& row = rows[mesh.replicate] =
          foreshard::attempt(q_, {h_, gpus_, micro_batch, checkpoint_, mesh});
      return fits_well(row) ? std::optional(row.samples_per_s_per_gpu) : std::nullopt;
    };
    const std::optional<Mesh> mesh =
        best_mesh(gpus_, h_.gpus_per_node(), kWorthDoubling * best_->samples_per_s_per_gpu, speed);
    if (mesh) *best_ = rows[mesh->replicate];
  }

  SizeRow take() {
    if (!best_->fits && !best_->refused)
      state_need(*best_, q_, {h_, gpus_, best_->micro_batch, checkpoint_});
    return *best_;
  }

 private:
  const SizeQuestion& q_;
  const HardwareProfile& h_;
  std::int64_t gpus_;
  std::optional<SizeRow> best_;
  CheckpointKind checkpoint_ = CheckpointKind::kNone;
};

/// Micro-batches grow until one does not fit, or until a doubling is not worth it. The first: the
/// largest that fits well; the second: the smallest that was tried and does not, or 0.
std::pair<std::int64_t, std::int64_t> grow(const SizeQuestion& q, std::int64_t gpus,
                                           CheckpointKind checkpoint, BestRow& best) {
  std::int64_t good = 0, bad = 0, from = 0;
  double speed = 0;  // Samples per second at `from`, the last doubling.
  for (const std::int64_t b : micro_batches_of(q, gpus)) {
    const SizeRow row = best.attempt(b, checkpoint);
    if (row.refused) continue;
    if (fits_well(row))
      good = b;
    else if (bad == 0)
      bad = b;
    if (!row.fits) break;
    if (from > 0 && b < 2 * from) continue;
    if (q.micro_batches.empty() && row.samples_per_s_per_gpu < kWorthDoubling * speed) break;
    from = b, speed = row.samples_per_s_per_gpu;
  }
  return {good, bad};
}

/// The best of all micro-batches and kinds of checkpointing. Between the last doubling that fits
/// well and the first that does not, the largest that does is searched.
SizeRow best_row(const SizeQuestion& q, const HardwareProfile& h, std::int64_t gpus) {
  BestRow best(q, h, gpus);
  const std::vector<CheckpointKind> checkpoints =
      q.checkpoints.empty() ? std::vector{q.job.config.checkpoint} : q.checkpoints;
  for (const CheckpointKind checkpoint : checkpoints) {
    auto [good, bad] = grow(q, gpus, checkpoint, best);
    if (!q.micro_batches.empty() || q.global_batch || good == 0) continue;
    while (bad - good > 1) {
      const std::int64_t middle = good + (bad - good) / 2;
      const SizeRow row = best.attempt(middle, checkpoint);
      (!row.refused && fits_well(row) ? good : bad) = middle;
    }
  }
  best.try_meshes();
  return best.take();
}

void add_budget(SizeRow& row, const SizeQuestion& q, const HardwareProfile& h) {
  if (!row.fits || q.tokens <= 0 || row.tokens_per_s_per_gpu <= 0) return;
  const double seconds = q.tokens / (row.tokens_per_s_per_gpu * static_cast<double>(row.gpus));
  row.days = seconds / 86400;
  row.gpu_hours = seconds / 3600 * static_cast<double>(row.billed_gpus);
  if (const auto price = price_of(q, h)) row.price = *price * row.gpu_hours;
  row.meets_deadline = !q.deadline_days || row.days <= *q.deadline_days;
}

}  // namespace

SizeRow budgeted_row(const SizeQuestion& q, const HardwareProfile& h, std::int64_t gpus) {
  SizeRow row = best_row(q, h, gpus);
  add_budget(row, q, h);
  return row;
}

void add_range(SizeRow& row, const SizeQuestion& q) {
  const auto machine = std::find_if(q.hardware.begin(), q.hardware.end(),
                                    [&](const auto& h) { return h.name == row.hardware; });
  Job job = resized(q, {*machine, row.gpus, row.micro_batch, row.checkpoint_kind,
                        Mesh{row.shard, row.replicate}});
  job.config.accumulate = std::min(job.config.accumulate, kSimulatedMicroBatches);
  const Evaluation e = evaluate(job);
  const StepUncertainty u = uncertainty_of(job, e.schedule, e.result.step_time);
  const auto scaled = [&](Time limit) {
    return from_seconds(to_seconds(row.step) * (limit / e.result.step_time));
  };
  row.p10 = scaled(u.p10);
  row.p90 = scaled(u.p90);
}

}  // namespace foreshard
