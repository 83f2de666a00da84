#include "cli/option_scope.h"

#include <fmt/format.h>

#include <algorithm>

namespace foreshard::cli {
namespace {

using K = FrameworkKind;
using Kinds = std::vector<FrameworkKind>;

const Kinds kFsdp{K::kFsdp2, K::kFsdp1}, kOnlyFsdp2{K::kFsdp2}, kOnlyFsdp1{K::kFsdp1},
    kOnlyDdp{K::kDdp};
const Kinds kOnlySharded{K::kShardedOptimizer};
const Kinds kZero{K::kZero1, K::kZero2, K::kZero3}, kFlatZero{K::kZero1, K::kZero2},
    kOnlyZero3{K::kZero3};
const Kinds kSharded{K::kFsdp2, K::kFsdp1, K::kZero1, K::kZero2, K::kZero3};
const Kinds kNotZero{K::kUnsharded, K::kDdp, K::kFsdp2, K::kFsdp1, K::kShardedOptimizer};
const Kinds kMeshes{K::kFsdp2, K::kFsdp1, K::kZero1, K::kZero2, K::kZero3, K::kShardedOptimizer};
const Kinds kParallel{K::kDdp,   K::kFsdp2, K::kFsdp1,           K::kZero1,
                      K::kZero2, K::kZero3, K::kShardedOptimizer};

std::string joined(const Kinds& kinds) {
  std::string out;
  for (const K k : kinds) out += (out.empty() ? "" : ", ") + framework_name(k);
  return out;
}

}  // namespace

const std::vector<OptionScope>& option_scopes() {
  static const std::vector<OptionScope> table{
      {"shard", kMeshes, "its ranks all hold the whole model"},
      {"replicate", kParallel, "one GPU"},
      {"wrap", kFsdp, "it forms no units"},
      {"root-split", kFsdp, "it forms no units"},
      {"reshard", kOnlyFsdp2, "FSDP1: --fsdp1-strategy; ZeRO: the stage"},
      {"prefetch-forward", kOnlyFsdp2,
       "FSDP1: --fsdp1-forward-prefetch; ZeRO-3: --zero-prefetch-bucket-size"},
      {"prefetch-backward", kOnlyFsdp2,
       "FSDP1: --fsdp1-backward-prefetch; ZeRO-3: --zero-prefetch-bucket-size"},
      {"offload", kSharded, "it keeps everything on the device"},
      {"sync-each-micro-batch",
       {K::kDdp, K::kFsdp2, K::kFsdp1, K::kShardedOptimizer},
       "ZeRO-1 reduces at the last micro-batch, ZeRO-2 and 3 at each"},
      {"reduce-dtype", kParallel, "one GPU reduces nothing"},
      {"model-dtype", kNotZero,
       "ZeRO keeps 16-bit parameters (--param-dtype) and fp32 master copies"},
      {"fsdp1-strategy", kOnlyFsdp1, ""},
      {"fsdp1-backward-prefetch", kOnlyFsdp1, ""},
      {"fsdp1-forward-prefetch", kOnlyFsdp1, ""},
      {"fsdp1-limit-all-gathers", kOnlyFsdp1, ""},
      {"fsdp1-use-orig-params", kOnlyFsdp1, ""},
      {"fsdp1-keep-low-precision-grads", kOnlyFsdp1, ""},
      {"checkpoint-outside-units",
       {K::kFsdp2, K::kFsdp1, K::kZero3},
       "it has no hooks around modules"},
      {"zero-reduce-bucket-size", kZero, ""},
      {"zero-overlap-comm", kZero, ""},
      {"zero-contiguous-gradients", kZero, ""},
      {"zero-reduce-scatter", kZero, ""},
      {"zero-pin-memory", kZero, ""},
      {"zero-grad-accum-dtype", kZero, ""},
      {"zero-throughput-timer", kZero, ""},
      {"zero-wall-clock-breakdown", kZero, ""},
      {"zero-allgather-bucket-size", kFlatZero, ""},
      {"zero-round-robin-gradients", kFlatZero, ""},
      {"zero-multi-rank-allreduce", kFlatZero, ""},
      {"zero-prefetch-bucket-size", kOnlyZero3, ""},
      {"zero-param-persistence-threshold", kOnlyZero3, ""},
      {"zero-model-persistence-threshold", kOnlyZero3, ""},
      {"zero-max-live-parameters", kOnlyZero3, ""},
      {"zero-max-reuse-distance", kOnlyZero3, ""},
      {"zero-sub-group-size", kOnlyZero3, ""},
      {"zero-hpz-partition-size", kOnlyZero3, ""},
      {"zero-leaf-classes", kOnlyZero3, ""},
      {"zero-module-granularity", kOnlyZero3, ""},
      {"zero-init", kOnlyZero3, ""},
      {"zero-offload-ratio", kOnlyZero3, ""},
      {"ddp-bucket-cap-mb", kOnlyDdp, ""},
      {"ddp-gradient-as-bucket-view", kOnlyDdp, ""},
      {"ddp-static-graph", kOnlyDdp, ""},
      {"ddp-batched-grad-copy", kOnlyDdp, ""},
      {"ddp-broadcast-buffers", kOnlyDdp, ""},
      {"ddp-bucket-cap-mb-list", kOnlyDdp, ""},
      {"ddp-comm-hook", kOnlyDdp, ""},
      {"ddp-powersgd-rank", kOnlyDdp, ""},
      {"ddp-powersgd-min-compression", kOnlyDdp, ""},
      {"ddp-powersgd-error-feedback", kOnlyDdp, ""},
      {"ddp-powersgd-warm-start", kOnlyDdp, ""},
      {"ddp-mixed-precision", kOnlyDdp, ""},
      {"ddp-skip-unused", kOnlyDdp, ""},
      {"ddp-lazy-buckets", kOnlyDdp, ""},
      {"ddp-find-unused-parameters", kOnlyDdp, ""},
      {"fsdp1-ignored-modules", kOnlyFsdp1, ""},
      {"fsdp1-policy", kOnlyFsdp1, ""},
      {"sharded-bucket-mb", kOnlySharded, ""},
      {"sharded-float32-sums", kOnlySharded, ""},
      {"sharded-per-tensor", kOnlySharded, ""},
      {"sharded-reduce-scatter", kOnlySharded, ""},
      {"sharded-owners-broadcast", kOnlySharded, ""},
  };
  return table;
}

std::string framework_name(FrameworkKind kind) {
  switch (kind) {
    case K::kUnsharded:
      return "none";
    case K::kDdp:
      return "ddp";
    case K::kFsdp2:
      return "fsdp2";
    case K::kFsdp1:
      return "fsdp1";
    case K::kZero1:
      return "zero1";
    case K::kZero2:
      return "zero2";
    case K::kZero3:
      return "zero3";
    case K::kShardedOptimizer:
      return "sharded-optimizer";
  }
  return "?";
}

void check_option_scopes(Arguments& arguments, FrameworkKind framework) {
  for (const OptionScope& s : option_scopes()) {
    if (!arguments.has(s.option)) continue;
    if (std::find(s.frameworks.begin(), s.frameworks.end(), framework) != s.frameworks.end())
      continue;
    std::string message = fmt::format("means nothing to {}", framework_name(framework));
    if (!s.instead.empty()) message += fmt::format(" ({})", s.instead);
    arguments.report(s.option, message, fmt::format("belongs to: {}", joined(s.frameworks)));
  }
}

}  // namespace foreshard::cli
