#pragma once

// The schedule file of a job, as `plan` and `simulate --plan` write it.

#include <filesystem>
#include <optional>

#include "schedules/planner/planner.h"
#include "study/job.h"

namespace foreshard::cli {

struct PlanFile {
  Schedule schedule;
  std::optional<Schedule> reference;  ///< The same training on one rank (study/reference.h).

  /// RunError if the file cannot be written.
  void write(const std::filesystem::path& path) const;
};

/// Executable, with as many steps as it takes until the last one repeats.
PlanOptions plan_file_options(const Job& job);
/// Plans the job and checks the result. An executable plan has a reference where the job has one.
PlanFile plan_file_of(const Job& job, const PlanOptions& options, bool with_reference = true);

}  // namespace foreshard::cli
