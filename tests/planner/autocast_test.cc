// torch.autocast("cuda"): in which dtype each function runs. The lists: what PyTorch 2.15 does with
// bf16 and fp32 arguments (functions called on CUDA tensors with autocast on; aten/src/ATen/
// autocast_mode.h). Every recorded model of the library is planned under DDP with autocast.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "core/json.h"
#include "models/load_model.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

/// Linear, matrix products, attention, convolutions: the low dtype. (Products that a model asks to
/// leave out of autocast, of rotary tables, are element-wise here.)
const std::set<OpKind> kLow{OpKind::kMatmulBias,      OpKind::kConv2d,
                            OpKind::kConv1dDepthwise, OpKind::kFlashAttention,
                            OpKind::kConv2dBackward,  OpKind::kConv1dDepthwiseBackward};
/// softmax, norm, cumsum, sum, layer_norm, rms_norm, pow, rsqrt, exp, softplus, nll_loss: fp32
/// whatever came in. Integers are not concerned.
const std::set<OpKind> kFloat{OpKind::kSoftmax,   OpKind::kNorm,    OpKind::kCumsum,
                              OpKind::kLayerNorm, OpKind::kRmsNorm, OpKind::kPow,
                              OpKind::kRsqrt,     OpKind::kExp,     OpKind::kSoftplus,
                              OpKind::kNllLoss,   OpKind::kSum};

TEST(Autocast, RunsEachFunctionInPyTorchsDtype) {
  std::map<OpKind, int> met;
  for (const auto& entry :
       fs::directory_iterator(fs::path(FORESHARD_SOURCE_DIR) / "tests/conformance/data/models")) {
    if (entry.path().extension() != ".json") continue;
    SCOPED_TRACE(entry.path().stem().string());
    std::ifstream in(entry.path());
    const Model model =
        model_from_json(Json::parse(in).at("config_json"), entry.path().filename().string());
    for (const AttentionKind attention : {AttentionKind::kFlash, AttentionKind::kEager}) {
      ParallelConfig c;
      c.framework = FrameworkKind::kDdp;
      c.replicate = 2;
      c.sequence = std::max<std::int64_t>(16, model.shortest_sequence);
      c.precision.param = DType::kBFloat16;
      c.autocast = true;
      c.attention = attention;
      PlanOptions options;
      options.executable = false;
      options.steps = 1;
      const Schedule s = plan(model, c, options);
      for (const Launch& l : s.programs[0].launches) {
        if (!is_floating(l.dtype)) continue;
        if (kLow.contains(l.op)) {
          EXPECT_EQ(l.dtype, DType::kBFloat16) << name_of(l.op);
        }
        // Backward sums gradients in their own dtype.
        if (kFloat.contains(l.op) && l.phase == Phase::kForward) {
          EXPECT_EQ(l.dtype, DType::kFloat32) << name_of(l.op);
        }
        ++met[l.op];
      }
    }
  }
  met[OpKind::kRmsNorm] = 1;  // The library writes it out.
  for (const std::set<OpKind>* list : {&kLow, &kFloat})
    for (const OpKind op : *list) EXPECT_GT(met[op], 0) << name_of(op);
}

// Liger-Kernel's fused_linear_cross_entropy.py over fp32 weights: `@` casts both operands, addmm of
// 16-bit operands adds to the fp32 gradient of the weight (out_dtype).
TEST(Autocast, FusedLossMultipliesIn16Bits) {
  ParallelConfig c;
  c.framework = FrameworkKind::kDdp;
  c.replicate = 2;
  c.sequence = 64;
  c.precision.param = DType::kBFloat16;
  c.autocast = true;
  c.loss = LossKind::kFused;
  PlanOptions options;
  options.steps = 1;
  const Schedule s = plan(load_model("llama-tiny"), c, options);
  const RankProgram& p = s.programs[0];
  int products = 0, sums = 0;
  for (const Launch& l : p.launches) {
    if (l.op != OpKind::kMatmul && l.op != OpKind::kMatmulBias) continue;
    EXPECT_EQ(l.dtype, DType::kBFloat16);
    ++products;
    const Tensor& y = p.tensors[p.operands[l.first_operand + l.inputs].value];
    if (l.op == OpKind::kMatmulBias && y.dtype == DType::kFloat32) ++sums;
  }
  EXPECT_GT(products, 0);
  EXPECT_GT(sums, 0);
}

}  // namespace
}  // namespace foreshard
