#pragma once

// One function for each command; commands that belong together share a file.

#include "cli/command.h"

namespace foreshard::cli {

CommandSpec simulate_command();
CommandSpec plan_command();
CommandSpec show_command();
CommandSpec run_command();
CommandSpec compare_command();
CommandSpec diff_command();
CommandSpec tune_command();
CommandSpec size_command();
CommandSpec calibrate_command();
CommandSpec calibrate_runs_command();
CommandSpec import_command();
CommandSpec score_runs_command();
CommandSpec score_collectives_command();
CommandSpec score_ratios_command();
CommandSpec score_claims_command();
CommandSpec spread_command();
CommandSpec collective_command();
CommandSpec models_command();
CommandSpec models_describe_command();
CommandSpec hw_command();
CommandSpec hw_describe_command();

}  // namespace foreshard::cli
