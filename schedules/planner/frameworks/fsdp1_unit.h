#pragma once

// FSDP instances and their flat parameters as constructed, before anything runs. Source of the
// rules: PyTorch 2.15 torch/distributed/fsdp/{_flat_param,_init_utils,wrap,_wrap_utils}.py; rule
// ids F1-G-*, F1-P-*.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "models/module_tree.h"
#include "schedules/planner/config.h"

namespace foreshard::fsdp1 {

using Strategy = Fsdp1Options::Strategy;
using BackwardPrefetch = Fsdp1Options::BackwardPrefetch;

/// A parameter in a flat parameter, or a run of padding before one (F1-P-2).
struct FlatEntry {
  ParameterId id;    ///< Invalid: padding.
  std::string name;  ///< Fully qualified, of its first place in the unit.
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0, offset = 0;  ///< Elements in the flat parameter.
  bool trainable = true;
  /// Modules of the unit that use it and their name for it; the first one stores it, the others
  /// share it (F1-G-6).
  std::vector<std::pair<ModuleId, std::string>> places;
  bool is_padding() const { return !id.valid(); }
};

/// FlatParameter: all parameters of one instance in one vector, cut into equal shards.
struct FlatLayout {
  std::vector<FlatEntry> entries;   ///< In order of the flat parameter.
  std::vector<std::int64_t> sizes;  ///< Elements of every entry.
  std::int64_t numel = 0;           ///< N: with alignment padding if original parameters are used.
  std::int64_t padded = 0;          ///< Np = S * W (NO_SHARD: N).
  std::int64_t shard = 0;           ///< S: elements that one rank stores, padding included.
  std::int64_t ranks = 1;           ///< W: size of the shard group.
  DType dtype = DType::kFloat32;    ///< Of the parameters as built.
  DType forward_dtype = DType::kFloat32;  ///< Gathered and computed in.
  DType reduce_dtype = DType::kFloat32;
  bool trainable = true;  ///< Any parameter asks for a gradient.

  /// Part of entry `e` that rank `rank` of the shard group stores: first element in the parameter,
  /// in the shard, count.
  struct Part {
    std::int64_t first = 0, offset = 0, numel = 0;
  };
  Part part_of(const FlatEntry& e, std::int64_t rank) const;
};

/// One FSDP(module, ...) instance.
struct Unit {
  ModuleId module;
  std::string name;                          ///< Of the module; "" is the root.
  Strategy strategy = Strategy::kFullShard;  ///< NO_SHARD if the shard group has one rank (F1-W1).
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  bool mixed = false;        ///< A MixedPrecision was given and not overridden (F1-G-5).
  MixedPrecision precision;  ///< All absent if not `mixed`.
  bool keep_low_precision_grads = false,
       cast_forward_inputs = false;  ///< Fields of its MixedPrecision too.
  bool full_precision_class =
      false;  ///< Its class is kept in full precision: inputs to fp32, outputs back.
  std::optional<FlatLayout> flat;        ///< Absent: no parameters left for it, no handle (F1-G-1).
  double predivide = 1, postdivide = 1;  ///< F1-B-7.

  bool sharded() const { return strategy != Strategy::kNoShard; }
  bool hybrid() const {
    return strategy == Strategy::kHybrid || strategy == Strategy::kHybridZero2;
  }
  /// RESHARD_AFTER_FORWARD_HANDLE_STRATEGIES.
  bool reshards_after_forward() const {
    return strategy == Strategy::kFullShard || strategy == Strategy::kHybrid;
  }
};

}  // namespace foreshard::fsdp1
