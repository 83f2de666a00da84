// Recorded event logs of PyTorch 2.15's fully_shard against our planner (rules F2-*; the case of
// each rule carries its id).

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "conformance/check.h"
#include "conformance/fsdp2_run.h"
#include "conformance/golden_files.h"
#include "conformance/json_compare.h"
#include "core/json.h"
#include "tests/conformance/recorded_cases.h"
#include "tests/shared_folder.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

class Fsdp2Golden : public ::testing::TestWithParam<fs::path> {};

TEST_P(Fsdp2Golden, EventsUnitsAndErrorsAgree) { expect_recorded("fsdp2", GetParam()); }

INSTANTIATE_TEST_SUITE_P(Recorded, Fsdp2Golden, ::testing::ValuesIn(recorded_cases("fsdp2")),
                         recorded_name);

/// The comparison notices one changed byte count, one missing event and one changed unit.
TEST(Fsdp2GoldenComparison, NoticesEveryKindOfDifference) {
  const Json golden = read_json_file(recorded_folder("fsdp2") / "case_f2_b_1_default.json");
  const Json found = run_fsdp2_case(golden.at("case"));
  EXPECT_FALSE(first_difference(golden.at("result"), found, "result"));
  Json bytes = golden.at("result"), missing = bytes, unit = bytes;
  for (Json& e : bytes["events"]) {
    if (e.at("ev") == "all_gather") e["out_bytes"] = 1;
  }
  EXPECT_TRUE(first_difference(bytes, found, "result"));
  missing["events"].erase(missing["events"].size() - 1);
  EXPECT_TRUE(first_difference(missing, found, "result"));
  unit["units"][0]["S"] = 1;
  EXPECT_TRUE(first_difference(unit, found, "result"));
}

/// All recorded cases, where the folder of recordings is present.
TEST(Fsdp2Golden, AllRecordedCases) {
  const fs::path folder = shared_folder() / "golden/fsdp2";
  FORESHARD_NEEDS(folder);
  for (const CheckResult& r : check_all(*find_check_kind("fsdp2"), {folder}))
    EXPECT_TRUE(r.ok) << r.id << ": " << r.first_difference;
}

}  // namespace
}  // namespace foreshard
