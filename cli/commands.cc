#include "cli/commands.h"

namespace foreshard::cli {

const std::vector<CommandSpec>& commands() {
  static const std::vector<CommandSpec> all = [] {
    std::vector<CommandSpec> list{simulate_command(),
                                  tune_command(),
                                  size_command(),
                                  plan_command(),
                                  show_command(),
                                  run_command(),
                                  compare_command(),
                                  diff_command(),
                                  models_command(),
                                  models_describe_command(),
                                  hw_command(),
                                  hw_describe_command(),
                                  calibrate_command(),
                                  calibrate_runs_command(),
                                  import_command(),
                                  score_runs_command(),
                                  score_collectives_command(),
                                  score_ratios_command(),
                                  score_claims_command(),
                                  spread_command(),
                                  collective_command()};
    for (const CommandSpec& c : {models_command(), hw_command()}) {  // "models list" = "models"
      list.push_back(c);
      list.back().name += " list";
    }
    return list;
  }();
  return all;
}

}  // namespace foreshard::cli
