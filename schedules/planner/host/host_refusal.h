#pragma once

#include <string>
#include <utility>

#include "core/error.h"

namespace foreshard {

/// The job would stop with a RuntimeError in eager PyTorch: a parameter used while it is not
/// gathered, operands whose dtypes do not fit.
class HostRefusal : public InputError {
 public:
  HostRefusal(std::string place, std::string message, std::string hint = {})
      : InputError(Issue{"", std::move(place), std::move(message), std::move(hint)}) {}
};

}  // namespace foreshard
