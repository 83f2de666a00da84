#pragma once

#include <optional>

#include "schedules/schedule.h"
#include "study/job.h"

namespace foreshard {

/// The plan of the same training without sharding: one rank with the batch of all ranks. Its losses
/// and gradient norms are what sharding must not change. Plain unsharded training where the job
/// computes in the parameters' own dtype; else the job's framework on one rank, which casts as the
/// job does. Nullopt for jobs that CPU ranks cannot train (too many ranks or parameters), that have
/// one rank anyway, or that have no such form.
std::optional<Schedule> reference_plan(const Job& job, std::int64_t steps);

}  // namespace foreshard
