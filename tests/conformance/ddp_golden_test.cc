// Recorded event logs of PyTorch 2.15's DistributedDataParallel against our planner (rules D-1 to
// D-10).

#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <string>
#include <vector>

#include "conformance/check.h"
#include "conformance/ddp_run.h"
#include "conformance/golden_files.h"
#include "conformance/json_compare.h"
#include "core/json.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

fs::path data_folder() { return fs::path(FORESHARD_SOURCE_DIR) / "tests/conformance/data/ddp"; }

std::vector<fs::path> cases() { return golden_files({data_folder()}); }

std::string test_name(const ::testing::TestParamInfo<fs::path>& info) {
  std::string name = info.param.filename().string();
  name = name.substr(0, name.find(".json"));
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

class DdpGolden : public ::testing::TestWithParam<fs::path> {};

TEST_P(DdpGolden, EventsBucketsAndErrorsAgree) {
  const auto results = check_all(*find_check_kind("ddp"), {GetParam()});
  ASSERT_EQ(results.size(), 1U);
  EXPECT_TRUE(results[0].ok) << results[0].first_difference;
}

INSTANTIATE_TEST_SUITE_P(Recorded, DdpGolden, ::testing::ValuesIn(cases()), test_name);

/// The comparison notices a changed byte count and a parameter in another bucket.
TEST(DdpGoldenComparison, NoticesDifferences) {
  const Json golden = read_json_file(data_folder() / "rebuild-default.json");
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
