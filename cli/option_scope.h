#pragma once

// Which framework an option of a job belongs to: one table. An option that the chosen framework
// does not know is an error, never silence.

#include <string>
#include <vector>

#include "cli/command.h"
#include "schedules/planner/config.h"
#include "study/job.h"

namespace foreshard::cli {

struct OptionScope {
  std::string option;                     ///< Without dashes.
  std::vector<FrameworkKind> frameworks;  ///< Those that it means something to.
  std::string instead;                    ///< What to say elsewhere; may be empty.
};

/// Options that not every framework has. Options that are not listed apply to all.
const std::vector<OptionScope>& option_scopes();
/// Reports the options that were given and do not apply to `framework`, with those that they belong
/// to.
void check_option_scopes(Arguments& arguments, FrameworkKind framework);

/// Reports options that were given beside another one which leaves them without a meaning.
void check_option_needs(Arguments& arguments, const Job& job);

}  // namespace foreshard::cli
