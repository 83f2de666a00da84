#pragma once

// Which hybrid sharding (HSDP) is worth it: shard groups smaller than all GPUs, and their copies.

#include <cstdint>
#include <functional>
#include <optional>

namespace foreshard {

struct Mesh {
  std::int64_t shard = 1, replicate = 1;
};

/// Speed of a job on a mesh, samples per second; nothing where it does not fit or is refused.
using MeshSpeed = std::function<std::optional<double>(Mesh)>;

/// The fastest mesh that is faster than `sharded_over_all`, the speed with one copy. Copies double
/// while that pays: rings over fewer nodes have less latency, all-reduces between copies more
/// bytes, so that the speed has one maximum. One node as the shard group is tried in any case: its
/// gathers leave the network alone.
std::optional<Mesh> best_mesh(std::int64_t gpus, std::int64_t gpus_per_node,
                              double sharded_over_all, const MeshSpeed& speed);

}  // namespace foreshard
