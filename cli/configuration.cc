#include "cli/configuration.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/option_scope.h"
#include "core/text.h"
#include "schedules/planner/config_names.h"
#include "schedules/planner/framework_table.h"

namespace foreshard::cli {
namespace {

using Values = std::map<std::string, std::string>;

std::string checkpoint_text(const ParallelConfig& c) {
  switch (c.checkpoint) {
    case CheckpointKind::kFull:
      return "full";
    case CheckpointKind::kSelectiveOp:
      return "selective";
    case CheckpointKind::kEveryK:
      return fmt::format("every:{}", c.checkpoint_every);
    default:
      return "none";
  }
}

bool means_something(const std::string& option, FrameworkKind framework) {
  for (const OptionScope& s : option_scopes()) {
    if (s.option == option)
      return std::find(s.frameworks.begin(), s.frameworks.end(), framework) != s.frameworks.end();
  }
  return true;
}

/// What the job is without a word of the user: options whose value says the same given or not.
/// --model-dtype is not among them (a model may state its own), nor are dtypes that a framework
/// derives from others.
Values usual(const Job& job) {
  const ParallelConfig& c = job.config;
  const FrameworkRow& framework = row_of(c.framework);
  Values out{
      {"gpus", std::to_string(job.gpus)},
      {"framework", std::string(framework.name)},
      {"micro-batch", std::to_string(c.micro_batch)},
      {"accumulate", std::to_string(c.accumulate)},
      {"checkpoint", checkpoint_text(c)},
      {"optimizer", std::string(name_in(kOptimizerNames, c.optimizer))},
      {"clip", yes_no(c.clip)},
      {"compile", yes_no(c.compile)},
      {"float8", std::string(name_in(kFloat8Names, c.float8))},
      {"attention", std::string(name_in(kAttentionNames, c.attention))},
      {"attention-kernel", std::string(name_in(kAttentionKernelNames, job.attention_kernel))},
      {"tf32", yes_no(job.tf32)},
      {"loss", std::string(name_in(kLossNames, c.loss))},
      {"offload", std::string(name_in(kOffloadNames, c.offload))},
      {"shard", std::to_string(c.shard)},
      {"replicate", std::to_string(c.replicate)},
      {"root-split", yes_no(c.wrap.root_split)}};
  if (c.accumulate > 1) out["sync-each-micro-batch"] = yes_no(c.sync_each_micro_batch);
  if (job.has_tokens()) out["seq"] = std::to_string(c.sequence);
  if (framework.precision == PrecisionRule::kMixed) {
    if (c.precision.param) out["param-dtype"] = short_dtype(*c.precision.param);
    if (c.precision.reduce) out["reduce-dtype"] = short_dtype(*c.precision.reduce);
  }
  if (framework.whole_copies()) out.erase("replicate");
  return out;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> configuration_of(const Arguments& arguments,
                                                                  const Job& job,
                                                                  const CommandSpec& command) {
  Values values;
  for (const OptionGroup& g : command.groups) {
    for (const OptionSpec& o : g.options)
      if (o.in_config_file && arguments.has(o.name)) values[o.name] = arguments.text(o.name);
  }
  for (const auto& [name, text] : usual(job))
    if (!text.empty() && means_something(name, job.config.framework)) values[name] = text;
  values["model"] = arguments.positional(0);
  return {values.begin(), values.end()};
}

}  // namespace foreshard::cli
