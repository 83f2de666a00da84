// What is asked at once and on all cores is what its parts answer one after the other.

#include "study/predict.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "study/needed_memory.h"
#include "tests/catalogue_job.h"

namespace foreshard {
namespace {

void expect_parts(const Job& job) {
  const Prediction p = predict(job, {}, 2);
  const Evaluation e = evaluate(job);
  EXPECT_EQ(p.evaluation.result.step_time, e.result.step_time);
  EXPECT_EQ(p.evaluation.result.memory.device_peak, e.result.memory.device_peak);
  EXPECT_EQ(p.evaluation.result.breakdown.exposed_communication,
            e.result.breakdown.exposed_communication);
  EXPECT_EQ(p.needed_memory, needed_memory(job, e));
  const StepUncertainty u = uncertainty_of(job, e.schedule, e.result.step_time);
  EXPECT_EQ(p.uncertainty.sd, u.sd);
  EXPECT_EQ(p.uncertainty.p10, u.p10);
  EXPECT_EQ(p.uncertainty.outside, u.outside);
  ASSERT_EQ(p.uncertainty.inputs.size(), u.inputs.size());
  for (std::size_t i = 0; i < u.inputs.size(); ++i) {
    EXPECT_EQ(p.uncertainty.inputs[i].quantity, u.inputs[i].quantity);
    EXPECT_EQ(p.uncertainty.inputs[i].effect, u.inputs[i].effect);
  }
  const std::vector<Suggestion> suggestions = suggest(job, e, 2);
  EXPECT_FALSE(suggestions.empty());
  ASSERT_EQ(p.suggestions.size(), suggestions.size());
  for (std::size_t i = 0; i < suggestions.size(); ++i) {
    EXPECT_EQ(p.suggestions[i].change, suggestions[i].change);
    EXPECT_EQ(p.suggestions[i].step, suggestions[i].step);
    EXPECT_EQ(p.suggestions[i].memory_change, suggestions[i].memory_change);
    EXPECT_EQ(p.suggestions[i].speedup, suggestions[i].speedup);
  }
}

TEST(Predict, OfAJobThatFits) {
  Job job = catalogue_job("gpt2", "dgx-h100", 16);
  job.config.sequence = 1024;
  EXPECT_FALSE(predict(job).needed_memory);
  EXPECT_TRUE(predict(job).suggestions.empty());
  expect_parts(job);
}

TEST(Predict, OfAJobThatDoesNot) {
  Job job = catalogue_job("gpt2-xl", "8x-rtx4090", 1, FrameworkKind::kUnsharded);
  job.config.sequence = 256;
  EXPECT_TRUE(predict(job).needed_memory);
  expect_parts(job);
}

}  // namespace
}  // namespace foreshard
