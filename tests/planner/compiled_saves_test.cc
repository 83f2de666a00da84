// What a compiled block saves for its backward, against torch.compile itself: torch 2.15.0,
// transformers 5.24.0, the block compiled with backend "aot_eager_decomp_partition" (Inductor's
// decompositions and its partitioner) on the CPU, 512 tokens; storages seen by
// torch.autograd.graph.saved_tensors_hooks without parameters, rotary tables and single elements.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/json.h"
#include "models/load_model.h"
#include "schedules/planner/planner.h"
#include "schedules/validate.h"

namespace foreshard {
namespace {

struct Block {
  std::string config;
  DType dtype = DType::kBFloat16;
  CheckpointKind checkpoint = CheckpointKind::kNone;
  bool autocast = false;
  AttentionKind attention = AttentionKind::kFlash;
};

RankProgram program_of(const Block& b) {
  ParallelConfig c;
  c.framework = FrameworkKind::kUnsharded;
  c.sequence = 512;
  c.model_dtype = b.dtype;
  c.compile = true;
  c.checkpoint = b.checkpoint;
  c.autocast = b.autocast;
  c.attention = b.attention;
  PlanOptions options;
  options.steps = 1;
  Model m = model_from_json(Json::parse(b.config), "block");
  m.set_dtype(b.dtype);
  const Schedule s = plan(m, c, options);
  const auto findings = validate(s);
  EXPECT_TRUE(findings.empty());
  return s.programs[0];
}

/// What fused attention leaves of the random state on a GPU, seed (16 B) and offset (8 B), is not
/// there on a CPU.
constexpr std::int64_t kRandomState = 16;

/// Bytes that are live when backward begins and that the backward of the model's only block reads.
std::int64_t saved(const Block& b) {
  const RankProgram p = program_of(b);
  std::vector<bool> live(p.buffers.size()), read(p.buffers.size());
  bool backward = false;
  for (const Instruction& in : p.instructions) {
    if (in.kind == InstructionKind::kMark && p.marks[in.id].phase == Phase::kBackward &&
        p.marks[in.id].kind == MarkKind::kPhase)
      backward = true;
    if (!backward && in.kind == InstructionKind::kAlloc) live[in.id] = true;
    if (!backward && in.kind == InstructionKind::kFree) live[in.id] = false;
    if (!backward || in.kind != InstructionKind::kLaunch) continue;
    const Launch& l = p.launches[in.id];
    const std::string& scope = l.scope.valid() ? p.scopes[l.scope.value] : std::string();
    if (scope.find(".0") == std::string::npos) continue;
    for (std::uint32_t k = 0; k < l.inputs; ++k) {
      const TensorId t = p.operands[l.first_operand + k];
      if (t.valid() && p.tensors[t.value].buffer.valid())
        read[p.tensors[t.value].buffer.value] = true;
    }
  }
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < p.buffers.size(); ++i) {
    const Buffer& buffer = p.buffers[i];
    const bool table =
        buffer.scope.valid() && p.scopes[buffer.scope.value].find("rotary") != std::string::npos;
    const bool activation = buffer.category == BufferCategory::kActivation ||
                            buffer.category == BufferCategory::kForwardTemporary;
    if (live[i] && read[i] && activation && !table && buffer.bytes.value > kRandomState)
      bytes += buffer.bytes.value;
  }
  return bytes;
}

std::string llama(int kv_heads) {
  return R"({"model_type": "llama", "hidden_size": 1024, "intermediate_size": 3584,
    "num_attention_heads": 8, "num_hidden_layers": 1, "vocab_size": 128,
    "max_position_embeddings": 2048, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "tie_word_embeddings": false, "num_key_value_heads": )" +
         std::to_string(kv_heads) + "}";
}

std::string gpt2(double dropout) {
  return R"({"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 1, "vocab_size": 128,
    "n_positions": 1024, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5, "resid_pdrop": )" +
         std::to_string(dropout) + "}";
}

const std::string kQwen3 = R"({"model_type": "qwen3", "hidden_size": 1024,
    "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "num_hidden_layers": 1, "vocab_size": 128, "max_position_embeddings": 2048,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": false})";

// Eager: 27,283,456, 25,710,592, 47,206,400 and 36,786,176 bytes.
TEST(CompiledSaves, AreThosePyTorchsPartitionerChoosesOfABlock) {
  EXPECT_EQ(saved({.config = llama(8)}), 19'419'136);
  EXPECT_EQ(saved({.config = llama(2)}), 17'846'272);
  EXPECT_EQ(saved({.config = llama(2), .dtype = DType::kFloat32}), 35'672'064);
  EXPECT_EQ(saved({.config = kQwen3}), 23'154'688);
}

/// Mean and deviation of two layer norms of 512 tokens: fp32 on a GPU, on a CPU in the input's
/// dtype (native_layer_norm in torch/_refs/__init__.py).
constexpr std::int64_t kStatistics = 2 * 2 * 512 * 2;

// GPT-2's layer norms are single kernels in eager mode, its GELU many; dropout saves its masks.
TEST(CompiledSaves, OfFusedNormsWrittenOutActivationsAndDropout) {
  EXPECT_EQ(saved({.config = gpt2(0)}), 12'611'584 + kStatistics);
  EXPECT_EQ(saved({.config = gpt2(0.1)}), 13'398'016 + kStatistics);
  EXPECT_EQ(saved({.config = gpt2(0.1), .dtype = DType::kFloat32}), 25'985'024);
}

const std::string kGemma2 = R"({"model_type": "gemma2", "hidden_size": 1024,
    "intermediate_size": 4096, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128,
    "num_hidden_layers": 1, "vocab_size": 128, "max_position_embeddings": 2048,
    "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256,
    "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0})";

// Scores in bf16, largest elements and sums of the softmax, its result in bf16, the causal mask in
// bf16; soft-capped scores and the softmax in fp32 are made again.
TEST(CompiledSaves, OfWrittenOutAttention) {
  EXPECT_EQ(saved({.config = kGemma2, .attention = AttentionKind::kEager}), 30'973'952);
}

// Under autocast: casts of the weights are saved, an input of several products is cast once.
TEST(CompiledSaves, UnderAutocast) {
  EXPECT_EQ(saved({.config = llama(2), .dtype = DType::kFloat32, .autocast = true}), 46'157'824);
}

// The block in torch.utils.checkpoint, and with a selective policy (attention and every second
// product are MUST_SAVE): the last product, which no backward needs, is not kept (eager keeps it,
// 1,048,576 bytes).
TEST(CompiledSaves, OfCheckpointedBlocks) {
  EXPECT_EQ(saved({.config = llama(2), .checkpoint = CheckpointKind::kFull}), 1'048'576);
  EXPECT_EQ(saved({.config = llama(2), .checkpoint = CheckpointKind::kSelectiveOp}), 7'094'272);
}

}  // namespace
}  // namespace foreshard
