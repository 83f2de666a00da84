// Recorded trainings of PyTorch 2.15, unsharded and under fully_shard at world sizes 1, 2 and 4,
// against our planner and executor.

#include <gtest/gtest.h>

#include <filesystem>

#include "conformance/check.h"

namespace foreshard {
namespace {

TEST(NumericsGolden, RecordedTrainingsAgree) {
  const auto folder =
      std::filesystem::path(FORESHARD_SOURCE_DIR) / "tests/conformance/data/numerics";
  const auto results = check_all(*find_check_kind("numerics"), {folder});
  EXPECT_EQ(results.size(), 4U);
  for (const CheckResult& r : results) EXPECT_TRUE(r.ok) << r.id << ": " << r.first_difference;
}

}  // namespace
}  // namespace foreshard
