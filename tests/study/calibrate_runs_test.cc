#include "study/calibrate_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/json.h"
#include "hwprofiles/calibration.h"

namespace foreshard {
namespace {

std::size_t ceiling(std::string_view name) {
  const auto all = training_ceilings();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].name == name) return i;
  }
  ADD_FAILURE() << name;
  return 0;
}

/// A run of 1 s at the priors, of which `matmul` s go with the A100's matmul ceiling, measured as
/// if it were `factor`.
CalibrationRow row(const std::string& laboratory, double matmul, double factor) {
  CalibrationRow r;
  r.row_id = laboratory + std::to_string(matmul);
  r.laboratory = laboratory;
  r.model.step_s = 1;
  r.model.parts_s.assign(training_ceilings().size(), 0.0);
  r.model.parts_s[ceiling("matmul, A100")] = matmul;
  r.measured_s = 1 - matmul + matmul / factor;
  return r;
}

TEST(CalibrateRuns, AFewRowsPullTheFactorFromItsPriorAsBayesSays) {
  // One row, all matmul, measured at factor f: with r = log f the estimate is r * w / (w + 1 /
  // sd^2), w = 1 / 0.05^2 (one row of one laboratory), sd = 0.05: halfway.
  const double f = 1.02;
  const CeilingFit fit = fit_ceilings({row("a", 1, f)});
  EXPECT_NEAR(fit.factors[ceiling("matmul, A100")], std::log(f) / 2, 1e-9);
  EXPECT_NEAR(fit.sd[ceiling("matmul, A100")], 0.05 / std::sqrt(2), 1e-6);
  EXPECT_EQ(fit.factors[ceiling("matmul, H100")], 0);
  EXPECT_DOUBLE_EQ(fit.sd[ceiling("matmul, H100")], 0.08);
}

TEST(CalibrateRuns, ManyLaboratoriesThatAgreeDecide) {
  std::vector<CalibrationRow> rows;
  for (char c = 'a'; c < 'k'; ++c) {
    for (const double share : {0.5, 0.6, 0.7, 0.8})
      rows.push_back(row(std::string(1, c), share, 0.95));
  }
  const double found = std::exp(fit_ceilings(rows).factors[ceiling("matmul, A100")]);
  EXPECT_NEAR(found, 0.95, 0.01);
}

TEST(CalibrateRuns, ALaboratoryLeftOutHasNoSay) {
  const std::vector<CalibrationRow> rows{row("a", 0.8, 0.95), row("b", 0.8, 1.05),
                                         row("b", 0.7, 1.05)};
  const CeilingFit without = fit_ceilings(rows, "b"), alone = fit_ceilings({rows[0]});
  EXPECT_EQ(without.factors, alone.factors);
  EXPECT_EQ(without.rows, 1);
  EXPECT_EQ(without.laboratories, 1);
  EXPECT_GT(fit_ceilings(rows).factors[0], without.factors[0]);
}

// Two laboratories of one row each, all matmul, measured at 1 and at f: what a fit to one leaves of
// the other is half of log f plus the other half's distance (see the first test): a's residual with
// b's fit: b moved the factor by log(f) / 2, so a, measured at 1, is predicted at exp(-log(f) / 2);
// b with a's fit (factor 1) is left with log f.
TEST(CalibrateRuns, MachineSpreadIsWhatOtherLaboratoriesLeave) {
  const double f = 1.04, l = std::log(f);
  const std::vector<CalibrationRow> rows{row("a", 1, 1.0), row("b", 1, f)};
  const Json file = calibration_file(rows, fit_ceilings(rows), "two.csv");
  EXPECT_NEAR(file["gpus"]["a100-80"]["machine_spread"]["value"].get<double>(),
              std::sqrt((l * l / 4 + l * l) / 2), 1e-5);
  EXPECT_EQ(file["residuals"]["a"]["rows"], 1);
}

