#include "schedules/planner/frameworks/fsdp1_policy.h"

#include <algorithm>

#include "core/error.h"
#include "models/module_walk.h"
#include "schedules/planner/id_set.h"
#include "schedules/planner/wrap_policy.h"

namespace foreshard::fsdp1 {
namespace {

using Policy = Fsdp1Options::Policy;
using Names = std::vector<std::string>;

std::string hint(const std::string& name, const Names& known) {
  const std::string near = nearest_name(name, known);
  return near.empty() ? "" : "did you mean '" + near + "'?";
}

ParameterId parameter_named(const Model& model, const std::string& name, const char* option) {
  const std::size_t dot = name.rfind('.');
  const bool at_root = dot == std::string::npos;
  const ModuleId owner = module_named(model, at_root ? "" : name.substr(0, dot), option);
  const std::string local = at_root ? name : name.substr(dot + 1);
  Names known;
  for (const OwnedParameter& p : model.at(owner).parameters) {
    if (p.name == local) return p.id;
    known.push_back(p.name);
  }
  throw InputError(
      Issue{"", option, "the model has no parameter '" + name + "'", hint(local, known)});
}

Rule::Kind kind_of(Policy p) {
  if (p == Policy::kModuleClass || p == Policy::kCustom) return Rule::Kind::kTargets;
  if (p == Policy::kManual) return Rule::Kind::kManual;
  return p == Policy::kFromWrap ? Rule::Kind::kNone : Rule::Kind::kRecursive;
}

Rule rule_from_wrap(const Model& model, const WrapPolicy& wrap) {
  const std::string allowed = wrap_forms_without("every:K");
  Rule rule;
  rule.policy = Policy::kLambda;
  switch (wrap.kind) {
    case WrapPolicy::Kind::kRootOnly:
      rule.policy = Policy::kFromWrap;
      break;
    case WrapPolicy::Kind::kSize:
      rule.policy = Policy::kSize;
      rule.min_elements = wrap.min_elements;
      break;
    case WrapPolicy::Kind::kCalls:
      throw InputError(Issue{"", "wrap", "fully_shard calls are FSDP2's", allowed});
    case WrapPolicy::Kind::kEveryK:
    case WrapPolicy::Kind::kBlocks:
    case WrapPolicy::Kind::kModules:
    case WrapPolicy::Kind::kBlocksAndAdapters:
      for (const std::vector<ModuleId>& group : wrapped_groups(model, wrap)) {
        if (group.size() > 1)
          throw InputError(Issue{"", "wrap", "an FSDP1 unit is one module", allowed});
        rule.names.push_back(model.at(group[0]).name);
      }
  }
  // Embedding and head as units of their own, if they are named so.
  if (splits_root(wrap)) {
    rule.policy = Policy::kLambda;
    for (const ModuleId m : model.roles.embeddings) rule.names.push_back(model.at(m).name);
    if (!model.roles.tail.empty()) rule.names.push_back(model.at(model.roles.tail.back()).name);
  }
  rule.kind = kind_of(rule.policy);
  return rule;
}

/// Policies that go by classes take the blocks' or listed ones; "always" takes every module. What
/// else is asked of ParallelConfig::wrap would be asked in vain.
void require_wrap_of(Policy policy, const WrapPolicy& wrap) {
  const bool by_class = policy == Policy::kModuleClass || policy == Policy::kTransformer;
  if (wrap.kind == WrapPolicy::Kind::kBlocks || (!by_class && policy != Policy::kAlways)) return;
  if (by_class && wrap.kind == WrapPolicy::Kind::kModules) return;
  throw InputError(Issue{"", "wrap",
                         by_class ? "FSDP1's class policies wrap classes of modules"
                                  : "FSDP1's policy \"always\" wraps every module",
                         by_class ? "blocks, modules:CLASS,...; other forms: --fsdp1-policy lambda"
                                  : "blocks; other forms: --fsdp1-policy lambda"});
}

/// Classes that ParallelConfig::wrap names: those of the blocks and of what libraries wrap beside
/// them (_no_split_modules), or listed ones.
Names classes_from_wrap(const Model& model, const WrapPolicy& wrap) {
  Names classes, known;
  if (wrap.kind != WrapPolicy::Kind::kModules) {
    for (const std::vector<ModuleId>& group : wrapped_groups(model, WrapPolicy{})) {
      const std::string& name = model.at(group[0]).class_name;
      if (!contains(classes, name)) classes.push_back(name);
    }
    return classes;
  }
  std::vector<Issue> issues;
  for (const Module& m : model.modules) known.push_back(m.class_name);
  for (const std::string& w : wrap.modules) {
    if (contains(known, w)) continue;
    issues.push_back({"", "wrap", "the model has no module of class '" + w + "'", hint(w, known)});
  }
  if (!issues.empty()) throw InputError(std::move(issues));
  return wrap.modules;
}

}  // namespace

bool contains(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool any_dtype(const MixedPrecision& p) { return p.param || p.reduce || p.buffer; }

const Names& full_precision_classes(const Fsdp1Options& o) {
  static const Names batch_norm{"BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"};
  return o.full_precision_classes ? *o.full_precision_classes : batch_norm;
}

ModuleId module_named(const Model& model, const std::string& name, const char* option) {
  const ModuleId id = model.find_module(name);
  if (id.valid()) return id;
  Names known;
  for (const Module& m : model.modules) known.push_back(m.name);
  throw InputError(Issue{"", option, "the model has no module '" + name + "'", hint(name, known)});
}

Ignored find_ignored(const Model& model, const Fsdp1Options& options) {
  Ignored found;
  for (const std::string& name : options.ignored_modules) {
    for_each_module(model, module_named(model, name, "ignored_modules"), [&](ModuleId m) {
      found.modules.insert(m);
      for (const OwnedParameter& p : model.at(m).parameters) found.parameters.insert(p.id);
    });
  }
  for (const std::string& name : options.ignored_parameters) {
    found.parameters.insert(parameter_named(model, name, "ignored_parameters"));
  }
  return found;
}

Rule rule_of(const Model& model, const ParallelConfig& config) {
  const Fsdp1Options& o = config.fsdp1;
  if (o.policy == Policy::kFromWrap) return rule_from_wrap(model, config.wrap);
  require_wrap_of(o.policy, config.wrap);
  Rule rule;
  rule.policy = o.policy;
  rule.kind = kind_of(o.policy);
  rule.names = o.policy_names;
  const bool by_class = o.policy == Policy::kModuleClass || o.policy == Policy::kTransformer;
  if (by_class && rule.names.empty()) rule.names = classes_from_wrap(model, config.wrap);
  rule.min_elements = o.min_elements;
  if (o.force_leaf_classes) rule.force_leaf = *o.force_leaf_classes;
  if (o.exclude_classes) rule.exclude = *o.exclude_classes;
  return rule;
}

}  // namespace foreshard::fsdp1
