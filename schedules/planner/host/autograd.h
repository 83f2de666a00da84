#pragma once

// Autograd of the symbolic host: nodes recorded in forward, run by an engine with PyTorch's order rules.
// Source of the rules: PyTorch 2.15 torch/csrc/autograd/{engine,input_buffer,function}.cpp, accumulate_grad.h.

#include <cstdint>
#include <vector>

#include "schedules/planner/host/tensor.h"

namespace foreshard {

class Host;
class BackwardContext;

/// Edge to the node that takes a gradient.
struct AutogradEdge {
  Ref<AutogradNode> node;                  ///< Null: no gradient needed.
  std::uint8_t input = 0;                  ///< Which gradient slot of `node`.
};

/// Computes the gradients of one recorded function; reads ctx.grad(i), ctx.saved(i), writes ctx.set(i, gradient).
using BackwardFunction = void (*)(BackwardContext& ctx);

/// What a hook does is up to its owner; the engine only says which one fired.
struct HookEntry {
  std::uint32_t payload = 0;
  std::uint8_t input = 0;                  ///< Tensor hooks: gradient slot.
  std::uint8_t kind = 0;                   ///< HookKind
  std::int32_t next = -1;                  ///< Next hook of the same node, in order of registration.
};
enum class HookKind : std::uint8_t { kTensorPreHook, kNodePreHook, kNodePostHook };

inline constexpr int kMaxNodeTensors = 12;

/// A tensor kept for backward. Either the tensor itself, or (under saved-tensor hooks) a slot of a checkpoint frame.
struct SavedTensor {
  SymTensor tensor;
  std::int32_t frame = -1, slot = -1;      ///< Checkpoint frame and slot if the tensor itself was not kept.
};

struct AutogradNode {
  std::uint32_t refs = 0;
  std::uint8_t gradients_in = 1;           ///< Outputs of the forward function.
  std::uint8_t edges = 0, saved = 0;
  bool is_accumulate = false;
  std::uint64_t sequence = 0;              ///< Order of creation; AccumulateGrad: highest.
  Host* host = nullptr;
  BackwardFunction backward = nullptr;
  std::int32_t first_hook = -1;
  std::int32_t pending = 0;                ///< Dependencies left in the running backward.
  std::uint32_t visit = 0;                 ///< Mark of the running backward.
  std::uint32_t buffer = 0;                ///< First slot in the engine's input buffers.
  ScopeId scope;                           ///< Module that recorded it.
  std::uint32_t payload = 0;               ///< Of a framework's function node.
  DType dtype = DType::kFloat32;           ///< Of output 0.
  std::array<std::int64_t, 8> ints{};      ///< Whatever the backward function needs.
  std::array<double, 3> floats{};
  std::array<AutogradEdge, kMaxNodeTensors> edge;
  std::array<SavedTensor, kMaxNodeTensors> saved_tensor;
  std::array<Shape, 3> output_shape;       ///< Of the first outputs, for undefined gradients.
  SymTensor variable;                      ///< AccumulateGrad: the leaf.
};

}  // namespace foreshard
