#pragma once

// `calibrate runs --on`: numbers of one machine's profile that explain its own measured runs best,
// near what the profile says of them now.

#include <string>
#include <vector>

#include "hwprofiles/profile.h"
#include "study/runs_table.h"

namespace foreshard {

/// A number of the profile, or several that move together, and what the rows made of it.
struct CalibratedNumber {
  std::string path;              ///< "gpu.efficiency.matmul_training"; "machine to machine"
  double factor = 1;             ///< On what the profile said; rates also take the machine's.
  double sd_before = 0, sd = 0;  ///< Of the factor, without and with the rows.
};

struct CalibratedRun {
  std::string row_id;
  double measured_s = 0;
  double before_s = 0, fitted_s = 0;  ///< Predicted by the profile as it was, and as fitted.
  std::string left_out;  ///< Not empty: why it took no part; the times then say nothing.
  std::vector<std::string> assumptions;
};

struct MachineCalibration {
  HardwareProfile profile;
  std::vector<CalibratedNumber> numbers;  ///< Those that the rows say something of.
  std::vector<CalibratedRun> runs;        ///< In the table's order.
  std::vector<std::string> warnings;
};

/// Every uncertain number of the profile (study/uncertainty.h) may move by its own uncertainty, and
/// all rates of its GPU together by what machines of one type differ. One row is enough.
/// InputError if no row can take part.
MachineCalibration calibrate_machine(const RunsTable& table, const HardwareProfile& machine);

}  // namespace foreshard
