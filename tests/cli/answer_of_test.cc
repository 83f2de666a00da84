// The memory of a measured run in the words of an answer (docs/formats/answer.md).

#include "cli/answer_of.h"

#include <gtest/gtest.h>

#include "schedules/trace.h"

namespace foreshard::cli {
namespace {

StepMemory step(std::int32_t rank, std::int32_t number, std::int64_t retries) {
  StepMemory m;
  m.rank = rank;
  m.step = number;
  m.reserved_peak = Bytes(100 + rank);
  m.retries = retries;
  return m;
}

// Rank 0: 1 + 2 + 0, rank 1: 3 + 0 + 2. The worst rank: 2 in the last step, 5 in all.
TEST(MeasuredMemory, CountsRetriesOfTheLastStepAndOfAll) {
  Trace t;
  for (std::int32_t n = 0; n < 3; ++n) {
    t.step_memory.push_back(step(0, n, n < 2 ? n + 1 : 0));
    t.step_memory.push_back(step(1, n, n == 0 ? 3 : n == 2 ? 2 : 0));
  }
  const AnswerMemory m = memory_of(t, Bytes(1000));
  EXPECT_EQ(m.retries, 2);
  EXPECT_EQ(m.retries_total, 5);
  EXPECT_TRUE(m.borderline());
  EXPECT_EQ(m.device_peak, Bytes(101));
}

// Retries of the first steps only are on the edge all the same.
TEST(MeasuredMemory, EarlyRetriesAreBorderline) {
  Trace t;
  t.step_memory = {step(0, 0, 4), step(0, 1, 0)};
  const AnswerMemory m = memory_of(t, Bytes(1000));
  EXPECT_EQ(m.retries, 0);
  EXPECT_TRUE(m.borderline());
}

}  // namespace
}  // namespace foreshard::cli
