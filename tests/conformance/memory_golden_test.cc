// Memory of small models, phase by phase and to the byte, retries and out of memory included,
// against recordings of the real libraries.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "conformance/memory_check.h"

namespace foreshard {
namespace {

std::vector<std::filesystem::path> recordings() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(FORESHARD_SOURCE_DIR "/tests/conformance/data/memory")) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

class MemoryRecording : public ::testing::TestWithParam<std::filesystem::path> {};

TEST_P(MemoryRecording, EveryPhaseToTheByte) {
  const std::vector<CheckResult> results = check_memory(GetParam());
  ASSERT_EQ(results.size(), 1u);
  EXPECT_TRUE(results[0].ok) << results[0].first_difference;
}

INSTANTIATE_TEST_SUITE_P(SmallModels, MemoryRecording, ::testing::ValuesIn(recordings()),
                         [](const auto& recording) { return recording.param.stem().string(); });

}  // namespace
}  // namespace foreshard
