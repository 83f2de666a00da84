#pragma once

#include <string>

#include "study/job.h"

namespace foreshard {

/// What a job may still do to need less device memory, in words and options: "more GPUs,
/// --checkpoint full or --offload both"; nothing that it does already, and no more GPUs where these
/// hold whole copies or padded ones.
std::string ways_to_fit(const Job& job);

}  // namespace foreshard
