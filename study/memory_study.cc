#include "study/memory_study.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"
#include "schedules/planner/framework_table.h"
#include "sim/hardware_cost.h"
#include "study/job_change.h"

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
    if (!c_.compile) add(change::compile(), "compilation");
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
    if (framework_.reshard == ReshardChoice::kStrategy)
      return foreshard::keeps_gathered(c_.fsdp1.strategy);
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

/// Highest memory of each phase, from the memory curve of one rank.
class PhaseTable {
 public:
  PhaseTable(const RankProgram& program, const Trace& trace, std::int64_t rank)
      : program_(program) {
    for (const MemorySample& m : trace.memory)
      if (m.rank == rank) samples_.push_back(&m);
    std::stable_sort(
        samples_.begin(), samples_.end(),
        [](const MemorySample* a, const MemorySample* b) { return a->step < b->step; });
  }

  /// Of the initialisation and all simulated steps.
  std::vector<PhaseRow> rows() {
    open(-1, "init");
    std::int32_t last = -1;
    for (const MemorySample* m : samples_) last = std::max(last, m->step);
    run_until(-1, UINT32_MAX);
    for (std::int32_t step = 0; step <= last && !program_.steps.empty(); ++step) add_step(step);
    return std::move(rows_);
  }

 private:
  /// What stands before the first phase of a step counts with it.
  void add_step(std::int32_t step) {
    const std::size_t written =
        std::min<std::size_t>(static_cast<std::size_t>(step), program_.steps.size() - 1);
    const auto [begin, end] = std::pair(program_.steps[written].begin, program_.steps[written].end);
    bool any = false;
    for (std::uint32_t i = begin; i < end; ++i) {
      if (program_.instructions[i].kind != InstructionKind::kMark) continue;
      const Mark& mark = program_.marks[program_.instructions[i].id];
      if (mark.kind != MarkKind::kPhase || !mark.begin) continue;
      if (std::exchange(any, true)) run_until(step, i);
      open(step,
           std::string(name_of(mark.phase == Phase::kRecompute ? Phase::kBackward : mark.phase)));
    }
    run_until(step, UINT32_MAX);
  }

  void run_until(std::int32_t step, std::uint32_t instruction) {
    for (; next_ < samples_.size(); ++next_) {
      const MemorySample& m = *samples_[next_];
      if (m.step > step || (m.step == step && m.instruction >= instruction)) return;
      now_ = {m.allocated, m.reserved};
      note();
    }
  }

  void open(std::int32_t step, const std::string& phase) {
    const auto known = std::find_if(rows_.begin(), rows_.end(), [&](const PhaseRow& row) {
      return row.step == step && row.phase == phase;
    });
    row_ = static_cast<std::size_t>(known - rows_.begin());
    if (known == rows_.end()) rows_.push_back({step, phase, Bytes(0), Bytes(0)});
    note();
  }

  void note() {
    rows_[row_].allocated = std::max(rows_[row_].allocated, now_.first);
    rows_[row_].reserved = std::max(rows_[row_].reserved, now_.second);
  }

  const RankProgram& program_;
  std::vector<const MemorySample*> samples_;
  std::size_t next_ = 0, row_ = 0;
  std::pair<Bytes, Bytes> now_{Bytes(0), Bytes(0)};  ///< Allocated, reserved.
  std::vector<PhaseRow> rows_;
};

/// Initialisation, first and last step, and the step of the peak; of the run that gave the answer,
/// on the same device.
std::vector<PhaseRow> phases_of(const Job& job, const Evaluation& base,
                                const SimulationOptions& options) {
  std::optional<SimulationResult> traced;
  if (!base.result.trace) {
    SimulationOptions with = options;
    with.detail = Detail::kTrace;
    traced = settled_run(job, Simulator(base.schedule), with);
  }
  const Trace& trace = traced ? *traced->trace : *base.result.trace;
  const MemoryResult& m = base.result.memory;
  std::vector<PhaseRow> rows = PhaseTable(base.schedule.program_for(m.rank), trace, m.rank).rows();
  const std::int32_t last = rows.empty() ? -1 : rows.back().step;
  std::erase_if(rows, [&](const PhaseRow& row) {
    return row.step > 0 && row.step != last && row.step != m.peak_at.step;
  });
  return rows;
}

/// Saving stands where the steps end, beside the same context and communicators.
std::vector<CheckpointRow> checkpoints_of(const Job& job, const Evaluation& base) {
  const MemoryResult& m = base.result.memory;
  CheckpointSetting setting;
  setting.allocator = job.allocator;
  setting.device_memory = m.capacity - m.context - m.communicators;
  setting.ranks_per_node =
      std::min<std::int64_t>(base.schedule.world, job.hardware.gpus_per_node());
  if (job.hardware.node.host_memory.known())
    setting.host_memory = Bytes(static_cast<std::int64_t>(job.hardware.node.host_memory.value));
  return study_checkpoints(*job.model, job.config, base.schedule.program_for(m.rank), setting);
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
  study.phases = phases_of(job, base, options);
  study.checkpoints = checkpoints_of(job, base);
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
