#include "study/uncertainty.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "study/evaluate.h"
#include "tests/catalogue_job.h"

namespace foreshard {
namespace {

Job job_on(const char* machine, std::int64_t gpus) {
  Job job = catalogue_job("gpt2", machine, gpus);
  job.config.sequence = 1024;
  job.config.micro_batch = 16;
  return job;
}

StepUncertainty range_of(const Job& job) {
  const Evaluation e = evaluate(job, SimulationOptions{});
  return uncertainty_of(job, e.schedule, e.result.step_time);
}

double effect_of(const StepUncertainty& u, const std::string& quantity) {
  const auto found = std::find_if(u.inputs.begin(), u.inputs.end(),
                                  [&](const UncertainInput& i) { return i.quantity == quantity; });
  return found == u.inputs.end() ? 0 : found->effect;
}

TEST(Uncertainty, EffectsAddUpAsSquaresAroundThePrediction) {
  const Job job = job_on("dgx-h100", 8);
  const Evaluation e = evaluate(job, SimulationOptions{});
  const StepUncertainty u = uncertainty_of(job, e.schedule, e.result.step_time);
  double square = 0;
  for (const UncertainInput& i : u.inputs) square += i.effect * i.effect;
  EXPECT_LE(std::sqrt(square), u.sd);
  EXPECT_GT(std::sqrt(square), 0.95 * u.sd);  // What is dropped is small.
  // A normal distribution has its 10th and 90th percentile 1.2816 standard deviations from the
  // middle.
  EXPECT_NEAR(std::log(to_seconds(u.p90) / to_seconds(e.result.step_time)), 1.2816 * u.sd, 1e-6);
  EXPECT_LT(u.p10, e.result.step_time);
  EXPECT_TRUE(std::is_sorted(
      u.inputs.begin(), u.inputs.end(),
      [](const UncertainInput& a, const UncertainInput& b) { return a.effect > b.effect; }));
}

TEST(Uncertainty, ANumberKnownHalfAsWellCountsTwice) {
  Job job = job_on("dgx-h100", 8);
  Fact& ceiling = job.hardware.gpu.efficiency["memory_bound"];
  ceiling.uncertainty = 0.1;
  const double one = effect_of(range_of(job), "gpu.efficiency.memory_bound");
  ceiling.uncertainty = 0.2;
  const double two = effect_of(range_of(job), "gpu.efficiency.memory_bound");
  EXPECT_GT(one, 0.01);
  EXPECT_NEAR(two / one, (std::exp(0.2) - 1) / (std::exp(0.1) - 1), 0.1);
}

// exp(1.2816 * 0.1) = 1.1367: a tenth above and below.
TEST(Uncertainty, TheRangeEndsAtTheTenthAndNinetiethPercentile) {
  EXPECT_TRUE(within_p10_p90(1, 1.136, 0.1));
  EXPECT_FALSE(within_p10_p90(1, 1.138, 0.1));
  EXPECT_TRUE(within_p10_p90(1.136, 1, 0.1));
  EXPECT_FALSE(within_p10_p90(1.138, 1, 0.1));
}

TEST(Uncertainty, OneGpuDoesNotDependOnLinks) {
  const StepUncertainty u = range_of(job_on("dgx-h100", 1));
  EXPECT_EQ(effect_of(u, "gpu.nvlink_planning"), 0);
  EXPECT_EQ(effect_of(u, "network.efficiency"), 0);
}

TEST(Uncertainty, SaysWhatLiesOutsideTheCalibration) {
  EXPECT_TRUE(range_of(job_on("dgx-h100", 8)).outside.empty());
  const StepUncertainty other = range_of(job_on("8x-l40s", 8));
  ASSERT_FALSE(other.outside.empty());
  EXPECT_NE(other.outside[0].find("L40S"), std::string::npos);
  Job job = job_on("dgx-h100", 8);
  job.config.framework = FrameworkKind::kZero3;
  const std::vector<std::string> outside = range_of(job).outside;
  EXPECT_NE(std::find(outside.begin(), outside.end(), "ZeRO-3"), outside.end());
}

}  // namespace
}  // namespace foreshard
