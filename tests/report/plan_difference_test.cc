#include "report/plan_difference.h"

#include <gtest/gtest.h>

#include <sstream>

namespace foreshard {
namespace {

PlanDifference two_micro_batches() {
  PlanDifference d;
  d.a.title = "FSDP2, micro-batch 1";
  d.b.title = "FSDP2, micro-batch 2, reshard false";
  d.a.step = d.b.step = milliseconds(1);
  d.rows.push_back({"collective", "all-gather over 8, float32+bfloat16+uint8", 145, 64,
                    Bytes(1'000'000'000), Bytes(2'000'000'000), milliseconds(1), std::nullopt});
  return d;
}

// 43 characters of "what" are more than their column has, and titles of 20 fill theirs.
TEST(PlanDifferenceText, CellsDoNotTouch) {
  const std::string text = text_of(two_micro_batches(), true);
  EXPECT_NE(text.find(" FSDP2, micro-batch 1 "), std::string::npos) << text;
  EXPECT_NE(text.find("uint8\n"), std::string::npos) << text;
  EXPECT_NE(text.find(" 145 x, 1.00 GB "), std::string::npos) << text;
}

TEST(PlanDifferenceText, ShortenedTitlesKeepTheirEnd) {
  const std::string text = text_of(two_micro_batches(), true);
  EXPECT_NE(text.find("...shard false "), std::string::npos) << text;
}

}  // namespace
}  // namespace foreshard
