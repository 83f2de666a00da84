// What a plan says of a job that PyTorch accepts and does not train as it reads (recorded: the
// copies of a hybrid job with shard groups of one rank drift apart).

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/json.h"
#include "models/freeze.h"
#include "models/load_model.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

std::vector<std::string> remarks_on(ParallelConfig c) {
  c.framework = FrameworkKind::kFsdp1;
  c.sequence = 16;
  PlanOptions options;
  options.executable = false;
  return plan(load_model("llama-tiny"), c, options).remarks;
}

TEST(Remarks, CopiesThatAreNeverReduced) {
  ParallelConfig c;
  c.shard = 2;
  c.replicate = 2;
  c.fsdp1.strategy = Fsdp1Options::Strategy::kHybrid;
  EXPECT_TRUE(remarks_on(c).empty());
  c.shard = 1;
  c.replicate = 4;
  ASSERT_EQ(remarks_on(c).size(), 1u);
  EXPECT_NE(remarks_on(c)[0].find("never reduces"), std::string::npos);
}

TEST(Remarks, OffloadedGradientsOfSeveralMicroBatches) {
  ParallelConfig c;
  c.shard = 4;
  c.accumulate = 2;
  EXPECT_TRUE(remarks_on(c).empty());
  c.offload = OffloadKind::kParameters;
  ASSERT_EQ(remarks_on(c).size(), 1u);
  EXPECT_NE(remarks_on(c)[0].find("outside no_sync()"), std::string::npos);
  c.sync_each_micro_batch = false;
  EXPECT_TRUE(remarks_on(c).empty());
}

// torch.utils.checkpoint with use_reentrant: a block whose inputs take no gradient runs under
// no_grad and is never run again. Behind a frozen embedding only the last norm and the head train:
// of llama-tiny's 21 parameters (2 blocks of 9, embedding, norm, head) 20 are trainable and 18 get
// nothing. Where the embedding trains, all do.
TEST(Remarks, TrainableParametersWithoutGradient) {
  const Model whole = load_model("llama-tiny");
  Model frozen = whole;
  freeze(frozen, {"embed_tokens"});
  std::int64_t trainable = 0, in_blocks = 0;
  for (const ParameterDef& p : frozen.parameters) {
    trainable += p.trainable ? 1 : 0;
    in_blocks += p.name.find("layers.") != std::string::npos ? 1 : 0;
  }
  const std::string told =
      std::to_string(in_blocks) + " of " + std::to_string(trainable) + " trainable parameters";
  for (const FrameworkKind f : {FrameworkKind::kUnsharded, FrameworkKind::kFsdp2,
                                FrameworkKind::kFsdp1, FrameworkKind::kZero1, FrameworkKind::kZero2,
                                FrameworkKind::kZero3, FrameworkKind::kShardedOptimizer}) {
    ParallelConfig c;
    c.framework = f;
    c.shard = f == FrameworkKind::kUnsharded ? 1 : 2;
    c.sequence = 16;
    c.checkpoint = CheckpointKind::kFull;
    c.checkpoint_reentrant = true;
    PlanOptions options;
    options.executable = false;
    const auto untrained = [&](const Model& m, const ParallelConfig& config) {
      std::string found;
      for (const std::string& r : plan(m, config, options).remarks)
        if (r.find("get no gradient") != std::string::npos) found += r;
      return found;
    };
    EXPECT_EQ(untrained(whole, c), "") << static_cast<int>(f);
    EXPECT_EQ(untrained(frozen, c).find(told), 0u) << static_cast<int>(f);
    c.checkpoint_reentrant = false;
    EXPECT_EQ(untrained(frozen, c), "") << static_cast<int>(f);
    c.checkpoint = CheckpointKind::kNone;
    EXPECT_EQ(untrained(whole, c), "") << static_cast<int>(f);
  }
}

// LLaVA takes the features of the last vision block but one: DDP's refusal counts the 16 parameters
// of the last and the 2 of the norm behind it, in the tiny tower as in the real one.
TEST(Remarks, ParametersOnWhichTheLossDoesNotDepend) {
  const auto path =
      std::filesystem::path(FORESHARD_SOURCE_DIR) / "tests/conformance/data/models/llava-0.json";
  std::ifstream in(path);
  Json config = Json::parse(in).at("config_json");
  config["vision_feature_layer"] = -2;
  config["vision_config"]["num_hidden_layers"] = 5;
  ParallelConfig c;
  c.shard = 2;
  c.sequence = 1024;
  PlanOptions options;
  options.executable = false;
  std::string said;
  for (const std::string& r : plan(model_from_json(config, "llava"), c, options).remarks) said += r;
  EXPECT_EQ(said.find("18 of "), 0u) << said;
}

}  // namespace
}  // namespace foreshard
