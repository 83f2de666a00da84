#include "sim/cost/attention_rates.h"

#include <algorithm>
#include <string_view>

namespace foreshard {
namespace {

std::string_view text_of(AttentionDirection d) {
  return d == AttentionDirection::kForward ? "forward" : "backward";
}

/// Names in the keys, best first.
std::vector<std::string_view> stand_ins(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::kFlash2:
    case AttentionKernel::kFlash1:
      return {"fa2"};
    case AttentionKernel::kFlash3:
      return {"fa3", "cudnn", "fa2"};
    case AttentionKernel::kCudnn:
      return {"cudnn", "fa2"};
  }
  return {};
}

}  // namespace

AttentionKernel attention_kernel_of(const Launch& launch, AttentionKernel of_job) {
  const bool fused =
      launch.op == OpKind::kFlashAttention || launch.op == OpKind::kFlashAttentionBackward;
  return fused ? of_job : AttentionKernel::kFlash1;
}

AttentionDirection attention_direction_of(const Launch& launch) {
  const bool backward = launch.op == OpKind::kFlashAttentionBackward ||
                        launch.op == OpKind::kEfficientAttentionBackward;
  return backward ? AttentionDirection::kBackward : AttentionDirection::kForward;
}

AttentionRateKey attention_rate_key(const GpuProfile& gpu, AttentionKernel kernel, int head_size,
                                    AttentionDirection direction) {
  for (const std::string_view name : stand_ins(kernel)) {
    std::string key = "attention_" + std::string(name) + "_h" + std::to_string(head_size) + "_" +
                      std::string(text_of(direction));
    if (gpu.find_efficiency(key) != nullptr) return {std::string(name), std::move(key)};
  }
  return {};
}

std::string flash1_ratio_key(AttentionDirection direction) {
  return "attention_fa1_" + std::string(text_of(direction)) + "_ratio";
}

double wide_share(AttentionKernel kernel, double head_size) {
  if (kernel == AttentionKernel::kFlash1) return 1;  // One rate for any head size.
  return std::clamp((head_size - 64) / 64, 0.0, 1.0);
}

std::string_view own_rates_of(AttentionKernel kernel) { return stand_ins(kernel).front(); }

std::vector<AttentionRateKey> attention_rates(const GpuProfile& gpu, const Launch& launch,
                                              AttentionKernel of_job) {
  const AttentionKernel kernel = attention_kernel_of(launch, of_job);
  const double wide = wide_share(kernel, static_cast<double>(launch.dims[4]));
  std::vector<AttentionRateKey> out;
  for (const int size : {64, 128})
    if ((size == 64 ? 1 - wide : wide) > 0)
      out.push_back(attention_rate_key(gpu, kernel, size, attention_direction_of(launch)));
  return out;
}

std::vector<std::string> attention_numbers(const GpuProfile& gpu, const Launch& launch,
                                           AttentionKernel of_job) {
  std::vector<std::string> out;
  const auto add = [&](const std::string& key) {
    if (gpu.find_efficiency(key) != nullptr) out.push_back("gpu.efficiency." + key);
  };
  for (const AttentionRateKey& rate : attention_rates(gpu, launch, of_job)) {
    if (rate.key.empty()) {
      const bool half = gpu.peak(DType::kFloat16).known();
      out.emplace_back(half ? "gpu.peak_fp16" : "gpu.peak_fp32");
    }
    add(rate.key);
    add(rate.key + "_half_length");
  }
  if (attention_kernel_of(launch, of_job) == AttentionKernel::kFlash1)
    add(flash1_ratio_key(attention_direction_of(launch)));
  return out;
}

}  // namespace foreshard
