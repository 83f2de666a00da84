#pragma once

// One row per kind of device work: its name for people, its FLOPs from `Launch::dims`, and which
// class of kernel it is. docs/formats/op_operands.md holds the operands of each; the planner's
// recipes write them, the executor's kernels read them.

#include <array>
#include <cstdint>

#include "core/op_kind.h"
#include "core/units.h"

namespace foreshard {

/// What bounds a kernel: products run on tensor cores, everything else by bytes.
enum class OpClass : std::uint8_t {
  kMatmul,
  kAttention,
  kElementwise,
  kReduction,
  kNormalisation,
  kIndexing,
  kLoss,
  kList,
  kOther
};

struct OpRow {
  OpKind kind;
  OpClass op_class;
  /// FLOPs as a function of dims (see `flops_of`).
  Flops (*flops)(const std::array<std::int64_t, 6>& dims, std::int64_t output_elements);
};

const OpRow& row_of(OpKind kind);

/// FLOPs of a launch. Meaning of dims: products {m, n, k, batch}; attention {batch, heads, queries,
/// keys, head dim, causal}; all other kinds have none (0 FLOPs are counted: they are bound by
/// bytes).
Flops flops_of(OpKind kind, const std::array<std::int64_t, 6>& dims, std::int64_t output_elements);

}  // namespace foreshard
