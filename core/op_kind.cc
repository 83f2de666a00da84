#include "core/op_kind.h"

namespace foreshard {
namespace {
constexpr std::string_view kOpNames[] = {
#define FORESHARD_X(enumerator, text, kernel_class) text,
    FORESHARD_OP_KINDS(FORESHARD_X)
#undef FORESHARD_X
};
constexpr KernelClass kClasses[kOpKindCount] = {
#define FORESHARD_X(enumerator, text, kernel_class) KernelClass::kernel_class,
    FORESHARD_OP_KINDS(FORESHARD_X)
#undef FORESHARD_X
};
}  // namespace

std::string_view name_of(OpKind kind) { return kOpNames[static_cast<int>(kind)]; }

KernelClass kernel_class_of(OpKind kind) { return kClasses[static_cast<int>(kind)]; }

std::string_view name_of(KernelClass kernel_class) {
  switch (kernel_class) {
    case KernelClass::kMatmul:
      return "matmul";
    case KernelClass::kAttention:
      return "attention";
    case KernelClass::kNormalisation:
      return "normalisation";
    case KernelClass::kElementwise:
      return "elementwise";
    case KernelClass::kLossAndEmbedding:
      return "loss and embedding";
    case KernelClass::kOptimizer:
      return "optimizer";
    case KernelClass::kShardingCopies:
      return "copy-in and copy-out";
    case KernelClass::kOther:
      return "other kernels";
  }
  return "";
}

std::optional<OpKind> parse_op_kind(std::string_view text) {
  for (int i = 0; i < kOpKindCount; ++i) {
    if (kOpNames[i] == text) return static_cast<OpKind>(i);
  }
  return std::nullopt;
}

}  // namespace foreshard
