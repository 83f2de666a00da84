#pragma once

#include "conformance/fsdp2_events.h"
#include "core/json_fwd.h"
#include "schedules/planner/frameworks/fsdp2.h"
#include "schedules/planner/training_run.h"

namespace foreshard {

/// Calls of a case on wrapped modules: `{"call": "set_unshard_in_backward", "module": "embed",
/// "args": [false]}`.
class Fsdp2Script {
 public:
  Fsdp2Script(fsdp2::Fsdp2& framework, TrainingRun& run, Fsdp2Events& events, const Model& model)
      : framework_(framework), run_(run), events_(events), model_(model) {}

  void apply(const Json& call);
  /// `{"forward": {module: [modules]}, "backward": {...}}`.
  void apply_prefetch(const Json& lists);

 private:
  std::vector<ModuleId> targets(const Json& call) const;
  void apply_to(ModuleId target, const std::string& name, const Json& args, const Json& kwargs);
  void apply_special(const std::string& name, const Json& call);
  void forward_alone(const Json& call);
  ModuleId module(const std::string& name) const;

  fsdp2::Fsdp2& framework_;
  TrainingRun& run_;
  Fsdp2Events& events_;
  const Model& model_;
};

}  // namespace foreshard
