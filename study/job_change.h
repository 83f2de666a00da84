#pragma once

// A change of a job as a user types it, and what it does to the job: the words of every advice that
// the program prints, in one place. What is printed can be added to the command line as it stands;
// an option there replaces an earlier one of the same name.

#include <cstdint>
#include <functional>
#include <string>

#include "study/job.h"

namespace foreshard {

/// FSDP1 strategies that keep parameters after forward.
bool keeps_gathered(Fsdp1Options::Strategy strategy);

struct JobChange {
  std::string options;  ///< "--micro-batch 2".
  std::function<void(Job&)> apply;
  bool replans = true;  ///< False: the job's plan stays as it is, only what it runs on changes.

  /// Both, in this order.
  JobChange operator+(const JobChange& next) const;
  bool empty() const { return options.empty(); }
};

namespace change {

JobChange micro_batch(std::int64_t sequences);
JobChange no_checkpoint();
JobChange full_checkpoint();
JobChange checkpoint_every(std::int64_t blocks);
JobChange selective_checkpoint();
JobChange loss(LossKind kind);
JobChange optimizer(OptimizerKind kind);
JobChange offload(OffloadKind kind);
JobChange sync_each_micro_batch(bool on);
JobChange prefetch_backward(std::int64_t units);
JobChange reduce_dtype(DType dtype);
/// Parameters as built and their optimizer states in 16 bits.
JobChange model_dtype(const Job& job, DType dtype);
/// LoRA of rank 16 on the default targets over frozen weights in bf16.
JobChange adapters(const Job& job);
/// Frozen linear weights in four bits (QLoRA); for a model with adapters.
JobChange four_bit_base();
JobChange expandable_segments();
/// torch.compile of each block.
JobChange compile();
JobChange attention_kernel(AttentionKernel kernel);
JobChange tf32();
/// ZeRO++: gathers after a release come from so many neighbours; weights are gathered in int8.
JobChange secondary_partition(std::int64_t ranks);
JobChange quantised_weights();
/// The same job under FSDP1, whose flat parameters are cut without padding whole rows. Empty where
/// the job says something that FSDP1 has other options for.
JobChange to_fsdp1(const Job& job);

/// `wrap` alone; root_split(...) is an option of its own.
JobChange wrap(const WrapPolicy& policy);
JobChange root_split(bool on);
/// Gathered parameters are freed after forward, or kept; in the words of the job's framework, for
/// the job's number of copies.
JobChange resharding(const Job& job, bool on);
/// shard x replicate on so many GPUs (with a strategy that has copies, where that is FSDP1's).
JobChange mesh(const Job& job, std::int64_t shard, std::int64_t replicate);
/// On `times` the GPUs, sharded over all of them.
JobChange more_gpus(const Job& job, std::int64_t times);

}  // namespace change
}  // namespace foreshard
