#include "hwprofiles/profile_fields.h"

namespace foreshard {
namespace {

using enum Dimension;

template <typename T>
using N = typename Field<T>::Need;

constexpr Field<GpuProfile> kGpu[] = {
    {"compute_capability", &GpuProfile::compute_capability, kCount, N<GpuProfile>::kOptional},
    {"multiprocessors", &GpuProfile::multiprocessors, kCount, N<GpuProfile>::kPositive},
    {"peak_fp32", &GpuProfile::peak_fp32, kFlopsPerSecond, N<GpuProfile>::kPositive},
    {"peak_tf32", &GpuProfile::peak_tf32, kFlopsPerSecond, N<GpuProfile>::kOptional},
    {"peak_fp16", &GpuProfile::peak_fp16, kFlopsPerSecond, N<GpuProfile>::kOptional},
    {"peak_bf16", &GpuProfile::peak_bf16, kFlopsPerSecond, N<GpuProfile>::kOptional},
    {"peak_fp8", &GpuProfile::peak_fp8, kFlopsPerSecond, N<GpuProfile>::kOptional},
    {"peak_fp4", &GpuProfile::peak_fp4, kFlopsPerSecond, N<GpuProfile>::kOptional},
    {"memory", &GpuProfile::memory, kBytes, N<GpuProfile>::kPositive},
    {"usable_memory", &GpuProfile::usable_memory, kBytes, N<GpuProfile>::kPositive},
    {"context_memory", &GpuProfile::context_memory, kBytes, N<GpuProfile>::kRequired},
    {"memory_bandwidth", &GpuProfile::memory_bandwidth, kBytesPerSecond, N<GpuProfile>::kPositive},
    {"l2_cache", &GpuProfile::l2_cache, kBytes, N<GpuProfile>::kOptional},
    {"power_limit", &GpuProfile::power_limit, kWatts, N<GpuProfile>::kOptional},
    {"nvlink_links", &GpuProfile::nvlink_links, kCount, N<GpuProfile>::kRequired},
    {"nvlink_bandwidth", &GpuProfile::nvlink_bandwidth, kBytesPerSecond, N<GpuProfile>::kOptional},
    {"nvlink_planning", &GpuProfile::nvlink_planning, kBytesPerSecond, N<GpuProfile>::kOptional},
    {"pcie_bandwidth", &GpuProfile::pcie_bandwidth, kBytesPerSecond, N<GpuProfile>::kPositive},
    {"price_per_hour", &GpuProfile::price_per_hour, kMoney, N<GpuProfile>::kOptional},
};

constexpr Field<NodeProfile> kNode[] = {
    {"gpus", &NodeProfile::gpus, kCount, N<NodeProfile>::kPositive},
    {"hosts", &NodeProfile::hosts, kCount, N<NodeProfile>::kPositive},
    {"peer_bandwidth", &NodeProfile::peer_bandwidth, kBytesPerSecond, N<NodeProfile>::kPositive},
    {"peer_to_peer", &NodeProfile::peer_to_peer, kCount, N<NodeProfile>::kRequired},
    {"gpus_per_pcie_switch", &NodeProfile::gpus_per_pcie_switch, kCount, N<NodeProfile>::kPositive},
    {"sockets", &NodeProfile::sockets, kCount, N<NodeProfile>::kPositive},
    {"socket_bandwidth", &NodeProfile::socket_bandwidth, kBytesPerSecond,
     N<NodeProfile>::kPositive},
    {"host_to_device", &NodeProfile::host_to_device, kBytesPerSecond, N<NodeProfile>::kPositive},
    {"device_to_host", &NodeProfile::device_to_host, kBytesPerSecond, N<NodeProfile>::kPositive},
    {"host_cpu_factor", &NodeProfile::host_cpu_factor, kCount, N<NodeProfile>::kPositive},
    {"hop_overhead", &NodeProfile::hop_overhead, kSeconds, N<NodeProfile>::kOptional},
    {"host_memory", &NodeProfile::host_memory, kBytes, N<NodeProfile>::kOptional},
    {"host_memory_bandwidth", &NodeProfile::host_memory_bandwidth, kBytesPerSecond,
     N<NodeProfile>::kOptional},
    {"price_per_hour", &NodeProfile::price_per_hour, kMoney, N<NodeProfile>::kOptional},
};

constexpr Field<NetworkProfile> kNetwork[] = {
    {"nics", &NetworkProfile::nics, kCount, N<NetworkProfile>::kPositive},
    {"nic_rate", &NetworkProfile::nic_rate, kBytesPerSecond, N<NetworkProfile>::kPositive},
    {"nics_on_switches", &NetworkProfile::nics_on_switches, kCount, N<NetworkProfile>::kOptional},
    {"rails", &NetworkProfile::rails, kCount, N<NetworkProfile>::kPositive},
    {"oversubscription", &NetworkProfile::oversubscription, kCount, N<NetworkProfile>::kPositive},
    {"latency", &NetworkProfile::latency, kSeconds, N<NetworkProfile>::kRequired},
    {"call_overhead", &NetworkProfile::call_overhead, kSeconds, N<NetworkProfile>::kRequired},
    {"efficiency", &NetworkProfile::efficiency, kCount, N<NetworkProfile>::kPositive},
    {"node_rate", &NetworkProfile::node_rate, kBytesPerSecond, N<NetworkProfile>::kOptional},
};

constexpr EfficiencyName kEfficiency[] = {
    {"matmul_training", kCount},
    {"matmul_best", kCount},
    {"matmul_fp32", kCount},
    {"matmul_depth_constant", kCount},
    {"matmul_launch", kSeconds},
    {"matmul_wave_exponent", kCount},
    {"matmul_weight_gradient", kCount},
    {"memory_bound", kCount},
    {"memory_bound_launch", kSeconds},
    {"overlap_slowdown", kCount},
    {"speed_spread", kCount},
    {"machine_spread", kCount},
    {"fp8_matmul", kCount},
    {"attention_fa1_forward_ratio", kCount},
    {"attention_fa1_backward_ratio", kCount},
    {"attention_fa2_h128_forward", kFlopsPerSecond},
    {"attention_fa2_h128_forward_half_length", kCount},
    {"attention_fa2_h128_backward", kFlopsPerSecond},
    {"attention_fa2_h128_backward_half_length", kCount},
    {"attention_fa2_h64_forward", kFlopsPerSecond},
    {"attention_fa2_h64_forward_half_length", kCount},
    {"attention_fa2_h64_backward", kFlopsPerSecond},
    {"attention_fa2_h64_backward_half_length", kCount},
    {"attention_fa3_h128_forward", kFlopsPerSecond},
    {"attention_fa3_h128_forward_half_length", kCount},
    {"attention_fa3_h128_backward", kFlopsPerSecond},
    {"attention_fa3_h128_backward_half_length", kCount},
    {"attention_cudnn_h128_forward", kFlopsPerSecond},
    {"attention_cudnn_h128_forward_half_length", kCount},
    {"attention_cudnn_h128_backward", kFlopsPerSecond},
    {"attention_cudnn_h128_backward_half_length", kCount},
    {"attention_cudnn_h64_forward", kFlopsPerSecond},
    {"attention_cudnn_h64_forward_half_length", kCount},
    {"attention_cudnn_h64_backward", kFlopsPerSecond},
    {"attention_cudnn_h64_backward_half_length", kCount},
};

constexpr EfficiencyName kCollectiveParameters[] = {
    {"latency_scale", kCount},        {"small_message_rate_scale", kCount},
    {"simple_latency_scale", kCount}, {"link_rate_scale", kCount},
    {"nvls_rate_scale", kCount},      {"network_latency_scale", kCount},
    {"network_rate_scale", kCount},
};

}  // namespace

std::span<const Field<GpuProfile>> gpu_fields() { return kGpu; }
std::span<const Field<NodeProfile>> node_fields() { return kNode; }
std::span<const Field<NetworkProfile>> network_fields() { return kNetwork; }
std::span<const EfficiencyName> efficiency_names() { return kEfficiency; }
std::span<const EfficiencyName> collective_parameter_names() { return kCollectiveParameters; }

}  // namespace foreshard
