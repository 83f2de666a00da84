#pragma once

// Which measured rates of a GPU (docs/formats/hardware.md, "efficiency") an attention kernel is
// priced by, with what stands in where a kernel was not measured.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hwprofiles/profile.h"
#include "schedules/schedule.h"
#include "sim/cost/parameters.h"

namespace foreshard {

enum class AttentionDirection : std::uint8_t { kForward, kBackward };

/// The kernel that a launch of class kAttention runs: the job's for fused ones; the
/// memory-efficient kernel is of flash-attention 1's generation.
AttentionKernel attention_kernel_of(const Launch& launch, AttentionKernel of_job);
AttentionDirection attention_direction_of(const Launch& launch);

/// One measured rate: its name in the keys, "fa2", "fa3" or "cudnn", and the key of its efficiency.
struct AttentionRateKey {
  std::string kernel, key;
};
/// The rate that `kernel` takes for heads of 64 or 128: its own, else that of the next kernel of
/// its speed. Flash-attention 1's are flash-attention 2's for heads of 128 times a ratio. Empty
/// where none was measured: half the 16-bit peak is taken.
AttentionRateKey attention_rate_key(const GpuProfile& gpu, AttentionKernel kernel, int head_size,
                                    AttentionDirection direction);
/// The key of flash-attention 1's ratio to flash-attention 2.
std::string flash1_ratio_key(AttentionDirection direction);

/// Share of the rate for heads of 128 in that of other heads; between 64 and 128 it is a straight
/// line.
double wide_share(AttentionKernel kernel, double head_size);

/// The name that the kernel's own rates have in the keys.
std::string_view own_rates_of(AttentionKernel kernel);
/// The rates of a launch of class kAttention: one, or two where its head size lies between those
/// measured.
std::vector<AttentionRateKey> attention_rates(const GpuProfile& gpu, const Launch& launch,
                                              AttentionKernel of_job);
/// Every number of the GPU that the launch's rates rest on, as all_facts (hwprofiles/profile.h)
/// names them: "gpu.efficiency.attention_fa2_h64_forward"; the peak where no rate was measured.
/// Defaults for absent keys are not listed.
std::vector<std::string> attention_numbers(const GpuProfile& gpu, const Launch& launch,
                                           AttentionKernel of_job);

}  // namespace foreshard
