#include "core/dtype.h"

#include "core/enum_names.h"

namespace foreshard {
namespace {
struct Names {
  std::string_view full, brief;
};
constexpr Names kDTypeNames[] = {{"float32", "fp32"},      {"bfloat16", "bf16"},
                                 {"float16", "fp16"},      {"float64", "fp64"},
                                 {"float8_e4m3fn", "fp8"}, {"float8_e5m2", "fp8_e5m2"},
                                 {"int64", "i64"},         {"int32", "i32"},
                                 {"uint8", "u8"},          {"bool", "bool"}};
static_assert(kDTypeCount == kEnumerators<DType>);
}  // namespace

std::string_view name_of(DType t) { return kDTypeNames[static_cast<int>(t)].full; }

std::optional<DType> parse_dtype(std::string_view text) {
  if (text.starts_with("torch.")) text.remove_prefix(6);
  for (int i = 0; i < kDTypeCount; ++i) {
    if (text == kDTypeNames[i].full || text == kDTypeNames[i].brief) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace foreshard
