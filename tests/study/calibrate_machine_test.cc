#include "study/calibrate_machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/json.h"
#include "study/planned_run.h"
#include "study/run_hardware.h"
#include "study/uncertainty.h"

namespace foreshard {
namespace {

MeasuredRun gpt2_run(std::int64_t gpus, std::int64_t micro_batch) {
  MeasuredRun r;
  r.row_id = std::to_string(gpus) + " x " + std::to_string(micro_batch);
  r.model = "gpt2";
  r.strategy = "FSDP2";
  r.n_gpus = gpus;
  r.micro_batch = micro_batch;
  r.seq_len = 1024;
  return r;
}

/// The run's step on a machine, in s.
double step_on(const HardwareProfile& machine, const MeasuredRun& run) {
  const PlannedRun planned(job_of_run(run, {}, &machine));
  return to_seconds(planned.simulate_on(machine, MemoryDetail::kNone).step_time);
}

RunsTable measured(std::vector<MeasuredRun> runs, const HardwareProfile& truth, double factor = 1) {
  for (MeasuredRun& r : runs) r.step_time_s = factor * step_on(truth, r);
  return {"mine.csv", std::move(runs), {}};
}

TEST(CalibrateMachine, WhatIsMeasuredAsPredictedChangesNoNumber) {
  const HardwareProfile machine = load_hardware("dgx-h100");
  const MachineCalibration found =
      calibrate_machine(measured({gpt2_run(8, 8), gpt2_run(8, 16)}, machine), machine);
  for (const CalibratedNumber& n : found.numbers) {
    EXPECT_NEAR(n.factor, 1, 1e-6) << n.path;
    EXPECT_LT(n.sd, n.sd_before) << n.path;
  }
  EXPECT_EQ(found.numbers.empty(), false);
  EXPECT_NEAR(found.runs[0].fitted_s / found.runs[0].before_s, 1, 1e-6);
}

// Bayes for one row: of log(measured / predicted) the prediction takes V / (V + 0.033^2), where V
// is the variance that the prediction's own uncertainty states (numbers and machine to machine).
TEST(CalibrateMachine, OneRowMovesThePredictionByWhatItsUncertaintyAllows) {
  const HardwareProfile machine = load_hardware("dgx-h100");
  const MeasuredRun run = gpt2_run(8, 16);
  for (const double factor : {0.95, 1.05}) {
    const MachineCalibration found = calibrate_machine(measured({run}, machine, factor), machine);
    const PlannedRun planned(job_of_run(run, {}, &machine));
    const CalibratedRun& row = found.runs.at(0);
    const double sd =
        uncertainty_of(planned.job().job, planned.schedule(), from_seconds(row.before_s)).sd;
    const double share = sd * sd / (sd * sd + 0.033 * 0.033);
    EXPECT_NEAR(std::log(row.fitted_s / row.before_s) / std::log(factor), share, 0.06) << factor;
    EXPECT_GT(share, 0.5);
    const PlannedRun after(job_of_run(run, {}, &found.profile));
    EXPECT_LT(uncertainty_of(after.job().job, after.schedule(), from_seconds(row.fitted_s)).sd, sd);
  }
}

// A machine whose GPUs do everything 8 % slower than its type: from four of its steps the fifth, of
// another batch and other GPUs, is predicted better than half as far off as before.
TEST(CalibrateMachine, StepsOfASlowMachinePredictItsOtherSteps) {
  const HardwareProfile machine = load_hardware("dgx-a100-80");
  HardwareProfile slow = machine;
  for (auto& [key, fact] : slow.gpu.efficiency) {
    if (key == "matmul_training" || key == "memory_bound" ||
        (key.starts_with("attention_") && !key.ends_with("_half_length") &&
         !key.ends_with("_ratio")))
      fact.value /= 1.08;
  }
  const MachineCalibration found = calibrate_machine(
      measured({gpt2_run(8, 8), gpt2_run(8, 16), gpt2_run(4, 8), gpt2_run(4, 32)}, slow), machine);
  const MeasuredRun other = gpt2_run(2, 24);
  const double truth = step_on(slow, other);
  EXPECT_LT(step_on(machine, other), 0.94 * truth);
  EXPECT_NEAR(step_on(found.profile, other) / truth, 1, 0.025);
  // Read back from a file it is the same machine, and its numbers say what they rest on.
  const HardwareProfile read = parse_hardware(to_json(found.profile).dump(), "box.json");
  EXPECT_NEAR(step_on(read, other) / step_on(found.profile, other), 1, 1e-9);
  const Fact* matmul = read.gpu.find_efficiency("matmul_training");
  EXPECT_EQ(matmul->kind, FactKind::kCalibrated);
  EXPECT_EQ(matmul->source.rfind("foreshard calibrate runs on 4 rows (mine.csv)", 0), 0u);
}

// A share of a whole stays one, whatever the rows want.
TEST(CalibrateMachine, NoShareOfThePeakPassesOne) {
  HardwareProfile machine = load_hardware("dgx-a100-80");
  Fact& share = machine.gpu.efficiency["matmul_training"];
  share.value = 0.97;
  share.uncertainty = 0.5;
  const MachineCalibration found =
      calibrate_machine(measured({gpt2_run(8, 32)}, machine, 0.6), machine);
  EXPECT_EQ(found.profile.gpu.find_efficiency("matmul_training")->value, 1);
  ASSERT_EQ(found.warnings.size(), 1u);
  EXPECT_NE(found.warnings[0].find("gpu.efficiency.matmul_training"), std::string::npos);
  EXPECT_NO_THROW(parse_hardware(to_json(found.profile).dump(), "box.json"));
}

TEST(CalibrateMachine, AGpusNameIsOfItsChip) {
  const GpuProfile h100 = load_gpu("h100-80"), ada = load_gpu("rtx-6000-ada");
  EXPECT_FALSE(names_other_gpu("", h100));
  EXPECT_FALSE(names_other_gpu("NVIDIA H100 80GB HBM3", h100));
  EXPECT_TRUE(names_other_gpu("NVIDIA A100-SXM4-80GB", h100));
  EXPECT_FALSE(names_other_gpu("RTX6000Ada", ada));
  EXPECT_TRUE(names_other_gpu("RTX4090", ada));
}

}  // namespace
}  // namespace foreshard
