#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace foreshard {

/// Element types of tensors. Names follow PyTorch ("float32", "bfloat16", ...); short forms
/// ("fp32", "bf16") are read too.
enum class DType : std::uint8_t {
  kFloat32,
  kBFloat16,
  kFloat16,
  kFloat64,
  kFloat8E4M3,
  kFloat8E5M2,
  kInt64,
  kInt32,
  kUInt8,
  kBool,
};
inline constexpr int kDTypeCount = 10;

/// Bytes of one element, by dtype.
inline constexpr std::int64_t kDTypeBytes[kDTypeCount] = {4, 2, 2, 8, 1, 1, 8, 4, 1, 1};
constexpr std::int64_t size_of(DType t) { return kDTypeBytes[static_cast<int>(t)]; }
constexpr bool is_floating(DType t) {
  return static_cast<int>(t) <= static_cast<int>(DType::kFloat8E5M2);
}

/// PyTorch's name without the "torch." prefix.
std::string_view name_of(DType t);
/// Reads a long ("bfloat16"), short ("bf16") or prefixed ("torch.bfloat16") name.
std::optional<DType> parse_dtype(std::string_view text);

}  // namespace foreshard
