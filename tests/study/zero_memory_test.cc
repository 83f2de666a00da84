// ZeRO memory against what users saw. Source of the figures: DeepSpeed issues as quoted beside each
// test.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "study/evaluate.h"
#include "tests/catalogue_job.h"

namespace foreshard {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

/// Memory when construction is over: the program without its steps.
MemoryResult after_initialize(const Job& job) {
  PlanOptions options;
  options.executable = false;
  Schedule s = plan(*job.model, job.config, options);
  for (RankProgram& p : s.programs) p.steps = {{p.init.end, p.init.end}};
  return simulate_on(s, job.hardware).memory;
}

/// DeepSpeed#4527: 6,805 M parameters, ZeRO-3 with both offloads on 4 GPUs. The estimator promises
/// 0.49 GB; the driver shows 14,678 MiB after deepspeed.initialize: the whole 16-bit model was on
/// the device before it was cut, and the allocator keeps its segments. Llama-2-7B stands in (6,738
/// M), in proportion.
TEST(ZeroMemory, WholeModelStaysReservedAfterInitialize) {
  Job job = catalogue_job("llama2-7b", "dgx-a100-80", 4, FrameworkKind::kZero3);
  job.config.offload = OffloadKind::kBoth;
  const MemoryResult m = after_initialize(job);
  const double seen = 14678 * 6738.0 / 6805.0;
  EXPECT_NEAR(static_cast<double>(m.device_peak.value) / kMiB, seen, 0.06 * seen);
  // Under zero.Init one parameter at a time is whole.
  job.config.zero.partitioned_construction = true;
  EXPECT_LT(after_initialize(job).device_peak.value, m.device_peak.value / 3);
}

/// A rank keeps the whole gradients of the parameters that touch its partition (Z2-G-4), so ranks
/// need unlike memory. Each rank planned by itself: the answer is the largest of them.
TEST(ZeroMemory, TheAnswerIsOfTheRankThatNeedsMost) {
  Job job = catalogue_job("gpt2", "dgx-h100", 8, FrameworkKind::kZero2);
  job.config.sequence = 512;
  PlanOptions options;
  options.executable = false;
  options.steps = steady_steps(job.config);
  std::vector<std::int64_t> peaks;
  for (std::int64_t r = 0; r < 8; ++r) {
    options.ranks = {r};
    peaks.push_back(simulate_on(plan(*job.model, job.config, options), job.hardware)
                        .memory.allocated_peak.value);
  }
  const auto most = std::max_element(peaks.begin(), peaks.end());
  EXPECT_GT(*most, peaks[0]);
  const MemoryResult m = evaluate(job).result.memory;
  EXPECT_EQ(m.allocated_peak.value, *most);
  EXPECT_EQ(m.rank, most - peaks.begin());
}

/// DeepSpeed#4093: GPT-J-6B under ZeRO-3, about 13 GB on each GPU with 2 GPUs and with 4, where
/// 0.77 GB were promised. The retained segments do not shrink with the number of GPUs. Pythia-6.9B
/// (6,857 M) stands in.
TEST(ZeroMemory, MoreGpusDoNotShrinkWhatConstructionReserved) {
  Job two = catalogue_job("pythia-6.9b", "dgx-a100-80", 2, FrameworkKind::kZero3);
  two.config.offload = OffloadKind::kBoth;
  Job four = two;
  four.gpus = four.config.shard = 4;
  const double a = static_cast<double>(after_initialize(two).reserved_peak.value);
  const double b = static_cast<double>(after_initialize(four).reserved_peak.value);
  EXPECT_NEAR(a, b, 0.02 * a);
  EXPECT_NEAR(a, 2.0 * 6857e6 + 1e9, 0.03 * a);  // The 16-bit model and the reduce bucket.
}

/// DeepSpeed#5305: a 7B model on 8 GPUs without checkpointing reserves more under stage 3 than
/// under stage 2 (75.2 and 62.3 G there, whose sequence is not stated): coalesced gathers, two more
/// pools, a bucket of its own.
TEST(ZeroMemory, OnFewGpusStageThreeReservesMoreThanStageTwo) {
  Job two = catalogue_job("llama2-7b", "dgx-a100-80", 8, FrameworkKind::kZero2);
  two.config.sequence = 4096;
  two.config.zero.partitioned_construction = true;
  Job three = two;
  three.config.framework = FrameworkKind::kZero3;
  EXPECT_GT(evaluate(three).result.memory.reserved_peak, evaluate(two).result.memory.reserved_peak);
}

/// The same with checkpointing: 43.8 G under stage 2 and 52.8 G under stage 3. The user's script is
/// Megatron-DeepSpeed's of 32k tokens over 4 ranks, with 8 micro-batches a step; Pythia-6.9B stands
/// in. Stage 3 needs more because the whole model was on the device when it was cut.
TEST(ZeroMemory, WithCheckpointsConstructionDecides) {
  Job two = catalogue_job("pythia-6.9b", "dgx-a100-80", 8, FrameworkKind::kZero2);
  two.config.sequence = 8192;
  two.config.accumulate = 8;
  two.config.optimizer = OptimizerKind::kAdamWFused;
  two.config.checkpoint = CheckpointKind::kFull;
  Job three = two;
  three.config.framework = FrameworkKind::kZero3;
  three.config.checkpoint_outside_units = true;
  const auto gib = [](const Job& job) {
    return static_cast<double>(evaluate(job).result.memory.device_peak.value) / (1024 * kMiB);
  };
  EXPECT_NEAR(gib(two), 43.8, 0.05 * 43.8);
  EXPECT_NEAR(gib(three), 52.8, 0.03 * 52.8);
  three.config.zero.partitioned_construction = true;
  EXPECT_LT(gib(three), gib(two));
}

/// ZeRO-Offload: 16 B of states for each own element, and the 16-bit copy, are in host memory (hand
/// calculation).
TEST(ZeroMemory, HostMemoryUnderOffload) {
  Job job = catalogue_job("gpt2", "dgx-a100-80", 8, FrameworkKind::kZero2);
  job.config.offload = OffloadKind::kOptimizer;
  job.config.sequence = 256;
  const Evaluation e = evaluate(job);
  const double own = static_cast<double>(job.model->parameter_count().value) / 8;
  const double largest = 50257.0 * 768;  // The staging buffer of one gradient.
  EXPECT_NEAR(static_cast<double>(e.result.memory.host_peak.value), 18 * own + 2 * largest,
              0.01 * 18 * own);
}

}  // namespace
}  // namespace foreshard
