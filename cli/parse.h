#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace foreshard::cli {

/// The command that `words` (without the program's name) asks for; the words that name it are
/// removed. InputError with the nearest name if there is none.
const CommandSpec& find_command(std::vector<std::string>& words);

/// Reads the words of one command, and its --config file. InputError with every unknown option,
/// missing value and missing argument.
Arguments parse_arguments(const CommandSpec& command, const std::vector<std::string>& words);

/// Adds the values of a YAML file of options ("gpus: 64"); names as on the command line. Unknown
/// and repeated keys are errors with their line.
void read_config_file(const CommandSpec& command, const std::string& file, Arguments& arguments);

std::string help_of(const CommandSpec& command, bool all = false);
std::string help_of_program();  ///< All commands, one line each.
std::string welcome();          ///< The three questions with one example each.

}  // namespace foreshard::cli
