// What a buffer is called follows from how long it lives: what backward finds there is no temporary
// of forward.

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "models/load_model.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

struct Case {
  const char* name;
  const char* model;
  void (*change)(ParallelConfig&);
};

ParallelConfig base(FrameworkKind framework) {
  ParallelConfig c;
  c.framework = framework;
  (framework == FrameworkKind::kDdp ? c.replicate : c.shard) = 2;
  c.sequence = 32;
  c.model_dtype = DType::kBFloat16;
  c.precision.param = DType::kBFloat16;
  return c;
}

/// Names of forward temporaries of the last step that are live when its first backward begins.
std::set<std::string> left_for_backward(const RankProgram& p) {
  std::set<std::uint32_t> live;
  std::set<std::string> out;
  for (std::uint32_t i = p.steps.back().begin; i < p.steps.back().end; ++i) {
    const Instruction& in = p.instructions[i];
    if (in.kind == InstructionKind::kAlloc &&
        p.buffers[in.id].category == BufferCategory::kForwardTemporary)
      live.insert(in.id);
    if (in.kind == InstructionKind::kFree) live.erase(in.id);
    if (in.kind == InstructionKind::kLaunch && p.launches[in.id].phase == Phase::kBackward) break;
  }
  for (const std::uint32_t b : live)
    out.insert(p.buffers[b].scope.valid() ? p.scopes[p.buffers[b].scope.value] : "?");
  return out;
}

class ForwardTemporaries : public testing::TestWithParam<Case> {};

// Linear layers of ZeRO-3, of a 4-bit base and of 8-bit products are Python functions, whose
// forward runs without gradients.
TEST_P(ForwardTemporaries, EndWithForward) {
  for (const FrameworkKind framework : {FrameworkKind::kFsdp2, FrameworkKind::kFsdp1,
                                        FrameworkKind::kDdp, FrameworkKind::kZero3}) {
    ParallelConfig c = base(framework);
    GetParam().change(c);
    if (framework == FrameworkKind::kZero3 && c.float8 != Float8Kind::kNone) continue;  // Refused.
    Model m = load_model(GetParam().model);
    m.set_dtype(c.model_dtype);
    for (const bool share : {true, false}) {
      PlanOptions options;
      options.executable = false;
      options.share_blocks = share;
      EXPECT_EQ(left_for_backward(plan(m, c, options).programs[0]), std::set<std::string>());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Categories, ForwardTemporaries,
    testing::Values(
        Case{"plain", "llama-tiny", [](ParallelConfig&) {}},
        Case{"biased", "gpt2", [](ParallelConfig&) {}},
        Case{"experts", "mixtral-8x7b", [](ParallelConfig&) {}},
        Case{"lora4bit", "llama-tiny?lora_rank=4&lora_base=4bit&lora_dtype=base",
             [](ParallelConfig& c) { c.fsdp1.use_orig_params = true; }},
        Case{"delayed", "llama-tiny", [](ParallelConfig& c) { c.float8 = Float8Kind::kDelayed; }},
        Case{"tensorwise", "llama-tiny",
             [](ParallelConfig& c) { c.float8 = Float8Kind::kTensorwise; }},
        Case{"checkpointed", "llama-tiny",
             [](ParallelConfig& c) { c.checkpoint = CheckpointKind::kFull; }},
        Case{"eager", "llama-tiny",
             [](ParallelConfig& c) { c.attention = AttentionKind::kEager; }}),
    [](const testing::TestParamInfo<Case>& i) { return std::string(i.param.name); });

}  // namespace
}  // namespace foreshard
