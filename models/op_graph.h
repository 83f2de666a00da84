#pragma once

// The ops of one training step of a model as a graph: nodes are device launches with shape, FLOPs
// and bytes, edges are the storages that one makes and another reads. The planner fills it
// (schedules/planner/op_graph_of.h), `foreshard models describe --graph` writes it.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/json_fwd.h"
#include "core/units.h"

namespace foreshard {

/// Where in the step an op runs. Inputs are the copies of a sample to the device.
enum class OpPass : std::uint8_t { kInput, kForward, kLoss, kBackward };
std::string_view name_of(OpPass pass);

struct OpNode {
  std::string op;      ///< Text name of the op kind, or "input".
  std::string module;  ///< Fully qualified name of the module that runs it.
  OpPass pass = OpPass::kForward;
  std::vector<std::int64_t> shape;  ///< Of the first result.
  DType dtype = DType::kFloat32;
  Flops flops;  ///< By the counting rule of ModelCosts.
  Bytes read, written;
};

/// Node `to` reads the storage `storage` that node `from` wrote (or writes a part of it after it).
struct OpEdge {
  std::uint32_t from = 0, to = 0, storage = 0;
  Bytes bytes;  ///< Of the whole storage.
};

/// What activation checkpointing of one module changes (torch.utils.checkpoint, non-reentrant).
struct CheckpointFacts {
  std::string module;
  Bytes saved;       ///< Made inside and kept for backward without checkpointing.
  Bytes kept;        ///< Made outside and read inside: what a checkpoint keeps.
  Flops recomputed;  ///< Of the ops that must run again to have the saved tensors back.
};

class OpGraph {
 public:
  std::uint32_t add_node(OpNode node);
  void add_edge(const OpEdge& edge) { edges_.push_back(edge); }

  const std::vector<OpNode>& nodes() const { return nodes_; }
  const std::vector<OpEdge>& edges() const { return edges_; }
  /// Every op after those it reads from. InternalError if there is a circle.
  std::vector<std::uint32_t> topological_order() const;
  /// Bytes of the distinct storages that the node wrote in forward and backward reads.
  Bytes saved_by(std::uint32_t node) const;
  CheckpointFacts checkpoint(std::string_view module) const;

  /// For Graphviz; storages that backward reads from forward are drawn bold.
  std::string dot() const;
  /// {"nodes": [{id, op, module, pass, shape, dtype, flops, read_bytes, written_bytes,
  /// saved_bytes}],
  ///  "edges": [{from, to, storage, bytes}]}, nodes in topological order.
  Json json() const;

 private:
  std::vector<OpNode> nodes_;
  std::vector<OpEdge> edges_;
};

}  // namespace foreshard
