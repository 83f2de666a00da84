#include "schedules/planner/frameworks/fsdp2_parameter.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/integers.h"
#include "schedules/planner/frameworks/fsdp2_error.h"

namespace foreshard::fsdp2 {

std::optional<DType> ShardedParameter::unsharded_grad_dtype() const {
  if (policy.reduce) return policy.reduce;
  if (grad_policy.set) return grad_policy.dtype;
  return original;
}

void ShardedParameter::resolve_dtypes() {
  gather = policy.param;
  if (gather == original || !is_floating(original)) gather.reset();
}

std::int64_t rows_of(std::int64_t size, std::int64_t ranks, std::int64_t index) {
  const std::int64_t chunk = ceil_div(size, ranks);
  return std::clamp<std::int64_t>(size - chunk * index, 0, chunk);
}

void cut(ShardedParameter& p, Mesh& mesh, int dim) {
  const int rank = p.shape.rank;
  if (dim < 0) dim += rank;
  if (dim < 0 || dim >= rank) {
    throw Fsdp2Error(
        Refusal::kAssertionError, p.name,
        fmt::format("cannot be sharded along dimension {}: it has {} dimensions", dim, rank));
  }
  const std::int64_t size = p.shape[dim];
  if (dim > 0 && size % mesh.shard != 0) {
    throw Fsdp2Error(Refusal::kNotImplementedError, p.name,
                     fmt::format("dimension {} has {} rows, which {} ranks cannot share evenly",
                                 dim, size, mesh.shard),
                     "only dimension 0 may be sharded unevenly");
  }
  p.mesh = &mesh;
  p.shard_dim = dim;
  p.padded_shape = p.local_shape = p.shape;
  p.padded_shape[dim] = ceil_div(size, mesh.shard);
  p.local_shape[dim] = rows_of(size, mesh.shard, mesh.shard_rank);
}

}  // namespace foreshard::fsdp2
