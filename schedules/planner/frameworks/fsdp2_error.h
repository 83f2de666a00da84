#pragma once

#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "core/enum_names.h"
#include "core/error.h"

namespace foreshard::fsdp2 {

/// PyTorch's class of exception for a job that FSDP2 refuses.
enum class Refusal : std::uint8_t {
  kValueError,
  kRuntimeError,
  kAssertionError,
  kNotImplementedError,
  kAttributeError,
  kIndexError
};

/// The job cannot run under FSDP2: wrong input for us, an exception of class `refusal` in PyTorch.
/// The message is ours.
class Fsdp2Error : public InputError {
 public:
  Fsdp2Error(Refusal refusal, std::string_view place, std::string message, std::string hint = {})
      : InputError(Issue{"", std::string(place), std::move(message), std::move(hint)}),
        refusal_(refusal) {}
  Refusal refusal() const { return refusal_; }

 private:
  Refusal refusal_;
};

/// "ValueError", ...
inline const char* name_of(Refusal r) {
  constexpr const char* names[] = {"ValueError",          "RuntimeError",   "AssertionError",
                                   "NotImplementedError", "AttributeError", "IndexError"};
  static_assert(std::size(names) == kEnumerators<Refusal>);
  return names[static_cast<int>(r)];
}

}  // namespace foreshard::fsdp2
