// Recorded event logs of DeepSpeed 0.19.8 against our planner (rules Z12-*, Z1-*, Z2-*, Z3-*).

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "conformance/json_compare.h"
#include "conformance/zero_run.h"
#include "core/json.h"
#include "tests/conformance/recorded_cases.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

class ZeroGolden : public ::testing::TestWithParam<fs::path> {};

TEST_P(ZeroGolden, EventsAndTablesAgree) { expect_recorded("zero", GetParam()); }

INSTANTIATE_TEST_SUITE_P(Recorded, ZeroGolden, ::testing::ValuesIn(recorded_cases("zero")),
                         recorded_name);

/// The comparison notices a changed byte count and a changed owner.
TEST(ZeroGoldenComparison, NoticesDifferences) {
  const Json golden = read_json_file(recorded_folder("zero") / "hand-z2g1-bucket-64.json");
  const Json found = run_zero_case(golden.at("case"));
  Json bytes = found, owner = found;
  for (Json& e : bytes["events"]) {
    if (e.at("ev") == "all_reduce") e["out_bytes"] = 1;
  }
  EXPECT_TRUE(first_difference(bytes, found, "result"));
  owner["groups"][0]["first_offset"] = 1;
  EXPECT_TRUE(first_difference(owner, found, "result"));
}

}  // namespace
}  // namespace foreshard
