#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "sim/cost/collective_calibrate.h"

namespace foreshard {
namespace {

/// Times of a machine whose true corrections are known.
CalibrationInput measured_with(const std::string& hardware, const GroupPlacement& placement,
                               CollectiveKind kind, const CollectiveTuning& truth) {
  CalibrationInput input{load_hardware(hardware), placement, kind, {}, {}};
  const CollectiveModel model(input.profile, placement, truth);
  for (std::int64_t bytes = 1024; bytes <= (std::int64_t{1} << 33); bytes *= 2) {
    input.samples.push_back({Bytes(bytes), to_seconds(model.cost(kind, Bytes(bytes)).time)});
  }
  return input;
}

bool warns_of(const CollectiveCalibration& calibration, const std::string& word) {
  return std::any_of(calibration.warnings.begin(), calibration.warnings.end(),
                     [&](const std::string& w) { return w.find(word) != std::string::npos; });
}

TEST(Calibrate, LeavesAMachineAloneThatMeetsItsCatalogue) {
  const auto result = calibrate_collectives(
      measured_with("dgx-h100", place_block(8, 1), CollectiveKind::kAllGather, {}));
  EXPECT_LT(result.mean_error, 0.001);
  EXPECT_NEAR(result.tuning.link_rate, 1, 0.005);
  EXPECT_TRUE(result.warnings.empty());
}

TEST(Calibrate, FindsHalfTheNvLinksAndSaysSo) {
  CollectiveTuning truth;
  truth.link_rate = 0.5;
  const auto result = calibrate_collectives(
      measured_with("dgx-h100", place_block(8, 1), CollectiveKind::kAllGather, truth));
  EXPECT_NEAR(result.tuning.link_rate, 0.5, 0.03);
  EXPECT_TRUE(warns_of(result, "NVLink reaches 5"));
  EXPECT_LT(result.mean_error, 0.03);
}

TEST(Calibrate, FindsASlowNetworkAndItsLatency) {
  CollectiveTuning truth;
  truth.network_rate = 0.6;
  truth.network_latency = 1.5;
  const auto result = calibrate_collectives(
      measured_with("dgx-h100@200g", place_block(16, 2), CollectiveKind::kAllGather, truth));
  EXPECT_NEAR(result.tuning.network_rate, 0.6, 0.03);
  EXPECT_TRUE(warns_of(result, "the network reaches"));
  EXPECT_LT(result.mean_error, 0.03);
}

// An all-reduce by NVLS says nothing about rings, an all-gather nothing about NVLS: together they
// give both.
TEST(Calibrate, SeveralTablesShareOneMachine) {
  CollectiveTuning truth;
  truth.link_rate = 0.7;
  truth.nvls_rate = 0.8;
  const CalibrationInput inputs[] = {
      measured_with("dgx-h100", place_block(8, 1), CollectiveKind::kAllGather, truth),
      measured_with("dgx-h100", place_block(8, 1), CollectiveKind::kAllReduce, truth)};
  const auto results = calibrate_jointly(inputs);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_NEAR(results[0].tuning.link_rate, 0.7, 0.03);
  EXPECT_NEAR(results[0].tuning.nvls_rate, 0.8, 0.03);
  EXPECT_DOUBLE_EQ(results[0].tuning.nvls_rate, results[1].tuning.nvls_rate);
  EXPECT_LT(results[1].mean_error, 0.03);
}

TEST(Calibrate, PredictsMeasuredSizesExactlyAndKeepsTheEndsOutside) {
  auto input = measured_with("dgx-a100-80", place_block(8, 1), CollectiveKind::kAllReduce, {});
  for (std::size_t i = 0; i < input.samples.size(); ++i)
    input.samples[i].seconds *= i % 2 == 0 ? 1.1 : 0.95;
  const auto result = calibrate_collectives(input);
  for (const auto& sample : input.samples)
    EXPECT_NEAR(result.predict(sample.bytes) / sample.seconds, 1, 1e-9);
  EXPECT_GT(result.predict(Bytes(1)), 0);
  EXPECT_GT(result.predict(Bytes(std::int64_t{1} << 36)),
            result.predict(Bytes(std::int64_t{1} << 33)));
}

TEST(Calibrate, WritesFactsThatTheModelReadsBack) {
  CollectiveTuning truth;
  truth.link_rate = 0.8;
  const auto input =
      measured_with("dgx-h100", place_block(8, 1), CollectiveKind::kAllGather, truth);
  const auto result = calibrate_collectives(input);
  const auto profile = with_calibration(input.profile, result, "a log of ours");
  ASSERT_TRUE(profile.collectives.contains("link_rate_scale"));
  EXPECT_EQ(profile.collectives.at("link_rate_scale").kind, FactKind::kCalibrated);
  EXPECT_FALSE(profile.collectives.contains(
      "network_rate_scale"));  // the log says nothing about the network
  const CollectiveModel calibrated(profile, input.placement);
  const auto& largest = input.samples.back();
  EXPECT_NEAR(
      to_seconds(calibrated.cost(CollectiveKind::kAllGather, largest.bytes).time) / largest.seconds,
      1, 0.02);
}

TEST(Calibrate, RefusesNothingAndNonsense) {
  CalibrationInput input{
      load_hardware("dgx-h100"), place_block(8, 1), CollectiveKind::kAllGather, {}, {}};
  EXPECT_THROW(calibrate_collectives(input), InputError);
  input.samples.push_back({Bytes(1024), 0.0});
  EXPECT_THROW(calibrate_collectives(input), InputError);
}

}  // namespace
}  // namespace foreshard
