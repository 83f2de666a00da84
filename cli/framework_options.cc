#include "cli/framework_options.h"

namespace foreshard::cli {

const std::vector<FrameworkOptions>& framework_options() {
  static const std::vector<FrameworkOptions> groups{fsdp1_options(), zero_options(), ddp_options(),
                                                    sharded_optimizer_options()};
  return groups;
}

void read_framework_options(Arguments& a, ParallelConfig& c) {
  for (const FrameworkOptions& group : framework_options()) {
    if (group.defaults) group.defaults(a, c);
    for (const FrameworkOption& o : group.options)
      if (a.has(o.spec.name)) o.read(a, c);
    if (group.finish) group.finish(a, c);
  }
}

void read_framework_options_with_model(Arguments& a, const Model& model, ParallelConfig& c) {
  for (const FrameworkOptions& group : framework_options())
    if (group.with_model) group.with_model(a, model, c);
}

}  // namespace foreshard::cli
