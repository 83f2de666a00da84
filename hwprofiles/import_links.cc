#include "hwprofiles/import_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace foreshard {
namespace {

/// "GPU3 has 17 NVLinks, others up to 18: 17 taken for all"
void take_weakest(const std::vector<int>& links_of_gpu, ImportedTopology& t) {
  const auto [least, most] = std::minmax_element(links_of_gpu.begin(), links_of_gpu.end());
  t.links_per_gpu = *least;
  if (*least == *most) return;
  std::vector<std::string> weakest;
  for (std::size_t g = 0; g < links_of_gpu.size(); ++g)
    if (links_of_gpu[g] == *least) weakest.push_back(fmt::format("GPU{}", g));
  t.notes.push_back(fmt::format("{} {} {} NVLinks, others up to {}: {} taken for all",
                                fmt::join(weakest, ", "), weakest.size() == 1 ? "has" : "have",
                                *least, *most, *least));
}

bool only_pairs(const std::vector<MeshEdge>& mesh) {
  return std::all_of(mesh.begin(), mesh.end(),
                     [](const MeshEdge& e) { return e.a % 2 == 0 && e.b == e.a + 1; });
}

}  // namespace

void settle_links(const std::vector<int>& links_of_gpu, bool switched, ImportedTopology& t) {
  const int most = *std::max_element(links_of_gpu.begin(), links_of_gpu.end());
  const bool pairs = !switched && most > 0 && only_pairs(t.mesh);
  if (switched) t.fabric = FabricKind::kNvSwitch;
  if (pairs) t.fabric = FabricKind::kNvLinkPairs;
  if (switched || pairs) {
    take_weakest(links_of_gpu, t);
    t.mesh.clear();
    if (t.links_per_gpu == 0) {
      t.fabric = FabricKind::kPcie;
      t.notes.push_back("not every GPU has a link: a PCIe node, whose linked GPUs can do more");
    }
  } else if (most > 0) {
    t.fabric = FabricKind::kNvLinkMesh;
    t.links_per_gpu = most;
  }
}

}  // namespace foreshard
