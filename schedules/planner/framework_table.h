#pragma once

// Every framework with what the rest of the program has to know of it: one row each. Whoever asks
// "is it one of those that ...?" asks a row here, not a list of kinds of its own.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "schedules/planner/config.h"

namespace foreshard {

class Framework;

/// Which ranks hold what.
enum class RankLayout : std::uint8_t {
  kOneDevice,  ///< One rank, nothing is communicated.
  kCopies,     ///< Every rank holds the whole model: world = replicate, shard = 1.
  kShards,     ///< Sharded over all ranks; copies of the shards are refused.
  kMesh        ///< shard x replicate.
};

/// What one unit of parameters, as --wrap names it, may consist of.
enum class UnitForm : std::uint8_t {
  kNone,         ///< The framework forms no units.
  kModule,       ///< One module each (FSDP1).
  kModuleGroup,  ///< One or several modules called one after another (FSDP2).
};

/// How a user says whether gathered parameters are freed after forward.
enum class ReshardChoice : std::uint8_t {
  kNone,
  kReshard,   ///< --reshard.
  kStrategy,  ///< --fsdp1-strategy: full_shard or shard_grad_op, and their hybrid forms.
};

/// Where the dtypes of compute and optimizer come from.
enum class PrecisionRule : std::uint8_t {
  kParameters,  ///< The parameters' own dtype, gradients reduced in it; another compute is
                ///< autocast.
  kMixed,       ///< Compute and reduction have dtypes beside the parameters' own.
  kMasters,     ///< 16-bit parameters and fp32 master copies that the framework makes.
};

/// The parameters' dtype, or the one to compute in instead.
DType asked_compute_dtype(const ParallelConfig& config);

struct FrameworkRow {
  FrameworkKind kind;
  std::string_view name;   ///< --framework.
  std::string_view title;  ///< As people write it.
  RankLayout ranks = RankLayout::kMesh;
  UnitForm units = UnitForm::kNone;
  bool root_split = false;  ///< Recipes give embedding and head units of their own.
  ReshardChoice reshard = ReshardChoice::kNone;
  PrecisionRule precision = PrecisionRule::kMixed;
  /// What it can keep in host memory, the largest last; empty: nothing.
  std::span<const OffloadKind> offloads = {};
  std::string_view offload_hint = {};  ///< Said when another is asked for.
  /// Of kMasters: it casts a model of any dtype itself; otherwise the script builds the model in
  /// the compute dtype.
  bool casts_model = true;
  bool sync_choice = true;    ///< A user may leave gradients unreduced until the last micro-batch.
  bool module_hooks = false;  ///< Hooks around modules, which a checkpoint can enclose.
  bool checkpoint_outside = false;  ///< Recipes write checkpoint(unit(module)).
  bool dtensor = false;  ///< Parameters are DTensors, which slow the optimizer's host down.
  /// DeepSpeed's engine: it divides the loss by the micro-batches and takes its CPU Adam for
  /// offloaded states.
  bool deepspeed = false;
  bool calibrated = true;  ///< Among the measured runs that step times are calibrated against.
  /// Steps until the last one written repeats: optimizer states are made in the first.
  std::int64_t (*steady_steps)(const ParallelConfig&) = nullptr;
  /// Of the matrix products of forward.
  DType (*compute_dtype)(const ParallelConfig&) = asked_compute_dtype;
  /// What gradients are reduced in.
  DType (*reduction_dtype)(const ParallelConfig&) = nullptr;
  std::unique_ptr<Framework> (*make)(const ParallelConfig&) = nullptr;

  bool forms_units() const { return units != UnitForm::kNone; }
  /// Every rank holds all parameters between steps.
  bool whole_copies() const {
    return ranks == RankLayout::kOneDevice || ranks == RankLayout::kCopies;
  }
  bool can_offload(OffloadKind kind) const;
};

/// In the order of FrameworkKind.
std::span<const FrameworkRow> frameworks();
const FrameworkRow& row_of(FrameworkKind kind);
/// By its name on the command line; nullptr if there is none.
const FrameworkRow* find_framework(std::string_view name);

}  // namespace foreshard
