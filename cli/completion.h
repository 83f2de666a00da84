#pragma once

#include <string>
#include <vector>

namespace foreshard::cli {

/// The script that completes commands, their options, the values that an option allows, machines
/// and models. `words`: the shell, bash or zsh; InputError for another.
std::string completion(const std::vector<std::string>& words);

}  // namespace foreshard::cli
