#pragma once

// What should we buy? Hardware x GPU counts x micro-batches x checkpointing for one model and token
// budget.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/units.h"
#include "study/job.h"

namespace foreshard {

struct SizeQuestion {
  Job job;  ///< Model and training; hardware and GPUs are varied.
  std::vector<HardwareProfile> hardware;
  /// Empty: one node, doubled up to 512 GPUs; with a deadline also the fewest whole nodes between
  /// the last doubling that misses it and the first that meets it.
  std::vector<std::int64_t> gpus;
  /// Empty: 1, 2, 4 and so on while a doubling fits and is worth 2 %; then the largest that leaves
  /// headroom between the last that does and the first that does not.
  /// With a global batch: the divisors of each GPU's share.
  std::vector<std::int64_t> micro_batches;
  std::vector<CheckpointKind> checkpoints;  ///< Empty: the job's.
  /// Sequences of one optimizer step, on any number of GPUs: the job's accumulation follows. Sizes
  /// that do not divide it are refused in their row.
  std::optional<std::int64_t> global_batch;
  /// Ranks of a shard group and copies, where they were asked for: HSDP's other number follows from
  /// the GPUs. Without either the shard group is all GPUs, or the one that best_mesh() finds if
  /// that is worth 2 %.
  std::optional<std::int64_t> shard, replicate;
  double tokens = 0;  ///< Budget; 0: no days and prices.
  std::optional<double> deadline_days;
  std::map<std::string, double> prices;  ///< USD per GPU-hour by hardware or GPU name.
};

/// The best micro-batch and checkpointing of one machine and size.
struct SizeRow {
  std::string hardware;
  std::int64_t gpus = 1, micro_batch = 1, accumulate = 1;
  std::int64_t billed_gpus = 1;  ///< Of whole nodes.
  std::int64_t nodes = 1;
  std::int64_t global_batch = 1;          ///< Sequences of one optimizer step.
  std::int64_t shard = 1, replicate = 1;  ///< Ranks of a shard group, and copies.
  CheckpointKind checkpoint_kind = CheckpointKind::kNone;
  std::string checkpoint;  ///< As the option says it: "none", "full".
  bool refused = false;    ///< Not asked of the machine: see `note`.
  bool fits = false;
  Time step;
  Time p10, p90;  ///< Of the step, for the rows that the result names; 0 for all others.
  std::vector<std::string> outside;  ///< Why it lies outside what was calibrated; empty: inside.
  double tokens_per_s_per_gpu = 0;   ///< 0 for a model without tokens.
  double samples_per_s_per_gpu = 0, mfu = 0;
  std::int64_t retries = 0;  ///< Of the allocator, in all simulated steps: fits, but borderline.
  std::int64_t step_retries = 0;  ///< In the last of them.
  bool tight = false;             ///< Fits, but leaves less free than advice does (headroom.h).
  Bytes memory, capacity;
  double days = 0, gpu_hours = 0;
  std::optional<double> price;
  bool meets_deadline = false;
  std::string limited_by;  ///< Largest resource on the critical path.
  std::string note;        ///< Why it does not fit, or what was refused.
};

struct SizeResult {
  std::vector<SizeRow> rows;            ///< By hardware as given, then by GPUs.
  std::optional<std::size_t> smallest;  ///< Fewest GPUs that meet the deadline; then the cheapest.
  std::optional<std::size_t>
      cheapest;  ///< Lowest price that meets the deadline (or at all without one).
  std::optional<std::size_t> fastest;
  std::string ways_to_fit;  ///< Where no row fits well: what else the last one could do.
};

/// Whether a price under this name is the machine's: by its own name, an alias, or its GPU's.
bool prices_machine(const std::string& name, const HardwareProfile& hardware);

SizeResult size(const SizeQuestion& question, const std::function<void(int, int)>& progress = {});

}  // namespace foreshard
