#pragma once

// What can hold the critical path of a step.

#include <compare>
#include <cstdint>
#include <string>

#include "core/op_kind.h"
#include "schedules/schedule.h"
#include "sim/cost_model.h"

namespace foreshard {

/// Only the members that its kind names say anything; the others keep their defaults, so that equal
/// resources compare equal.
struct CriticalResource {
  enum class Kind : std::uint8_t {
    kIdle,
    kHost,
    kAllocator,     ///< cudaMalloc and cudaFree.
    kKernel,        ///< `kernel`
    kCopy,          ///< `copy`
    kCollective,    ///< `collective`, bound by `link`
    kStepOverhead,  ///< CostModel::step_overhead.
  };
  Kind kind = Kind::kIdle;
  KernelClass kernel = KernelClass::kOther;
  CopyDirection copy = CopyDirection::kHostToDevice;
  CollectiveKind collective = CollectiveKind::kAllGather;
  Link link = Link::kNvLink;

  auto operator<=>(const CriticalResource&) const = default;
};

/// "matmul", "host", "all-gather (network)", "copy to device", ...
std::string name_of(const CriticalResource& resource);

}  // namespace foreshard
