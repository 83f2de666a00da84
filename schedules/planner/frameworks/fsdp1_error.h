#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include "core/enum_names.h"
#include "core/error.h"

namespace foreshard::fsdp1 {

/// PyTorch's class of exception for a job that FSDP1 refuses.
enum class Refusal : std::uint8_t { kValueError, kRuntimeError, kAssertionError, kAttributeError };

/// The job cannot run under FSDP1: wrong input for us, an exception of class `refusal` in PyTorch.
/// The message is ours.
class Fsdp1Error : public InputError {
 public:
  Fsdp1Error(Refusal refusal, std::string place, std::string message, std::string hint = {})
      : InputError(Issue{"", std::move(place), std::move(message), std::move(hint)}),
        refusal_(refusal) {}
  Refusal refusal() const { return refusal_; }

 private:
  Refusal refusal_;
};

/// "ValueError", ...
inline const char* name_of(Refusal r) {
  constexpr const char* names[] = {"ValueError", "RuntimeError", "AssertionError",
                                   "AttributeError"};
  static_assert(std::size(names) == kEnumerators<Refusal>);
  return names[static_cast<int>(r)];
}

}  // namespace foreshard::fsdp1
