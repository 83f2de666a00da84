#include "schedules/names.h"

#include <iterator>

#include "core/enum_names.h"

namespace foreshard {

std::string_view name_of(InstructionKind k) {
  static constexpr std::string_view kNames[] = {
      "alloc",       "free",         "record_stream", "launch",     "collective",
      "copy",        "record_event", "wait_event",    "sync_event", "sync_stream",
      "sync_device", "host",         "mark"};
  static_assert(std::size(kNames) == kEnumerators<InstructionKind>);
  return kNames[static_cast<int>(k)];
}

std::string_view name_of(MarkKind k) {
  static constexpr std::string_view kNames[] = {"step",   "micro_batch", "phase",
                                                "module", "recompute",   "unit_action"};
  static_assert(std::size(kNames) == kEnumerators<MarkKind>);
  return kNames[static_cast<int>(k)];
}

std::string_view name_of(MemorySpace s) {
  static constexpr std::string_view kNames[] = {"device", "host_pinned", "host_pageable"};
  static_assert(std::size(kNames) == kEnumerators<MemorySpace>);
  return kNames[static_cast<int>(s)];
}

std::string_view name_of(ReduceOp op) {
  static constexpr std::string_view kNames[] = {"none", "sum", "average", "pre_mul_sum", "max"};
  static_assert(std::size(kNames) == kEnumerators<ReduceOp>);
  return kNames[static_cast<int>(op)];
}

std::string_view name_of(CopyDirection d) {
  static constexpr std::string_view kNames[] = {"host_to_device", "device_to_host",
                                                "device_to_device"};
  static_assert(std::size(kNames) == kEnumerators<CopyDirection>);
  return kNames[static_cast<int>(d)];
}

std::string_view name_of(InputKind k) {
  static constexpr std::string_view kNames[] = {"tokens", "targets", "float", "float_targets",
                                                "positions"};
  static_assert(std::size(kNames) == kEnumerators<InputKind>);
  return kNames[static_cast<int>(k)];
}

}  // namespace foreshard
