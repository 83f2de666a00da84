#include "study/memory_study.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "core/error.h"
#include "memory/virtual_segment_source.h"
#include "study/memory_replay.h"

namespace foreshard {
namespace {

struct Change {
  std::string text, kind;
  std::function<void(Job&)> apply;
};

class ChangeList {
 public:
  explicit ChangeList(const Job& job) : job_(job), c_(job.config) {
    add_batch();
    add_checkpointing();
    add_loss();
    add_optimizer();
    if (c_.framework == FrameworkKind::kFsdp2) add_fsdp2();
    if (c_.replicate > 1 && c_.shard > 1) {
      add("--replicate 1", "sharding",
          [n = c_.world()](ParallelConfig& p) { p.shard = n, p.replicate = 1; });
    }
    if (!job.allocator.expandable_segments)
      list_.push_back({"--alloc-conf expandable_segments:True", "allocator",
                       [](Job& changed) { changed.allocator.expandable_segments = true; }});
  }
  std::vector<Change> take() { return std::move(list_); }

 private:
  template <typename Apply>
  void add(std::string text, std::string kind, Apply apply) {
    list_.push_back(
        {std::move(text), std::move(kind), [apply](Job& changed) { apply(changed.config); }});
  }

  void add_batch() {
    const std::int64_t half = c_.micro_batch / 2;
    if (half >= 1)
      add(fmt::format("--micro-batch {}", half), "micro-batch",
          [half](ParallelConfig& p) { p.micro_batch = half; });
    if (c_.accumulate > 1 && !c_.sync_each_micro_batch)
      add("--sync-each-micro-batch yes", "accumulation",
          [](ParallelConfig& p) { p.sync_each_micro_batch = true; });
  }

  void add_checkpointing() {
    if (c_.checkpoint == CheckpointKind::kFull) return;
    add("--checkpoint full", "checkpointing",
        [](ParallelConfig& p) { p.checkpoint = CheckpointKind::kFull; });
    if (c_.checkpoint != CheckpointKind::kNone) return;
    add("--checkpoint every:2", "checkpointing", [](ParallelConfig& p) {
      p.checkpoint = CheckpointKind::kEveryK;
      p.checkpoint_every = 2;
    });
    add("--checkpoint selective", "checkpointing",
        [](ParallelConfig& p) { p.checkpoint = CheckpointKind::kSelectiveOp; });
  }

  void add_loss() {
    if (c_.loss == LossKind::kCrossEntropyFloat)
      add("--loss plain", "loss", [](ParallelConfig& p) { p.loss = LossKind::kCrossEntropy; });
    if (c_.loss != LossKind::kChunked && c_.loss != LossKind::kFused)
      add("--loss chunked", "loss", [](ParallelConfig& p) { p.loss = LossKind::kChunked; });
    if (c_.loss != LossKind::kFused)
      add("--loss fused", "loss", [](ParallelConfig& p) { p.loss = LossKind::kFused; });
  }

  void add_optimizer() {
    if (c_.optimizer == OptimizerKind::kAdamWForeach ||
        c_.optimizer == OptimizerKind::kAdamWForLoop)
      add("--optimizer adamw", "optimizer",
          [](ParallelConfig& p) { p.optimizer = OptimizerKind::kAdamWFused; });
    if (c_.optimizer != OptimizerKind::kSgd && c_.optimizer != OptimizerKind::kNone)
      add("--optimizer sgd", "optimizer",
          [](ParallelConfig& p) { p.optimizer = OptimizerKind::kSgd, p.momentum = 0; });
    if (c_.offload == OffloadKind::kNone)
      add("--offload params", "offload",
          [](ParallelConfig& p) { p.offload = OffloadKind::kParameters; });
  }

