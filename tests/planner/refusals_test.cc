// Jobs that eager PyTorch refuses in the middle of a step: the plan ends with the reason, whatever
// is half done.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/json.h"
#include "models/load_model.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

Model llava() {
  const auto path = std::filesystem::path(FORESHARD_SOURCE_DIR) /
                    "tests/conformance/data/models/llava-0.json";
  std::ifstream in(path);
  Json config = Json::parse(in).at("config_json");
  config["vision_feature_layer"] = -2;
  config["vision_config"]["num_hidden_layers"] = 4;
  return model_from_json(config, "llava");
}

// LLaVA takes the features of the last vision block but one: the last one has no gradient. In a unit
// of both the hook before backward hangs on the output of the last, so the one before meets its
// parameters released.
TEST(Refusals, EndAPlanInTheBackwardOfCheckpointedBlocks) {
  const Model model = llava();
  for (const CheckpointKind kind : {CheckpointKind::kNone, CheckpointKind::kFull,
                                    CheckpointKind::kEveryK, CheckpointKind::kSelectiveOp}) {
    ParallelConfig c;
    c.shard = 2;
    c.sequence = 1024;
    c.wrap.kind = WrapPolicy::Kind::kEveryK;
    c.wrap.every = 2;
    c.checkpoint = kind;
    c.checkpoint_every = 2;
    PlanOptions options;
    options.executable = false;
    EXPECT_THROW(plan(model, c, options), InputError);
  }
}

}  // namespace
}  // namespace foreshard
