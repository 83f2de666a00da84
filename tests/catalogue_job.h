#pragma once

#include <cstdint>
#include <memory>

#include "models/load_model.h"
#include "study/job.h"

namespace foreshard {

/// A catalogue model on a catalogue machine, sharded over all GPUs.
inline Job catalogue_job(const char* model, const char* machine, std::int64_t gpus,
                         FrameworkKind framework = FrameworkKind::kFsdp2) {
  Job job;
  job.model = std::make_shared<const Model>(load_model(model));
  job.hardware = load_hardware(machine);
  job.gpus = job.config.shard = gpus;
  job.config.framework = framework;
  return job;
}

}  // namespace foreshard
