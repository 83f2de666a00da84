#include "cli/plan_file.h"

#include "core/error.h"
#include "schedules/json.h"
#include "schedules/text.h"
#include "schedules/validate.h"
#include "study/reference.h"

namespace foreshard::cli {

void PlanFile::write(const std::filesystem::path& path) const {
  write_schedule_file(schedule, path, reference ? &*reference : nullptr);
}

PlanOptions plan_file_options(const Job& job) {
  PlanOptions options;
  options.steps = steady_steps(job.config);
  return options;
}

PlanFile plan_file_of(const Job& job, const PlanOptions& options, bool with_reference) {
  PlanFile file{plan(*job.model, job.config, options), std::nullopt};
  for (const ScheduleFinding& f : validate(file.schedule))
    throw InternalError("the planner made a schedule that does not hold:\n  " +
                        text_of(file.schedule, f));
  if (options.executable && with_reference) file.reference = reference_plan(job, options.steps);
  return file;
}

}  // namespace foreshard::cli
