#include "study/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "core/error.h"

namespace foreshard {
namespace {

constexpr double kWorthKnowing = 1.02;  ///< Smaller gains are within the model's error.

struct Change {
  std::string text;
  std::function<void(ParallelConfig&)> apply;
  std::int64_t times_gpus = 1;  ///< On so many times the GPUs, sharded over all of them.
};

bool shards(FrameworkKind f) { return f == FrameworkKind::kFsdp2 || f == FrameworkKind::kFsdp1; }
bool is_zero(FrameworkKind f) {
  return f == FrameworkKind::kZero1 || f == FrameworkKind::kZero2 || f == FrameworkKind::kZero3;
}

/// All that a framework can keep in host memory, as --offload names it; kNone: nothing.
std::pair<OffloadKind, const char*> largest_offload(const ParallelConfig& c) {
  if (shards(c.framework)) return {OffloadKind::kParameters, "--offload params"};
  if (c.framework == FrameworkKind::kZero3) return {OffloadKind::kBoth, "--offload both"};
  if (is_zero(c.framework)) return {OffloadKind::kOptimizer, "--offload optimizer"};
  return {OffloadKind::kNone, ""};
}

void add_sharding_changes(const Job& job, std::vector<Change>& out) {
  const ParallelConfig& c = job.config;
  const std::int64_t per_node = std::max(1, job.hardware.gpus_per_node());
  if (c.replicate == 1 && job.gpus > per_node && job.gpus % per_node == 0)
    out.push_back({fmt::format("--replicate {}", job.gpus / per_node), [=](ParallelConfig& p) {
                     p.replicate = job.gpus / per_node;
                     p.shard = per_node;
                     p.fsdp1.strategy = Fsdp1Options::Strategy::kHybrid;
                   }});
  if (c.replicate > 1)
    out.push_back({"--replicate 1", [=](ParallelConfig& p) {
                     p.shard = job.gpus;
                     p.replicate = 1;
                     p.fsdp1.strategy = Fsdp1Options::Strategy::kFullShard;
                   }});
  if (c.framework == FrameworkKind::kFsdp2 && c.reshard.kind != Reshard::Kind::kNo)
    out.push_back({"--reshard false", [](ParallelConfig& p) { p.reshard = Reshard::no(); }});
  if (c.framework == FrameworkKind::kFsdp1 &&
      c.fsdp1.strategy == Fsdp1Options::Strategy::kFullShard)
    out.push_back({"--fsdp1-strategy shard_grad_op", [](ParallelConfig& p) {
                     p.fsdp1.strategy = Fsdp1Options::Strategy::kShardGradOp;
                   }});
  if (c.framework == FrameworkKind::kFsdp2 && c.wrap.kind == WrapPolicy::Kind::kBlocks &&
      job.model->roles.blocks.size() >= 4)
    out.push_back({"--wrap every:2", [](ParallelConfig& p) {
                     p.wrap.kind = WrapPolicy::Kind::kEveryK, p.wrap.every = 2;
                   }});
  if (c.accumulate > 1 && c.sync_each_micro_batch)
    out.push_back(
        {"--sync-each-micro-batch no", [](ParallelConfig& p) { p.sync_each_micro_batch = false; }});
}

std::vector<Change> changes_for(const Job& job) {
  const ParallelConfig& c = job.config;
  std::vector<Change> out;
  out.push_back({fmt::format("--micro-batch {}", 2 * c.micro_batch),
                 [](ParallelConfig& p) { p.micro_batch *= 2; }});
  if (c.micro_batch > 1)
    out.push_back({fmt::format("--micro-batch {}", c.micro_batch / 2),
                   [](ParallelConfig& p) { p.micro_batch /= 2; }});
  if (c.checkpoint == CheckpointKind::kNone)
    out.push_back(
        {"--checkpoint full", [](ParallelConfig& p) { p.checkpoint = CheckpointKind::kFull; }});
  if (c.checkpoint == CheckpointKind::kFull)
    out.push_back(
        {"--checkpoint none", [](ParallelConfig& p) { p.checkpoint = CheckpointKind::kNone; }});
  if (shards(c.framework)) add_sharding_changes(job, out);
  return out;
}

/// For a job that no single change makes fit: all that saves memory at once, then host memory,
/// 16-bit states, more GPUs.
std::vector<Change> rescues_for(const Job& job) {
  const ParallelConfig& c = job.config;
  const auto save = [](ParallelConfig& p) {
    p.micro_batch = 1;
    p.checkpoint = CheckpointKind::kFull;
  };
  std::string text = c.checkpoint == CheckpointKind::kFull ? "" : "--checkpoint full";
  const auto add = [](const std::string& to, const std::string& option) {
    return to.empty() ? option : to + " " + option;
  };
  if (c.micro_batch > 1) text = add(text, "--micro-batch 1");
  std::vector<Change> out;
  if (!text.empty()) out.push_back({text, save});
  const auto [offload, option] = largest_offload(c);
  if (offload != OffloadKind::kNone && c.offload == OffloadKind::kNone)
    out.push_back({add(text, option), [save, kind = offload](ParallelConfig& p) {
                     save(p);
                     p.offload = kind;
                   }});
  if (c.model_dtype == DType::kFloat32 && !is_zero(c.framework))
    out.push_back({add(text, "--model-dtype bf16"), [save](ParallelConfig& p) {
                     save(p);
                     p.model_dtype = DType::kBFloat16;
                   }});
  for (std::int64_t k = 2; (shards(c.framework) || is_zero(c.framework)) && k <= 16; k *= 2) {
    if (job.hardware.network.kind == NetworkKind::kNone &&
        job.gpus * k > job.hardware.gpus_per_node())
      break;
    out.push_back({add(text, fmt::format("--gpus {}", job.gpus * k)), save, k});
  }
  return out;
}

/// What the change gives; nothing if the framework refuses it.
std::optional<Suggestion> try_change(const Job& job, const Evaluation& base, const Change& change) {
  SimulationOptions options;
  options.detail = Detail::kTimesOnly;
  Job changed = job;
  change.apply(changed.config);
  changed.gpus *= change.times_gpus;
  changed.config.shard *= change.times_gpus;
  try {
    const Evaluation e = evaluate(changed, options);
    const double tokens = e.tokens_per_second_per_gpu(), before = base.tokens_per_second_per_gpu();
    return Suggestion{change.text,
                      e.result.step_time,
                      e.result.memory.device_peak - base.result.memory.device_peak,
                      tokens,
                      before > 0 ? tokens / before : base.result.step_time / e.result.step_time,
                      e.result.memory.fits};
  } catch (const InputError&) {
    return std::nullopt;
  }
}

/// The changes that fit, of those the smallest number of GPUs only.
std::vector<Suggestion> rescue(const Job& job, const Evaluation& base, std::size_t most) {
  std::vector<Suggestion> out;
  for (const Change& change : rescues_for(job)) {
    if (out.size() == most) break;
    const std::optional<Suggestion> s = try_change(job, base, change);
    if (!s || !s->fits) continue;
    out.push_back(*s);
    if (change.times_gpus > 1) break;
  }
  return out;
}

}  // namespace

std::vector<Suggestion> suggest(const Job& job, const Evaluation& base, std::size_t most) {
  std::vector<Suggestion> all;
  for (const Change& change : changes_for(job))
    if (const std::optional<Suggestion> s = try_change(job, base, change)) all.push_back(*s);
  const bool base_fits = base.result.memory.fits;
  std::erase_if(all, [base_fits](const Suggestion& s) {
    return base_fits ? s.speedup < kWorthKnowing : !s.fits;
  });
  if (!base_fits && all.empty()) return rescue(job, base, most);
  std::stable_sort(all.begin(), all.end(), [](const Suggestion& a, const Suggestion& b) {
    return a.fits != b.fits ? a.fits : a.speedup > b.speedup;
  });
  // Keep one that does not fit at most: it says what more memory would buy.
  std::vector<Suggestion> out;
  bool too_large = false;
  for (const Suggestion& s : all) {
    if (out.size() == most || (!s.fits && too_large)) continue;
    too_large = too_large || !s.fits;
    out.push_back(s);
  }
  return out;
}

}  // namespace foreshard
