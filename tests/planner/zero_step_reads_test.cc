// What the host reads in a step of DeepSpeed 0.19.8's ZeRO with bf16: recorded with engine.step()
// on a stand-in GPU (one parameter group, clipping), in this order. Bytes of single numbers.

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "models/load_model.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

/// Copies of one number in the last step: "up 4", "down 1", ...
std::vector<std::string> small_copies(FrameworkKind framework) {
  ParallelConfig c;
  c.framework = framework;
  c.shard = 4;
  c.sequence = 16;
  c.precision.param = DType::kBFloat16;
  PlanOptions options;
  options.executable = false;
  options.steps = steady_steps(c);
  const Schedule s = plan(load_model("llama-tiny"), c, options);
  const RankProgram& p = s.programs[0];
  std::vector<std::string> found;
  for (std::uint32_t i = p.steps.back().begin; i < p.steps.back().end; ++i) {
    if (p.instructions[i].kind != InstructionKind::kCopy) continue;
    const Copy& copy = p.copies[p.instructions[i].id];
    if (copy.bytes.value > 8 || !copy.blocks_host) continue;
    found.push_back((copy.direction == CopyDirection::kHostToDevice ? "up " : "down ") +
                    std::to_string(copy.bytes.value));
  }
  return found;
}

// The reduced overflow flag; the masked norm's -1, up and back (masked_fill_ asks for the number);
// is_invalid_grad_norm in step and in unscale_and_clip_grads.
TEST(ZeroStepReads, OfStagesOneAndTwo) {
  const std::vector<std::string> recorded{"down 1", "up 4", "down 4", "down 1", "down 1"};
  std::vector<std::string> found = small_copies(FrameworkKind::kZero1);
  const auto tail = [&](const std::vector<std::string>& all) {
    return std::vector<std::string>(all.end() - std::min<std::ptrdiff_t>(5, std::ssize(all)),
                                    all.end());
  };
  EXPECT_EQ(tail(found), recorded);
  EXPECT_EQ(tail(small_copies(FrameworkKind::kZero2)), recorded);
}

// torch.where takes the -1 without asking for it; the norm is tested once.
TEST(ZeroStepReads, OfStageThree) {
  const std::vector<std::string> found = small_copies(FrameworkKind::kZero3);
  ASSERT_GE(found.size(), 2u);
  EXPECT_EQ(found[found.size() - 2], "up 4");
  EXPECT_EQ(found.back(), "down 1");
}

}  // namespace
}  // namespace foreshard
