#include "cli/option_scope.h"

#include <fmt/format.h>

#include <algorithm>

#include "schedules/planner/framework_table.h"

namespace foreshard::cli {
namespace {

using Kinds = std::vector<FrameworkKind>;

template <typename Has>
Kinds those(Has has) {
  Kinds kinds;
  for (const FrameworkRow& row : frameworks())
    if (has(row)) kinds.push_back(row.kind);
  return kinds;
}

bool communicates(const FrameworkRow& f) { return f.ranks != RankLayout::kOneDevice; }
bool shards(const FrameworkRow& f) { return !f.whole_copies(); }
bool forms_units(const FrameworkRow& f) { return f.forms_units(); }
bool offloads(const FrameworkRow& f) { return !f.offloads.empty(); }
bool syncs(const FrameworkRow& f) { return f.sync_choice; }
bool has_module_hooks(const FrameworkRow& f) { return f.module_hooks; }
bool makes_no_masters(const FrameworkRow& f) { return f.precision != PrecisionRule::kMasters; }

// Those that a group of options is about.
const Kinds kOnlyFsdp2{FrameworkKind::kFsdp2}, kOnlyFsdp1{FrameworkKind::kFsdp1},
    kOnlyDdp{FrameworkKind::kDdp}, kOnlySharded{FrameworkKind::kShardedOptimizer},
    kZero{FrameworkKind::kZero1, FrameworkKind::kZero2, FrameworkKind::kZero3},
    kFlatZero{FrameworkKind::kZero1, FrameworkKind::kZero2}, kOnlyZero3{FrameworkKind::kZero3};

std::string joined(const Kinds& kinds) {
  std::string out;
  for (const FrameworkKind k : kinds)
    out += (out.empty() ? "" : ", ") + std::string(row_of(k).name);
  return out;
}

}  // namespace

const std::vector<OptionScope>& option_scopes() {
  static const std::vector<OptionScope> table{
      {"shard", those(shards), "its ranks all hold the whole model"},
      {"replicate", those(communicates), "one GPU"},
      {"wrap", those(forms_units), "it forms no units"},
      {"root-split", those(forms_units), "it forms no units"},
      {"reshard", kOnlyFsdp2, "FSDP1: --fsdp1-strategy; ZeRO: the stage"},
      {"prefetch-forward", kOnlyFsdp2,
       "FSDP1: --fsdp1-forward-prefetch; ZeRO-3: --zero-prefetch-bucket-size"},
      {"prefetch-backward", kOnlyFsdp2,
       "FSDP1: --fsdp1-backward-prefetch; ZeRO-3: --zero-prefetch-bucket-size"},
      {"offload", those(offloads), "it keeps everything on the device"},
      {"sync-each-micro-batch", those(syncs),
       "ZeRO-1 reduces at the last micro-batch, ZeRO-2 and 3 at each"},
      {"reduce-dtype", those(communicates), "one GPU reduces nothing"},
      {"model-dtype", those(makes_no_masters),
       "ZeRO keeps 16-bit parameters (--param-dtype) and fp32 master copies"},
      {"fsdp1-strategy", kOnlyFsdp1, ""},
      {"fsdp1-backward-prefetch", kOnlyFsdp1, ""},
      {"fsdp1-forward-prefetch", kOnlyFsdp1, ""},
      {"fsdp1-limit-all-gathers", kOnlyFsdp1, ""},
      {"fsdp1-use-orig-params", kOnlyFsdp1, ""},
      {"fsdp1-keep-low-precision-grads", kOnlyFsdp1, ""},
      {"checkpoint-outside-units", those(has_module_hooks), "it has no hooks around modules"},
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

void check_option_scopes(Arguments& arguments, FrameworkKind framework) {
  for (const OptionScope& s : option_scopes()) {
    if (!arguments.has(s.option)) continue;
    if (std::find(s.frameworks.begin(), s.frameworks.end(), framework) != s.frameworks.end())
      continue;
    std::string message = fmt::format("means nothing to {}", row_of(framework).name);
    if (!s.instead.empty()) message += fmt::format(" ({})", s.instead);
    arguments.report(s.option, message, fmt::format("belongs to: {}", joined(s.frameworks)));
  }
}

}  // namespace foreshard::cli
