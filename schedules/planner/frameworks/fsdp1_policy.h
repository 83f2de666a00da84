#pragma once

// What ParallelConfig says about wrapping under FSDP1, in PyTorch's words: the policy and what is
// left out.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "models/module_tree.h"
#include "schedules/planner/config.h"

namespace foreshard::fsdp1 {

/// What the user ignores (F1-G-9).
struct Ignored {
  std::set<ModuleId> modules;
  std::set<ParameterId> parameters;
};

/// InputError on names that the model does not have.
Ignored find_ignored(const Model& model, const Fsdp1Options& options);
ModuleId module_named(const Model& model, const std::string& name, const char* option);

/// The wrapping; kFromWrap is resolved.
struct Rule {
  /// kTargets: targets are known before anything is wrapped. kRecursive: asked at each module.
  enum class Kind : std::uint8_t { kNone, kTargets, kRecursive, kManual } kind = Kind::kNone;
  Fsdp1Options::Policy policy = Fsdp1Options::Policy::kFromWrap;
  std::vector<std::string> names;  ///< Classes or modules, see Fsdp1Options::policy_names.
  std::int64_t min_elements = 0;
  std::vector<std::string> force_leaf{"MultiheadAttention"}, exclude{"ModuleList", "ModuleDict"};

  bool automatic() const { return kind == Kind::kTargets || kind == Kind::kRecursive; }
};

Rule rule_of(const Model& model, const ParallelConfig& config);

/// Mixed precision is given (PyTorch: not None).
bool any_dtype(const MixedPrecision& p);
/// Classes that an automatic policy isolates from mixed precision (F1-G-5).
const std::vector<std::string>& full_precision_classes(const Fsdp1Options& options);
bool contains(const std::vector<std::string>& names, const std::string& name);

}  // namespace foreshard::fsdp1
