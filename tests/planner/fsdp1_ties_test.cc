// A head tied to the embedding, each in a unit of its own. Recorded of PyTorch 2.15 for every
// strategy: with original parameters the head keeps the parameter object, whose data is the flat
// shard of the embedding's unit, so its product fails ("size mismatch, got input (900), mat
// (900x160), vec (81920)"), also where the embedding's unit stays gathered; an uncut parameter
// works. Without original parameters both units store it.

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "models/plain/plain_models.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

using Strategy = Fsdp1Options::Strategy;

/// Empty: it is planned.
std::string refusal(Strategy strategy, bool originals, bool split) {
  PlainModelOptions o;
  o.layers = 2;
  o.hidden = 160;
  o.heads = 4;
  o.vocabulary = 4096;
  o.tied = true;
  ParallelConfig c;
  c.framework = FrameworkKind::kFsdp1;
  c.shard = 4;
  if (strategy == Strategy::kHybrid || strategy == Strategy::kHybridZero2) c.replicate = 2;
  c.precision = MixedPrecision{};
  c.sequence = 64;
  c.wrap.root_split = split;
  c.fsdp1.strategy = strategy;
  c.fsdp1.use_orig_params = originals;
  PlanOptions options;
  options.executable = false;
  try {
    plan(plain_llama(o), c, options);
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

TEST(Fsdp1Ties, OriginalParametersOfAnotherUnitAreItsShards) {
  for (const Strategy s : {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kHybrid,
                           Strategy::kHybridZero2}) {
    const std::string what = refusal(s, true, true);
    EXPECT_NE(what.find("tied across units"), std::string::npos) << static_cast<int>(s) << what;
    EXPECT_NE(what.find("output"), std::string::npos) << what;
    EXPECT_EQ(refusal(s, false, true), "") << static_cast<int>(s);
    EXPECT_EQ(refusal(s, true, false), "") << static_cast<int>(s);
  }
  EXPECT_EQ(refusal(Strategy::kNoShard, true, true), "");
}

}  // namespace
}  // namespace foreshard
