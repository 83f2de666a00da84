#include "cli/option_scope.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/framework_options.h"
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
bool takes_reshard(const FrameworkRow& f) { return f.reshard == ReshardChoice::kReshard; }
bool prefetches_units(const FrameworkRow& f) { return f.units == UnitForm::kModuleGroup; }
bool autocasts(const FrameworkRow& f) { return f.precision != PrecisionRule::kMasters; }
bool makes_no_masters(const FrameworkRow& f) { return f.precision != PrecisionRule::kMasters; }

std::string joined(const Kinds& kinds) {
  std::string out;
  for (const FrameworkKind k : kinds)
    out += (out.empty() ? "" : ", ") + std::string(row_of(k).name);
  return out;
}

/// Options that several frameworks share, by what their rows say.
std::vector<OptionScope> shared_options() {
  return {
      {"shard", those(shards), "its ranks all hold the whole model"},
      {"replicate", those(communicates), "one GPU"},
      {"wrap", those(forms_units), "it forms no units"},
      {"root-split", those(forms_units), "it forms no units"},
      {"reshard", those(takes_reshard), "FSDP1: --fsdp1-strategy; ZeRO: the stage"},
      {"prefetch-forward", those(prefetches_units),
       "FSDP1: --fsdp1-forward-prefetch; ZeRO-3: --zero-prefetch-bucket-size"},
      {"prefetch-backward", those(prefetches_units),
       "FSDP1: --fsdp1-backward-prefetch; ZeRO-3: --zero-prefetch-bucket-size"},
      {"float8-all-gather", those(prefetches_units), "its weights are gathered in 16 bits"},
      {"float8-precompute-scales", those(prefetches_units), "its weights are gathered in 16 bits"},
      {"offload", those(offloads), "it keeps everything on the device"},
      {"sync-each-micro-batch", those(syncs),
       "ZeRO-1 reduces at the last micro-batch, ZeRO-2 and 3 at each"},
      {"reduce-dtype", those(communicates), "one GPU reduces nothing"},
      {"autocast", those(autocasts), "it computes in --param-dtype by itself"},
      {"model-dtype", those(makes_no_masters),
       "parameters are kept in --param-dtype, beside fp32 master copies"},
      {"checkpoint-outside-units", those(has_module_hooks), "it has no hooks around modules"},
  };
}

/// An option that only means something where `met` holds.
struct OptionNeed {
  const char* option;
  bool (*met)(const Job&);
  const char* message;
  const char* hint;
};

const OptionNeed kNeeds[] = {
    {"ddp-bucket-cap-mb", [](const Job& job) { return job.config.ddp.bucket_cap_mib_list.empty(); },
     "--ddp-bucket-cap-mb-list sizes the buckets", "one of the two"},
    {"zero-gpus-per-node", [](const Job& job) { return job.config.zero.quantised_gradients; },
     "means something to quantised gradients only", "add --zero-quantized-gradients yes"},
    {"attention-kernel",
     [](const Job& job) {
       return job.attention_kernel == AttentionKernel::kFlash2 || takes_flash(job.config.attention);
     },
     "--attention takes no flash attention", "--attention flash or flash-attn"},
    {"attention-kernel",
     [](const Job& job) {
       return job.attention_kernel == AttentionKernel::kFlash2 || job.config.autocast ||
              compute_dtype(job.config) != DType::kFloat32;
     },
     "no flash attention computes in fp32", "--param-dtype bf16, or leave it out"},
};

}  // namespace

const std::vector<OptionScope>& option_scopes() {
  static const std::vector<OptionScope> all = [] {
    std::vector<OptionScope> scopes = shared_options();
    for (const FrameworkOptions& group : framework_options())
      for (const FrameworkOption& o : group.options)
        scopes.push_back({o.spec.name, o.frameworks, ""});
    return scopes;
  }();
  return all;
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

void check_option_needs(Arguments& arguments, const Job& job) {
  for (const OptionNeed& need : kNeeds)
    if (arguments.has(need.option) && !need.met(job))
      arguments.report(need.option, need.message, need.hint);
}

}  // namespace foreshard::cli
