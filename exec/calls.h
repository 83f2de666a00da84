#pragma once

// Device work with everything resolved: what the interpreter hands to a backend and the backend to
// kernels and transports.

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "core/units.h"
#include "exec/tensor_view.h"
#include "schedules/schedule.h"

namespace foreshard {

struct RankContext;

/// Where a call comes from; printed in every error about it.
struct CallOrigin {
  std::int64_t rank = 0;
  std::uint32_t instruction = 0;  ///< Index into the rank's program.
  std::int32_t step = 0;          ///< Step of the run, from 0; -1 in the init segment.
};

/// One Launch. Operand and attribute conventions: docs/formats/op_operands.md.
struct KernelCall {
  OpKind op = OpKind::kCopy;
  CallOrigin origin;
  std::vector<TensorView> inputs, outputs;
  std::span<const double> attributes;  ///< Points into the program.
  const RankContext* context = nullptr;

  /// Attribute `i`, or `otherwise` where the launch has fewer.
  double attribute(std::size_t i, double otherwise) const {
    return i < attributes.size() ? attributes[i] : otherwise;
  }
  bool has_input(std::size_t i) const { return i < inputs.size() && inputs[i].present; }
  bool has_output(std::size_t i) const { return i < outputs.size() && outputs[i].present; }
};

/// One Collective as one member of its group sees it.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kAllGather;
  ReduceOp op = ReduceOp::kNone;
  DType dtype = DType::kFloat32;
  CallOrigin origin;
  GroupId group;
  std::int64_t first_rank =
      0;                    ///< Rank of member 0: names the communicator among those of the group.
  std::int64_t stride = 1;  ///< Ranks between neighbours of the group.
  std::int64_t size = 1, index = 0;
  std::uint64_t sequence = 0;  ///< Number of this call in the communicator (send/receive: in its
                               ///< direction), in host order.
  std::uint64_t receive_sequence = 0;  ///< Send/receive: number of the receiving half.
  TensorView input, output;            ///< Contiguous.
  double factor = 1;
  std::int32_t root = 0;
  Time duration;  ///< Emulated, from the moment when all members have arrived.
};

/// One Copy. Without a source, a model input is filled in, or nothing is moved (pointer tables).
struct CopyCall {
  CallOrigin origin;
  TensorView source, destination;
  std::int32_t input = -1, micro_batch = 0;
  const RankContext* context = nullptr;
};

using DeviceWork = std::variant<KernelCall, CollectiveCall, CopyCall>;

/// Emulated time of a piece of work. Without emulation both are zero and nothing waits.
struct NominalTime {
  Time issued;    ///< When the host issued it.
  Time duration;  ///< How long it takes once it may start.
};

}  // namespace foreshard
