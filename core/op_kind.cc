#include "core/op_kind.h"

namespace foreshard {
namespace {
constexpr std::string_view kNames[kOpKindCount] = {
#define FORESHARD_X(enumerator, text) text,
    FORESHARD_OP_KINDS(FORESHARD_X)
#undef FORESHARD_X
};
}  // namespace

std::string_view name_of(OpKind kind) { return kNames[static_cast<int>(kind)]; }

std::optional<OpKind> parse_op_kind(std::string_view text) {
  for (int i = 0; i < kOpKindCount; ++i) {
    if (kNames[i] == text) return static_cast<OpKind>(i);
  }
  return std::nullopt;
}

}  // namespace foreshard