  void add_fsdp2() {
    if (c_.reshard.kind == Reshard::Kind::kNo || c_.reshard.kind == Reshard::Kind::kGroup)
      add("--reshard true", "resharding", [](ParallelConfig& p) { p.reshard = Reshard::yes(); });
    if (c_.wrap.kind != WrapPolicy::Kind::kBlocks)
      add("--wrap blocks", "wrap", [](ParallelConfig& p) { p.wrap = WrapPolicy{}; });
    if (!c_.wrap.root_split)
      add("--root-split yes", "wrap", [](ParallelConfig& p) { p.wrap.root_split = true; });
    const bool wide_reduce = c_.precision.reduce.value_or(c_.model_dtype) == DType::kFloat32;
    if (wide_reduce && c_.precision.param)
      add("--reduce-dtype bf16", "precision",
          [](ParallelConfig& p) { p.precision.reduce = DType::kBFloat16; });
    if (c_.prefetch_backward != std::optional<std::int64_t>(0))
      add("--prefetch-backward 0", "prefetch", [](ParallelConfig& p) { p.prefetch_backward = 0; });
  }

  const Job& job_;
  const ParallelConfig& c_;
  std::vector<Change> list_;
};

std::vector<PhaseRow> phases_of(const Schedule& schedule, const AllocatorOptions& allocator,
                                std::int64_t rank) {
  ReplayOptions replay;
  replay.allocator = allocator;
  replay.device_memory = VirtualSegmentSource::kUnlimited;
  const MemoryReplay r = replay_memory(schedule.program_for(rank), replay);
  std::vector<PhaseRow> rows{{-1, "init", Bytes(r.init_allocated), Bytes(r.init_reserved)}};
  for (std::size_t s = 0; s < r.steps.size(); ++s) {
    if (s != 0 && s + 1 != r.steps.size()) continue;
    const std::size_t first = rows.size();
    for (const PhasePeaks& p : r.steps[s].phases) {
      const auto known = std::find_if(rows.begin() + static_cast<std::ptrdiff_t>(first), rows.end(),
                                      [&](const PhaseRow& row) { return row.phase == p.phase; });
      if (known == rows.end()) {
        rows.push_back({static_cast<std::int32_t>(s), p.phase, Bytes(p.peak_allocated),
                        Bytes(p.peak_reserved)});
      } else {
        known->allocated = std::max(known->allocated, Bytes(p.peak_allocated));
        known->reserved = std::max(known->reserved, Bytes(p.peak_reserved));
      }
    }
  }
  return rows;
}

}  // namespace

std::string describe_place(const Place& p) {
  if (p.step < 0) return "initialisation";
  std::string out(name_of(p.phase));
  if (!p.module.empty())
    out += " of " + p.module;
  else if (!p.unit.empty())
    out += " of unit " + p.unit;
  return out;
}

MemoryStudy study_memory(const Job& job, const Evaluation& base, const SimulationOptions& options) {
  MemoryStudy study;
  study.phases = phases_of(base.schedule, job.allocator, base.result.memory.rank);
  const double speed_before = base.tokens_per_second_per_gpu();
  for (const Change& change : ChangeList(job).take()) {
    Job changed = job;
    SimulationOptions with = options;
    with.detail = Detail::kTimesOnly;
    change.apply(changed);
    try {
      const Evaluation e = evaluate(changed, with);
      const MemoryResult& m = e.result.memory;
      const double speed = speed_before > 0 ? e.tokens_per_second_per_gpu() / speed_before
                                            : base.result.step_time / e.result.step_time;
      study.changes.push_back({change.text, change.kind, m.allocated_peak, m.reserved_peak,
                               m.device_peak, m.device_peak - base.result.memory.device_peak,
                               e.result.step_time, speed, m.fits, describe_place(m.peak_at)});
    } catch (const InputError&) {
      // The framework or the model refuses this change; it is no advice then.
    }
  }
  std::stable_sort(study.changes.begin(), study.changes.end(),
                   [](const MemoryChange& a, const MemoryChange& b) {
                     return a.device_change < b.device_change;
                   });
  return study;
}

}  // namespace foreshard
