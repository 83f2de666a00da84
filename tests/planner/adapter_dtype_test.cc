// LoRA under the frameworks, in the dtypes that PEFT's adapters have: which are gathered, reduced
// and refused. Sources: real PEFT 0.21 on PyTorch 2.15's FSDP2 and FSDP1 (bf16 base, autocast off
// and on), torch/distributed/fsdp/_flat_param.py (_validate_tensors_to_flatten).

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/error.h"
#include "models/load_model.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

Model adapted(const std::string& options) {
  Model m = load_model("llama-tiny?lora_rank=4" + options);
  m.set_dtype(DType::kBFloat16);
  return m;
}

ParallelConfig config_of(FrameworkKind framework) {
  ParallelConfig c;
  c.framework = framework;
  c.shard = 2;
  c.sequence = 16;
  c.model_dtype = DType::kBFloat16;
  c.precision.param = DType::kBFloat16;
  c.precision.reduce = DType::kFloat32;
  return c;
}

Schedule planned(const Model& m, const ParallelConfig& c) {
  PlanOptions options;
  options.executable = false;
  return plan(m, c, options);
}

std::string refusal(const Model& m, const ParallelConfig& c) {
  try {
    planned(m, c);
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

/// Dtype of the gradient norm that ranks add up.
DType norm_dtype(const Schedule& s) {
  for (const Collective& c : s.programs[0].collectives)
    if (c.kind == CollectiveKind::kAllReduce && c.phase == Phase::kClip) return c.dtype;
  return DType::kUInt8;
}

/// Copies are conversions, too.
int casts(const Schedule& s) {
  const auto& all = s.programs[0].launches;
  return static_cast<int>(
      std::count_if(all.begin(), all.end(), [](const Launch& l) { return l.op == OpKind::kCopy; }));
}

// lora/bnb.py: "for 4bit, we need to defensively clone here". Adapters in the base's dtype cast
// nothing, so the clones are the copies that are more: q_proj and v_proj of each block, whose
// result is [16, width] in 16 bits.
TEST(AdapterDtype, ResultOfABaseInFourBitsIsCloned) {
  ParallelConfig c = config_of(FrameworkKind::kUnsharded);
  c.shard = 1;
  c.precision = {};
  const Model plain = adapted("&lora_dtype=base"),
              packed = adapted("&lora_dtype=base&lora_base=4bit");
  const auto adapters = std::count_if(
      packed.modules.begin(), packed.modules.end(),
      [](const Module& m) { return m.class_name == "lora.Linear"; });
  EXPECT_EQ(adapters, 2 * static_cast<std::ptrdiff_t>(packed.roles.blocks.size()));
  PlanOptions one;
  one.executable = false;
  one.steps = 1;
  EXPECT_EQ(casts(plan(packed, c, one)) - casts(plan(plain, c, one)), adapters);
}

// FSDP2 asks one dtype of a unit's trainable parameters only: fp32 adapters in a bf16 block. They
// are gathered in bf16 as the base is, so nothing is cast in forward; the sharded gradients and
// their norm are fp32.
TEST(AdapterDtype, Fsdp2GathersFloat32AdaptersInSixteenBits) {
  const ParallelConfig c = config_of(FrameworkKind::kFsdp2);
  const Schedule peft = planned(adapted(""), c), base = planned(adapted("&lora_dtype=base"), c);
  EXPECT_EQ(norm_dtype(peft), DType::kFloat32);
  EXPECT_EQ(norm_dtype(base), DType::kBFloat16);
}

// A unit of its own is sharded when lora.Linear looks at lora_A's dtype: x goes to fp32, and back
// as the unit casts its inputs; a unit with the block is gathered already.
TEST(AdapterDtype, UnitsOfTheirOwnCastTheInputTwice) {
  ParallelConfig c = config_of(FrameworkKind::kFsdp2);
  const int with_block = casts(planned(adapted(""), c)),
            with_block_base = casts(planned(adapted("&lora_dtype=base"), c));
  c.wrap.kind = WrapPolicy::Kind::kBlocksAndAdapters;
  const int own = casts(planned(adapted(""), c)),
            own_base = casts(planned(adapted("&lora_dtype=base"), c));
  EXPECT_GT(own - own_base, with_block - with_block_base);
}

// A flat parameter has one dtype. In units of their own, FSDP1 casts no inputs (cast_forward_inputs
// is false): PyTorch raises "mat1 and mat2 to have the same dtype"; autocast casts them.
TEST(AdapterDtype, Fsdp1NeedsUnitsAndAutocast) {
  ParallelConfig c = config_of(FrameworkKind::kFsdp1);
  c.fsdp1.use_orig_params = true;
  EXPECT_NE(refusal(adapted(""), c).find("several dtypes"), std::string::npos);
  EXPECT_EQ(refusal(adapted("&lora_dtype=base"), c), "");
  for (const bool originals : {false, true}) {
    c.fsdp1.use_orig_params = originals;
    c.wrap.kind = WrapPolicy::Kind::kBlocksAndAdapters;
    c.autocast = false;
    EXPECT_NE(refusal(adapted(""), c).find("different dtypes"), std::string::npos);
    c.autocast = true;
    EXPECT_EQ(refusal(adapted(""), c), "");
  }
}

// Without sharding nothing casts the adapters: x goes to fp32 before them, the sum back to bf16.
TEST(AdapterDtype, UnshardedAdaptersComputeInFloat32) {
  ParallelConfig c = config_of(FrameworkKind::kUnsharded);
  c.shard = 1;
  c.precision.reduce = DType::kBFloat16;
  const Schedule s = planned(adapted(""), c);
  const auto& all = s.programs[0].launches;
  EXPECT_TRUE(std::any_of(all.begin(), all.end(), [](const Launch& l) {
    return l.op == OpKind::kMatmul && l.dtype == DType::kFloat32;
  }));
}

/// Bytes of all results that a step of the forward may keep for backward.
std::int64_t activations(const Schedule& s) {
  std::int64_t n = 0;
  for (const Buffer& b : s.programs[0].buffers)
    n += b.category == BufferCategory::kActivation ? b.bytes.value : 0;
  return n;
}

// MatMul4Bit computes without gradients, but its result is an activation as any linear's is (the
// product of silu(gate) and up keeps both); only the weights that it makes anew are temporary.
TEST(AdapterDtypes, ResultsOfFourBitLayersAreActivations) {
  const ParallelConfig c = config_of(FrameworkKind::kFsdp2);
  EXPECT_GE(activations(planned(adapted("&lora_dtype=base&lora_base=4bit"), c)),
            activations(planned(adapted("&lora_dtype=base"), c)));
}

}  // namespace
}  // namespace foreshard
