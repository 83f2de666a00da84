#pragma once

// One parameter under FSDP2: how it is cut over a mesh, and in which dtypes it is gathered,
// computed with and reduced.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/module_tree.h"
#include "schedules/planner/config.h"
#include "schedules/planner/host/tensor.h"
#include "schedules/schedule.h"

namespace foreshard::fsdp2 {

/// The ranks over which a group shards and, with HSDP, replicates. Compared by address: one object
/// for each mesh that a user would make.
struct Mesh {
  GroupId shard_group, replicate_group;
  std::int64_t shard = 1, shard_rank = 0;
  std::int64_t replicate = 1;
  bool replicated = false;  ///< 2-D mesh: gradients are all-reduced over replicate_group (F2-AR-1).
};

/// Policy that the user set for one gradient: not set (follows the parameter), or set to a dtype or
/// to "unrestricted".
struct GradDtypePolicy {
  bool set = false;
  std::optional<DType> dtype;  ///< With `set`: absent = whatever autograd produces.
};

struct ShardedParameter {
  ParameterId id;
  /// By the first module of the group that owns it; text of the Model or of the Wrapping.
  std::string_view name;
  std::vector<std::string> also;  ///< Further places of the same parameter in the group (F2-G-6).
  Shape shape;
  bool trainable = true;  ///< Of the sharded parameter; may change while training.
  Mesh* mesh = nullptr;
  int shard_dim = 0;   ///< F2-P-1, F2-P-3.
  Shape local_shape;   ///< This rank's part, without padding.
  Shape padded_shape;  ///< Of every rank's part, padded (F2-P-2).
  bool offload = false;
  bool keep_unsharded_storage = false;
  bool float8 = false;  ///< Gathered in 8 bits with a scale (fsdp2_float8.cc).

  // Dtypes, resolved when the root first runs (F2-MP-1, F2-RS-6).
  MixedPrecision policy;
  DType original = DType::kFloat32;
  std::optional<DType> gather;  ///< Dtype to cast to before the all-gather; absent: none needed.
  GradDtypePolicy grad_policy;

  std::int64_t numel() const { return shape.numel(); }
  std::int64_t local_numel() const { return local_shape.numel(); }
  std::int64_t padded_local_numel() const { return padded_shape.numel(); }
  std::int64_t padded_numel() const { return padded_local_numel() * mesh->shard; }
  DType compute_dtype() const { return gather.value_or(original); }
  /// Dtype in which the unsharded gradient is kept; absent: unrestricted (F2-AC-1, F2-RS-2).
  std::optional<DType> unsharded_grad_dtype() const;
  /// Dtype of the sharded gradient; absent: unrestricted.
  std::optional<DType> sharded_grad_dtype() const {
    return grad_policy.set ? grad_policy.dtype : std::optional(original);
  }
  /// Clamps the policy's dtypes to what this parameter needs.
  void resolve_dtypes();
};

/// Rows that rank `index` of `ranks` holds of `size` (F2-P-1).
std::int64_t rows_of(std::int64_t size, std::int64_t ranks, std::int64_t index);

/// Cuts a parameter over `mesh` along `dim` (negative counts from the end). Fsdp2Error where
/// PyTorch refuses (F2-P-3).
void cut(ShardedParameter& p, Mesh& mesh, int dim);

}  // namespace foreshard::fsdp2
