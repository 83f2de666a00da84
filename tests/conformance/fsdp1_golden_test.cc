// Recorded event logs of PyTorch 2.15's FSDP1 against our planner (rules F1-*): units and their
// flat parameters, events, errors.

#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "conformance/check.h"
#include "conformance/event_log_check.h"
#include "conformance/fsdp1_run.h"
#include "conformance/golden_files.h"
#include "core/error.h"
#include "core/json.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

fs::path data_folder() { return fs::path(FORESHARD_SOURCE_DIR) / "tests/conformance/data/fsdp1"; }

std::vector<fs::path> cases() { return golden_files({data_folder()}); }

std::string test_name(const ::testing::TestParamInfo<fs::path>& info) {
  std::string name = info.param.filename().string();
  name = name.substr(0, name.find(".json"));
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

class Fsdp1Golden : public ::testing::TestWithParam<fs::path> {};

TEST_P(Fsdp1Golden, UnitsEventsAndErrorsAgree) {
  const auto results = check_all(*find_check_kind("fsdp1"), {GetParam()});
  ASSERT_EQ(results.size(), 1U);
  EXPECT_TRUE(results[0].ok) << results[0].first_difference;
}

INSTANTIATE_TEST_SUITE_P(Recorded, Fsdp1Golden, ::testing::ValuesIn(cases()), test_name);

/// What golden_check says of a recording that was changed.
std::string difference_of(const Json& changed) {
  const fs::path file = fs::temp_directory_path() / "foreshard_fsdp1_changed.json";
  std::ofstream(file) << changed.dump();
  const auto results = check_all(*find_check_kind("fsdp1"), {file});
  fs::remove(file);
  return results.at(0).first_difference;
}

Json recording() { return read_json_file(data_folder() / "seed-700103.json"); }

TEST(Fsdp1GoldenComparison, NoticesAChangedEvent) {
  Json golden = recording();
  for (Json& e : golden["result"]["events"]) {
    if (e.at("ev") == "reduce_scatter") e["out_bytes"] = 1;
  }
  EXPECT_NE(difference_of(golden).find("out_bytes: expected 1"), std::string::npos);
}

TEST(Fsdp1GoldenComparison, TablesComeBeforeEvents) {
  Json golden = recording();
  golden["result"]["events"][0]["step"] = 7;
  golden["result"]["units"][1]["S"] = 1;
  EXPECT_TRUE(difference_of(golden).starts_with("result.units[1].S: expected 1"));
}

TEST(Fsdp1GoldenComparison, ErrorsDifferByTypeNotByMessage) {
  Json golden = read_json_file(data_folder() / "seed-700077.json");
  golden["result"]["error"]["message"] = "other words";
  EXPECT_EQ(difference_of(golden), "");
  golden["result"]["error"]["type"] = "AssertionError";
  EXPECT_NE(difference_of(golden).find("ValueError"), std::string::npos);
}

TEST(Fsdp1GoldenComparison, UnknownOptionsAreNamed) {
  Json golden = recording();
  golden["case"]["options"]["no_such_option"] = true;
  EXPECT_NE(difference_of(golden).find("no_such_option"), std::string::npos);
  golden = recording();
  golden["case"]["wrap"]["policy"] = "siez";
  EXPECT_NE(difference_of(golden).find("siez"), std::string::npos);
}

/// Step 1 repeats step 0 without what came before the end of the set-up.
TEST(EventLog, RepeatedStepsAreWrittenOut) {
  const auto ev = [](const char* name) { return Json{{"ev", name}}; };
  const Json log{{{"ev", "step_begin"}, {"step", 0}},
                 ev("setup"),
                 ev("setup_end"),
                 ev("a"),
                 {{"ev", "step_begin"}, {"step", 1}},
                 {{"ev", "same_as_step"}, {"step", 0}}};
  const Json once = expand_repeated_steps(log, "setup_end");
  ASSERT_EQ(once.size(), 6U);
  EXPECT_EQ(once[5], ev("a"));
  EXPECT_EQ(expand_repeated_steps(log).size(), 8U);
}

}  // namespace
}  // namespace foreshard
