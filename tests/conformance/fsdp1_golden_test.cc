// Recorded event logs of PyTorch 2.15's FSDP1 against our planner (rules F1-*): units and their
// flat parameters, events, errors.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "conformance/check.h"
#include "conformance/event_log_check.h"
#include "conformance/fsdp1_run.h"
#include "core/error.h"
#include "core/json.h"
#include "tests/conformance/recorded_cases.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

class Fsdp1Golden : public ::testing::TestWithParam<fs::path> {};

TEST_P(Fsdp1Golden, UnitsEventsAndErrorsAgree) { expect_recorded("fsdp1", GetParam()); }

INSTANTIATE_TEST_SUITE_P(Recorded, Fsdp1Golden, ::testing::ValuesIn(recorded_cases("fsdp1")),
                         recorded_name);

/// What golden_check says of a recording that was changed.
std::string difference_of(const Json& changed) {
  const fs::path file = fs::temp_directory_path() / "foreshard_fsdp1_changed.json";
  std::ofstream(file) << changed.dump();
  const auto results = check_all(*find_check_kind("fsdp1"), {file});
  fs::remove(file);
  return results.at(0).first_difference;
}

Json recording() { return read_json_file(recorded_folder("fsdp1") / "seed-700103.json"); }

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
  Json golden = read_json_file(recorded_folder("fsdp1") / "seed-700077.json");
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
