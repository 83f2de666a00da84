// What transformers' mask functions and attention's kernels make of a sliding window.

#include <gtest/gtest.h>

#include <map>

#include "core/error.h"
#include "core/json.h"
#include "models/load_model.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

/// Two layers, 4 query heads of 16 on 2 key heads, windows of 8 tokens.
Model windowed() {
  return model_from_json(
      Json::parse(R"({"model_type": "mistral", "architectures": ["MistralForCausalLM"],
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256,
        "max_position_embeddings": 64, "sliding_window": 8, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "tie_word_embeddings": false, "rope_theta": 10000.0})"),
      "config.json");
}

RankProgram program_of(AttentionKind attention, std::int64_t sequence) {
  ParallelConfig c;
  c.framework = FrameworkKind::kUnsharded;
  c.model_dtype = DType::kBFloat16;
  c.attention = attention;
  c.sequence = sequence;
  Model model = windowed();
  model.set_dtype(DType::kBFloat16);
  PlanOptions options;
  options.steps = 1;  // With what only the executor reads: attributes.
  return plan(model, c, options).programs[0];
}

std::map<OpKind, int> count(const RankProgram& p) {
  std::map<OpKind, int> n;
  for (const Launch& l : p.launches) ++n[l.op];
  return n;
}

// SDPA has no window: the mask that says it (32 tokens exceed 8) takes its memory-efficient kernel.
TEST(Windows, OfSdpaAreMasks) {
  const auto n = count(program_of(AttentionKind::kFlash, 32));
  EXPECT_EQ(n.at(OpKind::kEfficientAttention), 2);
  EXPECT_EQ(n.count(OpKind::kFlashAttention), 0u);
}

// Seven tokens fit into the window: no mask, flash attention.
TEST(Windows, LongerThanTheSequenceAreNone) {
  const auto n = count(program_of(AttentionKind::kFlash, 7));
  EXPECT_EQ(n.at(OpKind::kFlashAttention), 2);
  EXPECT_EQ(n.count(OpKind::kEfficientAttention), 0u);
}

// Of 32 queries the first 7 see fewer than 8 keys: 32 * 8 - 7 * 8 / 2 = 228 pairs; two products of
// 4 heads of 16 forward, five backward.
TEST(Windows, OfTheLibraryAreTheKernels) {
  const RankProgram p = program_of(AttentionKind::kFlashLibrary, 32);
  int forward = 0, backward = 0;
  for (const Launch& l : p.launches) {
    EXPECT_NE(l.op, OpKind::kEfficientAttention);
    if (l.op == OpKind::kFlashAttention) {
      ++forward;
      EXPECT_EQ(l.flops.value, 2 * 2 * 4 * 228 * 16);
      ASSERT_EQ(l.attributes, 3);
      EXPECT_EQ(p.attributes[l.first_attribute + 2], 8);
    }
    if (l.op == OpKind::kFlashAttentionBackward) {
      ++backward;
      EXPECT_EQ(l.flops.value, 5 * 2 * 4 * 228 * 16);
    }
  }
  EXPECT_EQ(forward, 2);
  EXPECT_EQ(backward, 2);
}

// 16 bits only, as flash-attn says itself.
TEST(Windows, TheLibraryRefusesFloats) {
  ParallelConfig c;
  c.framework = FrameworkKind::kUnsharded;
  c.attention = AttentionKind::kFlashLibrary;
  c.sequence = 32;
  EXPECT_THROW(plan(windowed(), c), InputError);
}

// find_packed_sequence_indices ends in `if (...).all()`: one byte is read for each kind of mask
// that the model asks for, before the first layer (PyTorch's log on a stand-in GPU: 1 for Llama,
// Mistral, Mixtral and GPT-2, 2 for Qwen2-MoE).
TEST(PackedRows, AreLookedForByTheHost) {
  const RankProgram p = program_of(AttentionKind::kFlash, 32);
  int reads = 0;
  for (const Copy& c : p.copies)
    if (c.direction == CopyDirection::kDeviceToHost && c.bytes == Bytes(1)) {
      ++reads;
      EXPECT_TRUE(c.blocks_host);
      EXPECT_EQ(c.phase, Phase::kForward);
    }
  EXPECT_EQ(reads, 1);
}

// MFU counts what a model asks for, whichever kernel computes it. By hand, forward and twice that
// backward: linear layers 2 x 32 tokens x (2 layers x (64 x 64 x 2 + 64 x 32 x 2 + 3 x 64 x 128) +
// 64 x 256); attention 2 layers x 2 products x 2 x 228 pairs x 4 heads x 16. The full square would
// have 1024 pairs, its causal half 512.
TEST(Windows, ModelFlopsAreThoseOfThePairsThatAreSeen) {
  const double linear = 2.0 * 32 * (2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128) + 64 * 256);
  const double attention = 2.0 * 2 * 2 * 228 * 4 * 16;
  Model model = windowed();
  model.set_dtype(DType::kBFloat16);
  for (const AttentionKind kind : {AttentionKind::kFlash, AttentionKind::kSdpa,
                                   AttentionKind::kEager, AttentionKind::kFlashLibrary}) {
    ParallelConfig c;
    c.framework = FrameworkKind::kUnsharded;
    c.model_dtype = DType::kBFloat16;
    c.attention = kind;
    c.sequence = 32;
    PlanOptions options;
    options.steps = 1;
    options.executable = false;
    EXPECT_DOUBLE_EQ(plan(model, c, options).model_flops_per_step, 3 * (linear + attention))
        << static_cast<int>(kind);
  }
}

// A LLaVA of 4 x 4 patches without class token: 16 places of each sample's tokens.
TEST(Images, TakePlacesAmongTheTokens) {
  const Model model = model_from_json(
      Json::parse(R"({"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"],
        "image_token_index": 200, "projector_hidden_act": "gelu",
        "vision_feature_select_strategy": "default", "vision_feature_layer": -1,
        "text_config": {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
          "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 256},
        "vision_config": {"model_type": "clip_vision_model", "hidden_size": 32,
          "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
          "image_size": 16, "patch_size": 4}})"),
      "config.json");
  EXPECT_EQ(model.shortest_sequence, 16);
  EXPECT_EQ(model.sample, "1 image of 16 x 16 (16 of the tokens)");
  ParallelConfig c;
  c.framework = FrameworkKind::kUnsharded;
  PlanOptions options;
  options.steps = 1;
  options.executable = false;
  c.sequence = 16;
  EXPECT_NO_THROW(plan(model, c, options));
  c.sequence = 15;
  EXPECT_THROW(plan(model, c, options), InputError);
}

}  // namespace
}  // namespace foreshard
