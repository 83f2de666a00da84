#pragma once

#include <cstdint>

#include "cli/foreign/key_table.h"

namespace foreshard::cli::deepspeed {

/// What stands in DeepSpeed's file, as options. `gpus` 0: not said.
void read(Json config, std::int64_t gpus, ForeignJob& job, IssueList& issues);

/// The batch as DeepSpeed completes it (config.py: _set_batch_related_parameters).
void read_batch(KeyReader& keys, std::int64_t gpus);
/// Dtypes of parameters, gradients and reductions.
void read_precision(KeyReader& keys);
void read_optimizer(KeyReader& keys, bool offloaded);

}  // namespace foreshard::cli::deepspeed
