#pragma once

#include <vector>

#include "hwprofiles/import_topology.h"

namespace foreshard {

/// Fabric and links of an imported node from `t.mesh` (all point-to-point links, emptied where the
/// fabric needs none) and the links of each GPU. A node is as good as its weakest GPU: rings go
/// through all of them. What is left out of the stronger ones goes to the notes.
void settle_links(const std::vector<int>& links_of_gpu, bool switched, ImportedTopology& t);

}  // namespace foreshard
