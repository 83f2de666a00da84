#pragma once

// Autograd of the symbolic host: nodes recorded in forward, run by an engine with PyTorch's order
// rules. Source of the rules: PyTorch 2.15 torch/csrc/autograd/{engine,input_buffer,function}.cpp,
// accumulate_grad.h.

#include <cstdint>
#include <vector>

#include "schedules/planner/host/tensor.h"

namespace foreshard {

class Host;
class BackwardContext;

/// Edge to the node that takes a gradient.
struct AutogradEdge {
  Ref<AutogradNode> node;   ///< Null: no gradient needed.
  std::uint16_t input = 0;  ///< Which gradient slot of `node`.
};

/// Computes the gradients of one recorded function.
using BackwardFunction = void (*)(BackwardContext& ctx);

/// What a hook does is up to its owner (the framework); the engine only says which one fired.
enum class HookKind : std::uint8_t { kTensorPreHook, kNodePostHook };
struct HookEntry {
  std::uint32_t payload = 0;
  std::uint16_t input = 0;  ///< Tensor hooks: gradient slot.
  HookKind kind = HookKind::kTensorPreHook;
  std::int32_t next = -1;  ///< Next hook of the same node, in order of registration.
};

/// A tensor kept for backward: the tensor itself or, inside a checkpointed region, a numbered slot
/// of its frame.
struct SavedTensor {
  SymTensor tensor;
  std::int32_t frame = -1, slot = -1;
};

/// Inputs of a function that take gradients, and tensors it saves: this many without heap memory.
inline constexpr int kInlineEdges = 4, kInlineSaved = 9;
inline constexpr std::uint64_t kAccumulateSequence = UINT64_MAX;

struct AutogradNode {
  std::uint32_t refs = 0;
  std::uint16_t gradients_in = 1;  ///< Outputs of the forward function.
  std::uint8_t inline_edges = 0, inline_saved = 0;
  bool mixed_dtypes = false;  ///< Outputs of several dtypes: gradients are taken as they come.
  std::int8_t late_edge =
      -1;  ///< This edge's gradient passes a view first and is converted after that.
  bool runs_without_gradients = false;  ///< Runs even if no gradient arrived (hooks must fire).
  DType dtype = DType::kFloat32;  ///< Of the outputs: gradients that arrive are converted to it.
  StreamIndex stream = 0;  ///< Current when it was made: backward runs it, and its hooks, there.
  std::uint64_t sequence = 0;  ///< Order of creation; AccumulateGrad: kAccumulateSequence.
  Host* host = nullptr;
  BackwardFunction backward = nullptr;  ///< Null: AccumulateGrad.
  std::int32_t first_hook = -1;
  std::int32_t pending = 0;          ///< Dependencies left in the running backward.
  std::uint32_t visit = 0;           ///< Number of the backward that knows this node.
  std::uint32_t slots = UINT32_MAX;  ///< First of its input slots in the running backward.
  ScopeId scope;                     ///< Module that recorded it.
  std::uint32_t payload = 0;         ///< Of a framework's function node.
  std::int32_t block = -1;           ///< Call of a block that outputs of this node belong to.
  const std::vector<std::int64_t>* sizes =
      nullptr;                         ///< Split: elements of every part; outlives the node.
  std::array<std::int64_t, 8> ints{};  ///< Whatever the backward function needs.
  std::array<double, 2> floats{};
  Shape shape;  ///< Whatever the backward function needs; often that of the input.
  std::array<AutogradEdge, kInlineEdges> edge_;
  std::array<SavedTensor, kInlineSaved> saved_;
  std::vector<AutogradEdge> more_edges;
  std::vector<SavedTensor> more_saved;
  AutogradNode* next_doomed = nullptr;  ///< While it waits for its destruction.
  SymTensorImpl* variable = nullptr;    ///< AccumulateGrad: the leaf; it outlives its node's use.

  int edges() const { return inline_edges + static_cast<int>(more_edges.size()); }
  int saved_count() const { return inline_saved + static_cast<int>(more_saved.size()); }
  AutogradEdge& edge(int i) {
    return i < kInlineEdges ? edge_[static_cast<std::size_t>(i)]
                            : more_edges[static_cast<std::size_t>(i - kInlineEdges)];
  }
  SavedTensor& saved(int i) {
    return i < kInlineSaved ? saved_[static_cast<std::size_t>(i)]
                            : more_saved[static_cast<std::size_t>(i - kInlineSaved)];
  }
  void add_edge(AutogradEdge e);
  bool needs(int i) { return static_cast<bool>(edge(i).node); }
};

/// What a backward function sees. Unpacked tensors live until it returns, as the locals of
/// PyTorch's generated code do.
class BackwardContext {
 public:
  BackwardContext(Host& h, AutogradNode& n, std::span<SymTensor> gradients,
                  std::span<SymTensor> results)
      : host(h), node(n), gradients_(gradients), results_(results) {}
  ~BackwardContext() { drop_saved(); }

  Host& host;
  AutogradNode& node;

  /// Gradient of output i; null if undefined.
  SymTensor& grad(int i = 0) { return gradients_[static_cast<std::size_t>(i)]; }
  int gradients() const { return static_cast<int>(gradients_.size()); }
  std::span<SymTensor> all_gradients() const { return gradients_; }
  /// True if input i wants a gradient.
  bool needs(int i) { return node.needs(i); }
  void set(int i, SymTensor g) { results_[static_cast<std::size_t>(i)] = std::move(g); }
  SymTensor& result(int i) { return results_[static_cast<std::size_t>(i)]; }
  /// Saved tensor i; call once each, in the order in which PyTorch's code unpacks. Inside a
  /// checkpointed region the first call runs the forward again.
  const SymTensor& saved(int i);
  /// Drops the unpacked tensors now: what follows (reducing gradients of broadcast inputs) happens
  /// after the function.
  void drop_saved() {
    while (count_ > 0) unpacked_[static_cast<std::size_t>(--count_)].reset();
  }

 private:
  std::span<SymTensor> gradients_, results_;
  std::array<SymTensor, kInlineSaved + 4> unpacked_;
  int count_ = 0;
};

}  // namespace foreshard
