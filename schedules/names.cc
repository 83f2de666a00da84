#include "schedules/names.h"

namespace foreshard {

std::string_view name_of(InstructionKind k) {
  static constexpr std::string_view kNames[kInstructionKindCount] = {
      "alloc",       "free",         "record_stream", "launch",     "collective",
      "copy",        "record_event", "wait_event",    "sync_event", "sync_stream",
      "sync_device", "host",         "mark"};
  return kNames[static_cast<int>(k)];
}

std::string_view name_of(MarkKind k) {
  static constexpr std::string_view kNames[kMarkKindCount] = {
      "step", "micro_batch", "phase", "module", "recompute", "unit_action"};
  return kNames[static_cast<int>(k)];
}

std::string_view name_of(MemorySpace s) {
  static constexpr std::string_view kNames[kMemorySpaceCount] = {"device", "host_pinned",
                                                                 "host_pageable"};
  return kNames[static_cast<int>(s)];
}

std::string_view name_of(ReduceOp op) {
  static constexpr std::string_view kNames[kReduceOpCount] = {"none", "sum", "average",
                                                              "pre_mul_sum", "max"};
  return kNames[static_cast<int>(op)];
}

std::string_view name_of(CopyDirection d) {
  static constexpr std::string_view kNames[kCopyDirectionCount] = {
      "host_to_device", "device_to_host", "device_to_device"};
  return kNames[static_cast<int>(d)];
}

std::string_view name_of(InputKind k) {
  static constexpr std::string_view kNames[kInputKindCount] = {"tokens", "targets", "float",
                                                               "float_targets", "positions"};
  return kNames[static_cast<int>(k)];
}

}  // namespace foreshard
