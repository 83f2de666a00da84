#include "cli/framework_options.h"
#include "schedules/planner/config_names.h"

namespace foreshard::cli {

FrameworkOptions fsdp1_options() {
  using O = Fsdp1Options;
  const OptionMaker<O> make(&ParallelConfig::fsdp1, {FrameworkKind::kFsdp1});
  const auto set_hybrid = [](const Arguments&, ParallelConfig& c) {
    if (c.replicate > 1) c.fsdp1.strategy = O::Strategy::kHybrid;
  };
  return {
      .title = "FSDP1",
      .options = {make.choice(
                      "fsdp1-strategy", "NAME",
                      "Sharding strategy (default full_shard; with --replicate hybrid_shard)",
                      kStrategyNames, &O::strategy),
                  make.choice(
                      "fsdp1-policy", "NAME",
                      "PyTorch's policy behind --wrap (default lambda); the class policies take "
                      "classes there",
                      kFsdp1PolicyNames, &O::policy),
                  make.names("fsdp1-ignored-modules", "a,b,c",
                             "Modules that stay whole and out of it", &O::ignored_modules),
                  make.choice("fsdp1-backward-prefetch", "WHEN", "Default backward_pre",
                              kBackwardPrefetchNames, &O::backward_prefetch),
                  make.yes_no("fsdp1-forward-prefetch", "Default no", &O::forward_prefetch),
                  make.yes_no("fsdp1-limit-all-gathers", "Default yes", &O::limit_all_gathers),
                  make.yes_no("fsdp1-use-orig-params", "Default no", &O::use_orig_params),
                  make.yes_no("fsdp1-keep-low-precision-grads", "Default no",
                              &O::keep_low_precision_grads)},
      .defaults = set_hybrid};
}

}  // namespace foreshard::cli
