// LoRA: counts that PEFT prints; names and packing of QLoRA by PEFT's and bitsandbytes' source.

#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "models/adapter_targets.h"
#include "models/describe.h"
#include "models/load_model.h"

namespace foreshard {
namespace {

const TensorFact* find(const ModelFacts& facts, const std::string& name) {
  const auto it = std::find_if(facts.tensors.begin(), facts.tensors.end(),
                               [&](const TensorFact& t) { return t.name == name; });
  return it == facts.tensors.end() ? nullptr : &*it;
}

TEST(Lora, CountsOfLlama2) {
  // PEFT: "trainable params: 4,194,304 || all params: 6,742,609,920" for rank 8 on q_proj and
  // v_proj.
  const ModelFacts facts = model_facts(load_model("llama2-7b?lora_rank=8"));
  EXPECT_EQ(facts.trainable.value, 4194304);
  EXPECT_EQ(facts.total.value, 6742609920);
  const TensorFact* down = find(facts, "model.layers.0.self_attn.q_proj.lora_A.default.weight");
  ASSERT_NE(down, nullptr);
  EXPECT_EQ(down->shape, (std::vector<std::int64_t>{8, 4096}));
  EXPECT_NE(find(facts, "model.layers.0.self_attn.q_proj.base_layer.weight"), nullptr);
  EXPECT_EQ(find(facts, "model.layers.0.self_attn.q_proj.weight"), nullptr);
  EXPECT_NE(find(facts, "model.layers.0.self_attn.k_proj.weight"), nullptr);
}

TEST(Lora, AllLinearModulesButTheHead) {
  // Per block of width 4096 and 11008, rank 16: 4 projections of 2 * 4096, 3 of 4096 + 11008.
  const ModelFacts facts =
      model_facts(load_model("llama2-7b?lora_rank=16&lora_targets=all-linear"));
  EXPECT_EQ(facts.trainable.value, 32 * 16 * (4 * 2 * 4096 + 3 * (4096 + 11008)));
  EXPECT_EQ(find(facts, "lm_head.lora_A.default.weight"), nullptr);
}

TEST(Lora, FourBitWeightsArePackedAndCountedSingly) {
  const Model model = load_model("llama2-7b?lora_rank=8&lora_base=4bit-double");
  EXPECT_EQ(model.parameter_count().value, 6742609920);
  const ModuleId q = model.find_module("model.layers.0.self_attn.q_proj.base_layer"),
                 k = model.find_module("model.layers.0.self_attn.k_proj");
  ASSERT_TRUE(q.valid() && k.valid());
  for (const ModuleId id : {q, k}) {
    const Module& m = model.at(id);
    EXPECT_EQ(m.class_name, "Linear4bit");
    EXPECT_EQ(model.at(m.parameters[0].id).shape, (std::vector<std::int64_t>{4096 * 4096 / 4, 1}));
    EXPECT_EQ(m.buffers[0].shape, (std::vector<std::int64_t>{4096 * 4096 / 64}));
    EXPECT_EQ(m.buffers[0].dtype, DType::kUInt8);
    EXPECT_EQ(m.buffers[2].shape, (std::vector<std::int64_t>{4096 * 4096 / 64 / 256}));
  }
  EXPECT_EQ(model.at(model.find_module("lm_head")).class_name, "Linear");
}

// peft 0.21 constants.py, TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING; families that it does
// not know have q_proj and v_proj here, or are refused as PEFT refuses them.
TEST(Lora, DefaultTargetsArePefts) {
  const std::pair<const char*, std::vector<std::string>> table[] = {
      {"llama3-8b", {"q_proj", "v_proj"}},
      {"mistral-7b", {"q_proj", "v_proj"}},
      {"mixtral-8x7b", {"q_proj", "v_proj"}},
      {"qwen2.5-7b", {"q_proj", "v_proj"}},
      {"qwen3-8b", {"q_proj", "v_proj"}},
      {"gemma2-2b", {"q_proj", "v_proj"}},
      {"stablelm-3b", {"q_proj", "v_proj"}},
      {"phi-2", {"q_proj", "v_proj", "fc1", "fc2"}},
      {"gpt2", {"c_attn"}},
      {"pythia-1.4b", {"query_key_value"}},
      {"mpt-125m", {"Wqkv"}},
      {"bert-base", {"query", "value"}},
      {"qwen3-30b-a3b", {"q_proj", "v_proj"}}};
  for (const auto& [name, targets] : table) {
    const auto facts = adapter_facts(load_model(std::string(name) + "?lora_rank=8"));
    ASSERT_TRUE(facts) << name;
    EXPECT_EQ(facts->targets, targets) << name;
    EXPECT_EQ(facts->rank, 8) << name;
  }
  EXPECT_THROW(load_model("phi-3.5-mini?lora_rank=8"), InputError);
}

// PEFT casts adapters of a 16-bit base to fp32 (tuners_utils.py, cast_adapter_dtype), unless
// autocast_adapter_dtype=False.
TEST(Lora, AdaptersStayInFloat32WhateverTheBaseIsLoadedIn) {
  for (const DType loaded : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    Model peft = load_model("llama2-7b?lora_rank=8"),
          alike = load_model("llama2-7b?lora_rank=8&lora_dtype=base");
    peft.set_dtype(loaded);
    alike.set_dtype(loaded);
    for (const ParameterDef& p : peft.parameters)
      EXPECT_EQ(p.dtype, p.trainable ? DType::kFloat32 : loaded) << p.name;
    for (const ParameterDef& p : alike.parameters) EXPECT_EQ(p.dtype, loaded) << p.name;
    peft.cast(loaded);  // DeepSpeed's module.bfloat16().
    EXPECT_EQ(adapter_facts(peft)->dtype, loaded);
  }
}

// Mixtral 8x7B: 32 layers of 8 experts with three matrices of 4096 x 14336 are fused tensors, which
// bitsandbytes does not see; the rest of its linear layers are packed: 32 (4096 (2 4096 + 2 1024)).
TEST(Lora, FusedExpertsStayInSixteenBits) {
  const std::string said = unpacked_experts(load_model("mixtral-8x7b?lora_rank=8&lora_base=4bit"));
  EXPECT_NE(said.find("1.34 of 46.71 B parameters are packed"), std::string::npos) << said;
  EXPECT_NE(said.find("experts' 45.10 B"), std::string::npos) << said;
  EXPECT_EQ(unpacked_experts(load_model("mixtral-8x7b?lora_rank=8")), "");
  EXPECT_EQ(unpacked_experts(load_model("llama2-7b?lora_rank=8&lora_base=4bit")), "");
}

TEST(Lora, WrongKeysAreReported) {
  for (const char* name :
       {"llama2-7b?lora_rank=0", "llama2-7b?lora_alpha=8",
        "llama2-7b?lora_rank=8&lora_targets=c_attn", "llama2-7b?lora_rank=8&lora_base=3bit",
        "llama2-7b?lora_rank=8&lora_dtype=bf16", "llama2-7b?lora_dtype=base"}) {
    EXPECT_THROW(load_model(name), InputError) << name;
  }
}

// replace_with_bnb_linear takes Conv1D as it takes Linear: a block of GPT-2 holds 12 h² weights in
// four of them (h 768), 12 blocks.
TEST(Lora, Conv1DIsPackedToo) {
  const Model model = load_model("gpt2?lora_rank=8&lora_targets=c_attn&lora_base=4bit");
  std::int64_t packed = 0;
  for (const Module& m : model.modules) {
    EXPECT_NE(m.class_name, "Conv1D") << m.name;
    if (m.class_name == "Linear4bit") packed += model.at(m.parameters[0].id).shape[0] * 4;
  }
  EXPECT_EQ(packed, 12LL * 12 * 768 * 768);
}

}  // namespace
}  // namespace foreshard
