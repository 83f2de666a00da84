#pragma once

// One question to the tool: a model, how it is trained, and the machines. Every study varies one of
// these.

#include <cstdint>
#include <memory>
#include <string>

#include "hwprofiles/profile.h"
#include "memory/options.h"
#include "models/module_tree.h"
#include "schedules/planner/config.h"
#include "sim/cost/parameters.h"

namespace foreshard {

struct Job {
  std::shared_ptr<const Model> model;  ///< Shared: studies copy jobs by the hundred.
  ParallelConfig config;
  HardwareProfile hardware;
  std::int64_t gpus = 1;  ///< = config.world().
  AttentionKernel attention_kernel =
      AttentionKernel::kFlash2;  ///< Generation of the flash kernels.
  AllocatorOptions allocator;    ///< PYTORCH_CUDA_ALLOC_CONF.

  CostParameters cost_parameters() const;  ///< The defaults with what the job says of kernels.
};

/// "bf16", as --model-dtype and its like are typed.
std::string short_dtype(DType dtype);
/// Precision and recomputation in a few words: "bf16, fp32 reduce, full checkpointing".
std::string describe_precision(const ParallelConfig& config);
/// Wrapping and resharding in a few words: "every 2 blocks, kept gathered"; empty for a framework
/// that forms no units.
std::string describe_wrapping(const ParallelConfig& config);
/// "8 x H100 80 GB (1 node)".
std::string describe_machines(const HardwareProfile& hardware, std::int64_t gpus);

}  // namespace foreshard
