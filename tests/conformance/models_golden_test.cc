// Facts of small models of every family, taken from transformers 5.24 on the meta device, against
// our importer and planner.

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/conformance/recorded_cases.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

class ModelsGolden : public ::testing::TestWithParam<fs::path> {};

TEST_P(ModelsGolden, TensorsUnitsFlopsAndSavedBytesAgree) { expect_recorded("models", GetParam()); }

INSTANTIATE_TEST_SUITE_P(Recorded, ModelsGolden, ::testing::ValuesIn(recorded_cases("models")),
                         recorded_name);

}  // namespace
}  // namespace foreshard