TEST(CalibrateRuns, EditionsOfOneLaboratoryAreOne) {
  EXPECT_EQ(laboratory_of("mpt2023"), laboratory_of("mpt2024"));
  EXPECT_EQ(laboratory_of("torchtitan_commits"), "torchtitan");
  EXPECT_EQ(laboratory_of("aws_torchtitan"), "aws");
}

TEST(TrainingCeilings, FactorsMultiplyThePriorsAndZeroGivesThemBack) {
  GpuProfile gpu = load_gpu("a100-80");
  const Fact calibrated = *gpu.find_efficiency("matmul_training");
  ASSERT_EQ(calibrated.kind, FactKind::kCalibrated);
  CeilingFactors factors(training_ceilings().size(), 0.0);
  apply_ceilings(factors, gpu);
  EXPECT_DOUBLE_EQ(gpu.find_efficiency("matmul_training")->value, calibrated.prior);
  factors[ceiling("matmul, A100")] = std::log(0.9);
  apply_ceilings(factors, gpu);
  apply_ceilings(factors, gpu);  // Not twice.
  EXPECT_DOUBLE_EQ(gpu.find_efficiency("matmul_training")->value, 0.9 * calibrated.prior);
}

TEST(TrainingCeilings, TheSlowerVariantTakesBothFactors) {
  GpuProfile gpu = load_gpu("h100-96");
  forget_calibration(gpu);
  const double prior = gpu.find_efficiency("matmul_training")->value;
  CeilingFactors factors(training_ceilings().size(), 0.0);
  factors[ceiling("matmul, H100")] = std::log(0.9);
  factors[ceiling("matmul, H100 at 500 W")] = std::log(1.1);
  apply_ceilings(factors, gpu);
  EXPECT_NEAR(gpu.find_efficiency("matmul_training")->value, prior * 0.99, 1e-12);
}

// By chip and power limit: boards of 400 W and more, not the PCIe cards, not the superchips.
TEST(TrainingCeilings, ConcernTheChipsTheyWereFittedOn) {
  std::vector<std::string> found;
  for (const std::string& name : gpu_names()) {
    const GpuProfile gpu = load_gpu(name);
    for (const TrainingCeiling& c : training_ceilings()) {
      if (c.name == "interference" && concerns(c, gpu)) found.push_back(name);
    }
  }
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found,
            (std::vector<std::string>{"a100-40", "a100-80", "a800", "h100-80", "h100-96", "h200"}));
}

// Kernel tests: 254 to 257 of 312 TFLOP/s with random data (0.82), 0.776 in training shapes at 300
// W.
TEST(TrainingCeilings, CommittedConstantsSayTheirPriorAndUncertainty) {
  for (const TrainingCeiling& c : training_ceilings()) {
    for (const std::string& name : gpu_names()) {
      const GpuProfile gpu = load_gpu(name);
      if (!concerns(c, gpu)) continue;
      for (const std::string_view key : c.efficiencies) {
        const Fact* fact = gpu.find_efficiency(key);
        ASSERT_NE(fact, nullptr) << name << " " << key;
        EXPECT_EQ(fact->kind, FactKind::kCalibrated) << name << " " << key;
        EXPECT_GT(fact->prior, 0) << name << " " << key;
        // The prior's own source stands in it, not that of the calibration before.
        EXPECT_EQ(fact->source.rfind("foreshard calibrate"), 0u) << name << " " << key;
        EXPECT_FALSE(uncalibrated_source(name, key).empty()) << name << " " << key;
        EXPECT_GT(fact->uncertainty, 0) << name << " " << key;
        EXPECT_LT(std::fabs(std::log(fact->value / fact->prior)), 2 * c.sd + 0.13)
            << name << " " << key;
      }
    }
  }
  EXPECT_NEAR(load_gpu("a100-80").find_efficiency("matmul_training")->prior,
              (255.5 / 312 + 0.776) / 2, 0.005);
}

}  // namespace
}  // namespace foreshard
