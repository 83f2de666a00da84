// Recorded event logs of PyTorch 2.15's DistributedDataParallel against our planner (rules D-1 to
// D-10).

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "conformance/ddp_run.h"
#include "conformance/json_compare.h"
#include "core/json.h"
#include "tests/conformance/recorded_cases.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

class DdpGolden : public ::testing::TestWithParam<fs::path> {};

TEST_P(DdpGolden, EventsBucketsAndErrorsAgree) { expect_recorded("ddp", GetParam()); }

INSTANTIATE_TEST_SUITE_P(Recorded, DdpGolden, ::testing::ValuesIn(recorded_cases("ddp")),
                         recorded_name);

/// The comparison notices a changed byte count and a parameter in another bucket.
TEST(DdpGoldenComparison, NoticesDifferences) {
  const Json golden = read_json_file(recorded_folder("ddp") / "rebuild-default.json");
  const Json found = run_ddp_case(golden.at("case"));
  Json bytes = found, member = found;
  for (Json& e : bytes["events"]) {
    if (e.at("ev") == "all_reduce") e["out_bytes"] = 1;
  }
  EXPECT_TRUE(first_difference(bytes, found, "result"));
  member["buckets"][0]["launches"][0]["params"][0] = "another";
  EXPECT_TRUE(first_difference(member, found, "result"));
}

}  // namespace
}  // namespace foreshard
