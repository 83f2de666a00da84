#pragma once

// What other tools call an option or a value of ours. Foreign names are not accepted, but the
// refusal says what to type.

#include <string>
#include <string_view>
#include <vector>

namespace foreshard::cli {

/// What to type in place of an option that another tool has, in a command that knows `known`
/// options ("use --micro-batch (sequences of one rank)"); "" if it is no such name, or if the
/// command has no counterpart. `name` without dashes before it; '_' reads as '-'.
std::string foreign_option_hint(std::string_view name, const std::vector<std::string>& known);

/// The same for a value of one of our options ("deepspeed" of --framework).
std::string foreign_value_hint(std::string_view option, std::string_view value);

}  // namespace foreshard::cli
