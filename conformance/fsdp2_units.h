#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/json.h"
#include "schedules/planner/frameworks/fsdp2.h"

namespace foreshard {

/// What the units table says beyond the wrapping itself.
struct UnitFacts {
  std::string optimizer = "adamw";
  std::set<ParameterId> optimized;  ///< Parameters with optimizer state.
  bool reshard_captured = false;
  std::vector<Json> reshard;  ///< Per group, at the end of the first forward.

  void capture_reshard(const fsdp2::Fsdp2& framework);
};

/// `units` of the recordings, in wrap order.
Json describe_units(const fsdp2::Fsdp2& framework, const Model& model, const UnitFacts& facts);
/// `buffers` of the recordings; a checkpoint wrapper adds its own level to the names below it.
Json describe_buffers(const Model& model, const std::vector<std::string>& checkpointed);

}  // namespace foreshard
