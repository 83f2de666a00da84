#pragma once

// Text names of the enumerations of a schedule, for its file and text forms. Those of schedule.h
// itself (phases, categories, collectives) live there.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "schedules/schedule.h"

namespace foreshard {

inline constexpr int kInstructionKindCount = static_cast<int>(InstructionKind::kMark) + 1;
inline constexpr int kMarkKindCount = static_cast<int>(MarkKind::kUnitAction) + 1;
inline constexpr int kMemorySpaceCount = static_cast<int>(MemorySpace::kHostPageable) + 1;
inline constexpr int kReduceOpCount = static_cast<int>(ReduceOp::kMax) + 1;
inline constexpr int kCopyDirectionCount = static_cast<int>(CopyDirection::kDeviceToDevice) + 1;
inline constexpr int kInputKindCount = static_cast<int>(InputKind::kPositions) + 1;

std::string_view name_of(InstructionKind k);
std::string_view name_of(MarkKind k);
std::string_view name_of(MemorySpace s);
std::string_view name_of(ReduceOp op);
std::string_view name_of(CopyDirection d);
std::string_view name_of(InputKind k);

/// The enumerator whose `name_of` is `text`, among the first `count`; nullopt if there is none.
template <typename Enum>
std::optional<Enum> parse_enum(std::string_view text, int count) {
  for (int i = 0; i < count; ++i) {
    if (name_of(static_cast<Enum>(i)) == text) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

/// All names of an enumeration, for messages.
template <typename Enum>
std::vector<std::string> enum_names(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(name_of(static_cast<Enum>(i)));
  return names;
}

}  // namespace foreshard
