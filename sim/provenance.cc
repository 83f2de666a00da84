#include "sim/provenance.h"

#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "core/text.h"
#include "sim/cost/attention_rates.h"

namespace foreshard {
namespace {

/// What a schedule asks of the hardware.
struct Needs {
  std::set<DType> products;
  std::set<std::string, std::less<>> attention;  ///< Paths, "gpu.efficiency.attention_...".
  bool collectives = false, copies = false;
};

Needs needs_of(const Schedule& schedule, const GpuProfile& gpu, AttentionKernel kernel) {
  Needs n;
  std::set<std::pair<OpKind, std::int64_t>> met;
  for (const RankProgram& p : schedule.programs) {
    for (const Launch& l : p.launches) {
      const KernelClass k = kernel_class_of(l.op);
      if (k == KernelClass::kMatmul) n.products.insert(l.dtype);
      if (k != KernelClass::kAttention) continue;
      if (!met.emplace(l.op, l.dims[4]).second) continue;  // Its rates follow from these two.
      for (std::string& number : attention_numbers(gpu, l, kernel))
        n.attention.insert(std::move(number));
    }
    n.collectives |= !p.collectives.empty();
    n.copies |= !p.copies.empty();
  }
  return n;
}

bool names_peak_of(std::string_view path, const std::set<DType>& dtypes, bool tf32) {
  for (const DType d : dtypes) {
    switch (d) {
      case DType::kFloat32:
        if (contains(path, tf32 ? "peak_tf32" : "peak_fp32")) return true;
        break;
      case DType::kBFloat16:
        if (contains(path, "peak_bf16")) return true;
        break;
      case DType::kFloat16:
        if (contains(path, "peak_fp16")) return true;
        break;
      case DType::kFloat8E4M3:
      case DType::kFloat8E5M2:
        if (contains(path, "peak_fp8") || contains(path, "fp8_matmul")) return true;
        break;
      default:
        break;
    }
  }
  return false;
}

bool used(std::string_view path, const Needs& n, const Cluster& cluster, const CostParameters& p) {
  if (contains(path, "price")) return false;
  if (n.attention.contains(path)) return true;
  if (contains(path, "attention_")) return false;
  if (contains(path, "peak_") || contains(path, "fp8_matmul"))
    return names_peak_of(path, n.products, p.matmul.tf32);
  if (contains(path, "matmul_")) return !n.products.empty() && !contains(path, "matmul_best");
  for (const std::string_view always :
       {"gpu.memory_bandwidth", "gpu.usable_memory", "gpu.context_memory", "memory_bound",
        "multiprocessors", "host_cpu_factor", "speed_spread"}) {
    if (contains(path, always)) return true;
  }
  for (const std::string_view copied :
       {"host_to_device", "device_to_host", "pcie_bandwidth", "host_memory_bandwidth"}) {
    if (contains(path, copied)) return n.copies;
  }
  if (!n.collectives || cluster.gpus < 2) return false;
  if (contains(path, "network.") || contains(path, "hop_overhead")) return cluster.nodes > 1;
  if (contains(path, "peer_bandwidth") || contains(path, "socket_bandwidth"))
    return cluster.profile.node.fabric != FabricKind::kNvSwitch;
  return contains(path, "nvlink") || contains(path, "overlap_slowdown") ||
         contains(path, "collectives.");
}

}  // namespace

std::vector<UsedNumber> numbers_used(const Schedule& schedule, const Cluster& cluster,
                                     const CostParameters& parameters) {
  const Needs needs = needs_of(schedule, cluster.profile.gpu, parameters.attention.kernel);
  std::vector<UsedNumber> out;
  for (const auto& [path, fact] : all_facts(cluster.profile)) {
    if (!used(path, needs, cluster, parameters)) continue;
    out.push_back({path, fact->value, std::string(base_unit(fact->dimension)), fact->source,
                   std::string(name_of(fact->kind))});
  }
  const HostParameters& h = parameters.host;
  const std::string driver = "published driver timings, docs/host-time.md",
                    own = "PyTorch on the reference CPU, docs/host-time.md";
  out.push_back({"host.launch", h.launch_us * 1e-6, "s", driver, "measured"});
  if (needs.collectives)
    out.push_back(
        {"host.collective", h.collective_us * 1e-6, "s", driver + " (factor 2)", "assumed"});
  out.push_back({"host.cold_forward", h.cold_forward, "", own, "measured"});
  out.push_back({"host.cold_backward", h.cold_backward, "", own, "measured"});
  if (!cluster.profile.gpu.find_efficiency("speed_spread"))
    out.push_back({"step.slowest_gpu_sigma", parameters.step.slowest_gpu_sigma, "",
                   "fit to public training runs, leave-one-laboratory-out (factor 1.4)",
                   "calibrated"});
  return out;
}

}  // namespace foreshard
