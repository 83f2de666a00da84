#pragma once

// Memory while a checkpoint is saved or loaded, on the device and in host memory, from PyTorch's
// rules (torch/distributed/checkpoint/state_dict.py, _state_dict_utils.py, filesystem.py of 2.15)
// and DeepSpeed's of saving (runtime/engine.py: save_checkpoint of 0.19.8).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/units.h"
#include "memory/options.h"
#include "models/module_tree.h"
#include "schedules/planner/config.h"
#include "schedules/schedule.h"

namespace foreshard {

/// One way to save or load. Host memory counts the state alone, without what Python, the framework
/// and page caches take.
struct CheckpointRow {
  std::string phase;          ///< "save" or "load".
  std::string way;            ///< "whole, gathered to rank 0", ...
  Bytes allocated, reserved;  ///< Device peaks meanwhile: what rests there, and what comes with it.
  Bytes host;                 ///< Of the rank that needs most.
  Bytes host_node;            ///< Of the node that needs most.
  bool fits = true, host_fits = true;  ///< Device and node have this much.
};

struct CheckpointSetting {
  AllocatorOptions allocator;
  Bytes device_memory;  ///< What the allocator may take: without context and communicators.
  std::int64_t ranks_per_node = 1;
  std::optional<Bytes> host_memory;  ///< Of a node, where known.
};

/// Saving stands after the program's last step, loading before its first. Empty for sharded
/// optimizers, whose checkpoints are their trainers' own; ZeRO's loading is not studied.
std::vector<CheckpointRow> study_checkpoints(const Model& model, const ParallelConfig& config,
                                             const RankProgram& program,
                                             const CheckpointSetting& setting);

}  // namespace foreshard
