#pragma once

// What `foreshard models describe` says of a model: parameters, tensors, blocks, units and, for one
// sample size, FLOPs and the bytes autograd keeps for backward.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/json_fwd.h"
#include "models/module_tree.h"

namespace foreshard {

struct TensorFact {
  std::string name;  ///< As in the Hugging Face / PyTorch module.
  std::vector<std::int64_t> shape;
  DType dtype = DType::kFloat32;
};

struct BlockFact {
  std::string class_name;
  std::int64_t count = 0;
  Elements numel;  ///< Of one block.
};

/// Parameters that are sharded and gathered together.
struct UnitFact {
  std::string name;  ///< Module name, names joined by " + ", or "root".
  Elements numel;    ///< A tensor tied within the unit counts once.
};

/// FLOPs and saved bytes of one forward and backward; a multiply-add counts two, attention is
/// counted in full (no halving for a causal mask), fused attention backward counts five products.
/// No loss.
struct ModelCosts {
  Flops forward, backward;
  /// The same with half the products where a causal mask hides half of them: what kernels compute.
  Flops forward_causal, backward_causal;
  std::map<std::string, Flops> by_class;  ///< forward + backward by class of op.
  Bytes saved_for_backward;               ///< Distinct storages, without parameters and buffers.
};

struct ModelFacts {
  std::string name, architecture;
  Elements total;  ///< Tied tensors once.
  Elements trainable;
  Elements active_per_token;  ///< Total without the experts a token does not visit.
  std::vector<std::vector<std::string>> tied;  ///< Names of one tensor, in registration order.
  std::vector<TensorFact> tensors;  ///< Every name, tied ones each, in registration order.
  std::vector<BlockFact> blocks;
  // Filled by whoever has a planner (unit_facts.h, model_costs.h).
  std::vector<UnitFact> units;
  std::optional<ModelCosts> costs;
};

/// `root` and every module under it, parents first, each object once: named_modules order.
std::vector<ModuleId> modules_in_order(const Model& model, ModuleId root = ModuleId(0));

/// Everything but units and costs.
ModelFacts model_facts(const Model& model);
/// The document of `models describe --json`: contracts.md's keys.
Json facts_to_json(const ModelFacts& facts);
/// "48.83 TFLOP".
std::string flops_text(Flops flops);
/// A screen for people. `sample`: what the costs are of ("1 sequence of 2,048 tokens"). FLOPs are
/// those that kernels compute.
std::string facts_to_text(const ModelFacts& facts, const std::string& sample = {});

}  // namespace foreshard
