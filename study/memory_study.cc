#include "study/memory_study.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"
#include "memory/virtual_segment_source.h"
#include "schedules/planner/framework_table.h"
#include "study/job_change.h"
#include "study/memory_replay.h"

namespace foreshard {
namespace {

struct Change {
  JobChange change;
  std::string kind;
};

class ChangeList {
 public:
  explicit ChangeList(const Job& job)
      : job_(job), c_(job.config), framework_(row_of(job.config.framework)) {
    add_batch();
    add_checkpointing();
    add_loss();
    add_optimizer();
    if (framework_.forms_units()) add_units();
    if (framework_.units == UnitForm::kModuleGroup) add_module_groups();
    if (c_.replicate > 1 && c_.shard > 1) add(change::mesh(job, c_.world(), 1), "sharding");
    if (!job.allocator.expandable_segments) add(change::expandable_segments(), "allocator");
  }
  std::vector<Change> take() { return std::move(list_); }

 private:
  void add(JobChange change, std::string kind) {
    list_.push_back({std::move(change), std::move(kind)});
  }

  void add_batch() {
    if (c_.micro_batch > 1) add(change::micro_batch(c_.micro_batch / 2), "micro-batch");
    if (c_.accumulate > 1 && !c_.sync_each_micro_batch)
      add(change::sync_each_micro_batch(true), "accumulation");
  }

  void add_checkpointing() {
    if (c_.checkpoint == CheckpointKind::kFull) return;
    add(change::full_checkpoint(), "checkpointing");
    if (c_.checkpoint != CheckpointKind::kNone) return;
    add(change::checkpoint_every(2), "checkpointing");
    add(change::selective_checkpoint(), "checkpointing");
  }

  void add_loss() {
    if (c_.loss == LossKind::kCrossEntropyFloat) add(change::loss(LossKind::kCrossEntropy), "loss");
    if (c_.loss != LossKind::kChunked && c_.loss != LossKind::kFused)
      add(change::loss(LossKind::kChunked), "loss");
    if (c_.loss != LossKind::kFused) add(change::loss(LossKind::kFused), "loss");
  }

  void add_optimizer() {
    if (c_.optimizer == OptimizerKind::kAdamWForeach ||
        c_.optimizer == OptimizerKind::kAdamWForLoop)
      add(change::optimizer(OptimizerKind::kAdamWFused), "optimizer");
    if (c_.optimizer != OptimizerKind::kSgd && c_.optimizer != OptimizerKind::kNone)
      add(change::optimizer(OptimizerKind::kSgd), "optimizer");
    if (c_.offload != OffloadKind::kNone) return;
    for (const OffloadKind kind : framework_.offloads) add(change::offload(kind), "offload");
  }

  bool keeps_gathered() const {
    using Strategy = Fsdp1Options::Strategy;
    if (framework_.reshard == ReshardChoice::kStrategy)
      return c_.fsdp1.strategy == Strategy::kShardGradOp ||
             c_.fsdp1.strategy == Strategy::kHybridZero2;
    return c_.reshard.kind == Reshard::Kind::kNo || c_.reshard.kind == Reshard::Kind::kGroup;
  }

  void add_units() {
    if (keeps_gathered()) add(change::resharding(job_, true), "resharding");
    if (c_.wrap.kind != WrapPolicy::Kind::kBlocks) add(change::wrap({}), "wrap");
    if (!c_.wrap.root_split) add(change::root_split(true), "wrap");
    const bool wide_reduce = c_.precision.reduce.value_or(c_.model_dtype) == DType::kFloat32;
    if (wide_reduce && c_.precision.param) add(change::reduce_dtype(DType::kBFloat16), "precision");
  }

  void add_module_groups() {
    if (c_.prefetch_backward != std::optional<std::int64_t>(0))
      add(change::prefetch_backward(0), "prefetch");
  }

  const Job& job_;
  const ParallelConfig& c_;
  const FrameworkRow& framework_;
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
  for (const Change& c : ChangeList(job).take()) {
    Job changed = job;
    SimulationOptions with = options;
    with.detail = Detail::kTimesOnly;
    c.change.apply(changed);
    try {
      const Evaluation e = evaluate(changed, with);
      const MemoryResult& m = e.result.memory;
      const double speed = speedup(job, base, changed, e);
      study.changes.push_back({c.change.options, c.kind, m.allocated_peak, m.reserved_peak,
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
