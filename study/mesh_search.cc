#include "study/mesh_search.h"

namespace foreshard {

std::optional<Mesh> best_mesh(std::int64_t gpus, std::int64_t gpus_per_node,
                              double sharded_over_all, const MeshSpeed& speed) {
  if (gpus_per_node < 1 || gpus <= gpus_per_node || gpus % gpus_per_node != 0) return std::nullopt;
  std::optional<Mesh> best;
  double most = sharded_over_all;
  const auto pays = [&](Mesh mesh) {
    const std::optional<double> here = speed(mesh);
    if (!here || *here <= most) return false;
    best = mesh;
    most = *here;
    return true;
  };
  const std::int64_t nodes = gpus / gpus_per_node;
  std::int64_t copies = 2;
  while (copies < nodes && nodes % copies == 0 && pays({gpus / copies, copies})) copies *= 2;
  if (copies <= nodes) pays({gpus_per_node, nodes});
  return best;
}

}  // namespace foreshard
