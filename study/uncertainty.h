#pragma once

// How far a predicted step time may be off, from what is known of the numbers behind it.

#include <cstddef>
#include <string>
#include <vector>

#include "schedules/schedule.h"
#include "sim/cost/parameters.h"
#include "sim/simulator.h"
#include "study/job.h"

namespace foreshard {

/// A number of a profile that may be wrong, or several that are wrong together.
struct UncertainNumber {
  std::string path;          ///< "gpu.efficiency.matmul_training"
  std::vector<Fact*> facts;  ///< Of the profile that was asked.
  int slower = -1;           ///< -1: a smaller value is slower, 1: a larger one.
  double sd = 0;             ///< Relative; judged by kind where the profile does not say.
  std::string source{};      ///< Where `sd` comes from.
};

/// Numbers of `profile`, a copy of the job's hardware, on which its step may depend.
std::vector<UncertainNumber> uncertain_numbers(const Job& job, const Schedule& schedule,
                                               HardwareProfile& profile);
/// Relative standard deviation of one machine's step times against another's of its type.
double machine_spread_of(const GpuProfile& gpu);

/// One source of uncertainty of a step time.
struct UncertainInput {
  std::string quantity;  ///< "gpu.efficiency.matmul_training", "machine to machine", ...
  double sd = 0;         ///< Of the input, relative.
  double effect = 0;     ///< What one standard deviation does to the step, relative.
  std::string source;    ///< Where `sd` comes from.
};

struct StepUncertainty {
  double sd = 0;  ///< Of the step time, relative: root of the sum of squares of the effects.
  Time p10, p90;  ///< Of a normal distribution around the prediction.
  std::vector<UncertainInput>
      inputs;  ///< Largest effect first; those below a tenth of the largest are dropped.
  /// Why the job lies outside what was calibrated; empty: inside.
  std::vector<std::string> outside;
};

/// Why the job lies outside what was calibrated; empty: inside.
std::vector<std::string> outside_calibration(const Job& job);

/// Simulates the job again with each uncertain number one standard deviation worse.
class UncertaintyStudy {
 public:
  /// Job and simulator must outlive it. `parameters`: those that the job is predicted with.
  UncertaintyStudy(const Job& job, const Simulator& simulator, const CostParameters& parameters);

  /// Simulations to run: each once, in any order and on any thread; then finish().
  std::size_t runs() const { return runs_.size(); }
  void run(std::size_t index);
  /// `step`: the job's predicted time.
  StepUncertainty finish(Time step) const;

 private:
  /// The job with one number worse; in the first run none is.
  struct Run {
    UncertainInput input;  ///< But for the effect.
    HardwareProfile hardware;
    CostParameters parameters;
    Time step;  ///< Once it has run.
  };

  void add_measured_bus(const CostParameters& parameters);

  const Job& job_;
  const Simulator& simulator_;
  std::vector<Run> runs_;
};

/// All of it. `step`: the job's predicted time.
StepUncertainty uncertainty_of(const Job& job, const Schedule& schedule, Time step);
/// With other parameters than the job's own (work of a measured run that its schedule lacks).
StepUncertainty uncertainty_of(const Job& job, const Schedule& schedule, Time step,
                               const CostParameters& parameters);
/// True if `measured` lies between the tenth and the ninetieth percentile around `predicted`.
bool within_p10_p90(double predicted, double measured, double sd);

}  // namespace foreshard
