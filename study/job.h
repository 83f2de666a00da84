#pragma once

// One question to the tool: a model, how it is trained, and the machines. Every study varies one of
// these.

#include <cstdint>
#include <memory>
#include <string>

#include "core/enum_names.h"
#include "hwprofiles/profile.h"
#include "memory/options.h"
#include "models/module_tree.h"
#include "schedules/planner/config.h"
#include "sim/cost/parameters.h"

namespace foreshard {

/// As --attention-kernel names them.
inline constexpr EnumName<AttentionKernel> kAttentionKernelNames[] = {
    {AttentionKernel::kFlash2, "flash2"},
    {AttentionKernel::kFlash1, "flash1"},
    {AttentionKernel::kFlash3, "flash3"},
    {AttentionKernel::kCudnn, "cudnn"}};
static_assert(names_each(kAttentionKernelNames));

struct Job {
  std::shared_ptr<const Model> model;  ///< Shared: studies copy jobs by the hundred.
  ParallelConfig config;
  HardwareProfile hardware;
  std::int64_t gpus = 1;  ///< = config.world().
  AttentionKernel attention_kernel =
      AttentionKernel::kFlash2;  ///< Generation of the flash kernels.
  bool tf32 =
      false;  ///< fp32 products on tensor cores: torch.set_float32_matmul_precision("high").
  AllocatorOptions allocator;  ///< PYTORCH_CUDA_ALLOC_CONF.

  /// It is asked with a number of tokens (Model::takes_sequences()).
  bool has_tokens() const { return model->takes_sequences(); }
  CostParameters cost_parameters() const;  ///< The defaults with what the job says of kernels.
};

/// "bf16", as --model-dtype and its like are typed.
std::string short_dtype(DType dtype);
/// Dtype of the matrix products of forward.
DType compute_dtype(const ParallelConfig& config);
/// Dtype in which gradients travel between ranks: FSDP's reduce_dtype, DeepSpeed's
/// communication_data_type, that of DDP's hook or mixed precision.
DType reduction_dtype(const ParallelConfig& config);
/// Why this GPU has no such attention kernel; "" if it has. flash-attention 2 needs Ampere or
/// later, flash-attention 1 Turing or later, flash-attention 3 Hopper, cuDNN's Ampere or later
/// (READMEs of Dao-AILab/flash-attention; torch/backends/cuda: sm80 for flash and cuDNN).
std::string lacks_attention_kernel(AttentionKernel kernel, const GpuProfile& gpu);
/// The same of the kernel that the job takes. Unless it was asked for, or is flash-attn's own, the
/// job then takes SDPA's memory-efficient kernel, as PyTorch does.
std::string settle_attention(Job& job, bool asked);
/// Precision and recomputation in a few words: "bf16, fp32 reduce, full checkpointing".
std::string describe_precision(const Job& job, bool with_checkpoints = true);
/// The batch in a few words: "seq 4096 · micro-batch 1 · accumulate 4 · global batch 32 sequences
/// (131,072 tokens)"; samples where the model takes no tokens.
std::string describe_batch(const Job& job);
/// Optimizer, attention and loss in a few words: "AdamW fused, clipping · flash attention (flash2)
/// · loss float32".
std::string describe_training(const Job& job);
/// Wrapping and resharding in a few words: "every 2 blocks, kept gathered"; empty for a framework
/// that forms no units.
std::string describe_wrapping(const ParallelConfig& config);
/// NICs of a node, such as "8 x 400 Gb/s ib"; "" where there are none.
std::string network_text(const HardwareProfile& hardware);
/// "8 x H100 80 GB (1 node)".
std::string describe_machines(const HardwareProfile& hardware, std::int64_t gpus);

}  // namespace foreshard
