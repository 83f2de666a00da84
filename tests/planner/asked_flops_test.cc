// Model FLOPs of a job with frozen weights: forward, and gradients of inputs; no gradient of a
// frozen weight, although FSDP1's flat parameters compute it.

#include <gtest/gtest.h>

#include "models/load_model.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

double model_flops(FrameworkKind framework, const char* model) {
  ParallelConfig c;
  c.framework = framework;
  c.shard = framework == FrameworkKind::kUnsharded ? 1 : 2;
  c.sequence = 64;
  c.model_dtype = DType::kBFloat16;
  c.fsdp1.use_orig_params = true;
  PlanOptions options;
  options.executable = false;
  Model m = load_model(model);
  m.set_dtype(DType::kBFloat16);
  return plan(m, c, options).model_flops_per_step / static_cast<double>(c.shard);
}

TEST(AskedFlops, OfFrozenWeightsDoNotDependOnTheFramework) {
  const char* const frozen = "llama-tiny?freeze=mlp,self_attn";
  const double one = model_flops(FrameworkKind::kUnsharded, frozen);
  EXPECT_NEAR(model_flops(FrameworkKind::kFsdp2, frozen), one, 1e-9 * one);
  EXPECT_NEAR(model_flops(FrameworkKind::kFsdp1, frozen), one, 1e-9 * one);
  const double trained = model_flops(FrameworkKind::kUnsharded, "llama-tiny");
  EXPECT_NEAR(model_flops(FrameworkKind::kFsdp1, "llama-tiny"), trained, 1e-9 * trained);
  EXPECT_LT(one, trained);
}

}  // namespace
}  // namespace foreshard
