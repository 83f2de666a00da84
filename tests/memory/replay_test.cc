#include <gtest/gtest.h>

#include "tests/memory/recording.h"
#include "tests/shared_folder.h"

namespace foreshard::fixture {
namespace {

void replay_all(const std::filesystem::path& folder) {
  std::size_t decisions = 0, phases = 0;
  for (const std::string& name : recording_names(folder)) {
    Replay replay(folder, name);
    replay.run();
    for (const std::string& difference : replay.differences)
      ADD_FAILURE() << name << ": " << difference;
    EXPECT_GT(replay.decisions, 0u) << name;
    decisions += replay.decisions;
    phases += replay.phases;
  }
  ::testing::Test::RecordProperty("decisions", std::to_string(decisions));
  ::testing::Test::RecordProperty("phases", std::to_string(phases));
  EXPECT_GT(phases, 0u);
}

// Each segment decision, each phase's allocated, reserved and active bytes and their peaks, each
// step's requested and inactive split bytes, segments, retries and OOMs, as recorded from
// PyTorch 2.15.0.
TEST(Replay, OwnRecordings) {
  const std::filesystem::path folder =
      std::filesystem::path(FORESHARD_SOURCE_DIR) / "tests/memory/data";
  ASSERT_GE(recording_names(folder).size(), 8u);
  replay_all(folder);
}

TEST(Replay, SharedRecordings) {
  const std::filesystem::path folder = shared_folder() / "golden/memory";
  FORESHARD_NEEDS(folder);
  ASSERT_FALSE(recording_names(folder).empty());
  replay_all(folder);
}

}  // namespace
}  // namespace foreshard::fixture
