#include "schedules/schedule.h"

#include <iterator>

#include "core/enum_names.h"

namespace foreshard {

std::string_view name_of(BufferCategory c) {
  static constexpr std::string_view kNames[] = {"sharded parameters",
                                                "parameters",
                                                "optimizer states",
                                                "optimizer temporaries",
                                                "all-gather inputs",
                                                "all-gather outputs",
                                                "gathered parameters",
                                                "post-forward shards",
                                                "unsharded gradients",
                                                "reduce-scatter inputs",
                                                "reduce-scatter outputs",
                                                "sharded gradients",
                                                "reduction temporaries",
                                                "gradient buckets",
                                                "activations",
                                                "recomputed activations",
                                                "logits and loss",
                                                "backward temporaries",
                                                "forward temporaries",
                                                "workspace",
                                                "clipping temporaries",
                                                "inputs",
                                                "persistent"};
  static_assert(std::size(kNames) == kEnumerators<BufferCategory>);
  return kNames[static_cast<int>(c)];
}

std::string_view name_of(Phase p) {
  static constexpr std::string_view kNames[] = {"init",      "input",      "forward", "loss",
                                                "backward",  "recompute",  "clip",    "optimizer",
                                                "zero_grad", "evaluation", "other"};
  static_assert(std::size(kNames) == kEnumerators<Phase>);
  return kNames[static_cast<int>(p)];
}

std::string_view name_of(CollectiveKind k) {
  static constexpr std::string_view kNames[] = {"all-gather",  "reduce-scatter", "all-reduce",
                                                "broadcast",   "reduce",         "all-to-all",
                                                "send-receive"};
  static_assert(std::size(kNames) == kEnumerators<CollectiveKind>);
  return kNames[static_cast<int>(k)];
}

}  // namespace foreshard
