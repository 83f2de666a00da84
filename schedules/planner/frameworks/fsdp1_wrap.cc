#include "schedules/planner/frameworks/fsdp1_wrap.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "core/error.h"
#include "models/module_walk.h"
#include "schedules/planner/frameworks/fsdp1_error.h"
#include "schedules/planner/frameworks/fsdp1_policy.h"
#include "schedules/planner/id_set.h"
#include "schedules/planner/parameter_places.h"

namespace foreshard::fsdp1 {
namespace {

using Policy = Fsdp1Options::Policy;

class Wrapper {
 public:
  Wrapper(const Model& model, const ParallelConfig& config)
      : model_(model),
        config_(config),
        options_(config.fsdp1),
        rule_(rule_of(model, config)),
        named_(rule_.names.begin(), rule_.names.end()),
        mixed_(any_dtype(config.precision)),
        ignored_(find_ignored(model, config.fsdp1)),
        places_(model),
        flattened_places_(places_.count()) {}

  std::vector<Unit> run() {
    switch (rule_.kind) {
      case Rule::Kind::kNone:
        break;
      case Rule::Kind::kTargets:
        wrap_targets(ModuleId(0));
        break;
      case Rule::Kind::kRecursive:
        wrap_below(ModuleId(0), true);
        break;
      case Rule::Kind::kManual:
        for (const std::string& name : rule_.names) make_unit(module_named(model_, name, "wrap"));
    }
    make_unit(ModuleId(0));
    sort_units();
    return std::move(units_);
  }

 private:
  const std::string& class_of(ModuleId m) const { return model_.at(m).class_name; }
  /// Isolated from mixed precision (F1-G-5).
  bool isolated(ModuleId m) const {
    return mixed_ && rule_.automatic() && contains(full_precision_classes(options_), class_of(m));
  }

  /// _run_policy of the policies that name their targets at once, then _post_order_apply.
  void wrap_targets(ModuleId m) {
    if (!visited_.insert(m)) return;
    for (const ChildModule& c : model_.at(m).children) wrap_targets(c.id);
    if (m != ModuleId(0) && is_target(m)) make_unit(m);
  }

  bool is_target(ModuleId m) const {
    if (ignored_.modules.count(m) != 0) return false;
    if (isolated(m)) return true;
    if (rule_.policy == Policy::kModuleClass) return named_.contains(class_of(m));
    return options_.custom.count(model_.at(m).name) != 0;
  }

  /// _recursive_wrap: returns the elements that it put into units.
  std::int64_t wrap_below(ModuleId m, bool children_only) {
    visited_.insert(m);
    // Asked by the policy of sizes only.
    const std::int64_t numel = rule_.policy == Policy::kSize ? parameters_below(m) : 0;
    if (!descends(m, numel)) return 0;
    std::int64_t wrapped = 0;
    for (const ChildModule& c : model_.at(m).children) {
      if (ignored_.modules.count(c.id) != 0 || visited_.contains(c.id)) continue;
      wrapped += wrap_below(c.id, false);
    }
    if (children_only || !wraps(m, numel - wrapped)) return wrapped;
    make_unit(m);
    return numel;
  }

  /// Under mixed precision the policy is joined with the one that isolates classes, which descends
  /// everywhere (F1-G-5).
  bool descends(ModuleId m, std::int64_t numel) const {
    if (mixed_ || rule_.policy != Policy::kSize) return true;
    return numel >= rule_.min_elements && !contains(rule_.force_leaf, class_of(m));
  }

  bool wraps(ModuleId m, std::int64_t remainder) const {
    if (isolated(m)) return true;
    switch (rule_.policy) {
      case Policy::kSize:
        return remainder >= rule_.min_elements && !contains(rule_.exclude, class_of(m));
      case Policy::kTransformer:
        return named_.contains(class_of(m));
      case Policy::kLambda:
        return named_.contains(model_.at(m).name);
      default:
        return true;
    }
  }

  /// Elements of module.parameters() that are not ignored; a tied one counts in each subtree.
  std::int64_t parameters_below(ModuleId root) const {
    IdSet<ParameterId> seen;
    std::int64_t numel = 0;
    for_each_module(model_, root, [&](ModuleId m) {
      for (const OwnedParameter& p : model_.at(m).parameters) {
        if (ignored_.parameters.count(p.id) != 0 || !seen.insert(p.id)) continue;
        numel += model_.at(p.id).numel();
      }
    });
    return numel;
  }

  // ------------------------------------------------------------------ one constructor
  void make_unit(ModuleId m) {
    Unit u;
    u.module = m;
    u.name = model_.at(m).name;
    Fsdp1Options::Override own;
    if (const auto it = options_.custom.find(u.name);
        it != options_.custom.end() && rule_.policy == Policy::kCustom && m != ModuleId(0)) {
      own = it->second;
    }
    u.strategy = own.strategy.value_or(options_.strategy);
    u.backward_prefetch = own.backward_prefetch.value_or(options_.backward_prefetch);
    check_groups(u);
    const std::int64_t replicas = u.hybrid() ? config_.replicate : 1;
    std::tie(u.predivide, u.postdivide) = divide_factors(config_.shard * replicas);
    if (config_.shard == 1) u.strategy = Strategy::kNoShard;
    u.full_precision_class = m != ModuleId(0) && isolated(m);
    u.precision = own.precision.value_or(config_.precision);
    u.mixed = any_dtype(u.precision) && !u.full_precision_class;
    if (!u.mixed) u.precision = MixedPrecision{};
    // A precision of its own is a whole MixedPrecision: what it does not say has PyTorch's default.
    u.keep_low_precision_grads = u.mixed && !own.precision && options_.keep_low_precision_grads;
    u.cast_forward_inputs = u.mixed && (own.precision ? own.precision->cast_forward_inputs
                                                      : options_.cast_forward_inputs);
    flatten(u);
    units_.push_back(std::move(u));
  }

  /// A unit without replicas takes the pair of groups of a hybrid job for one group; a hybrid unit
  /// needs a second group (PyTorch makes one of the nodes where none is given).
  void check_groups(const Unit& u) const {
    if (u.hybrid() && config_.replicate <= 1 && config_.shard > 1) {
      throw InputError(Issue{"configuration", "fsdp1-strategy",
                             "is hybrid" + (u.name.empty() ? "" : " for \"" + u.name + "\"") +
                                 ", but the job has one replica",
                             "--replicate with the number of nodes, or full_shard"});
    }
    if (config_.replicate <= 1 || u.hybrid()) return;
    throw Fsdp1Error(Refusal::kAttributeError, u.name,
                     "a strategy without replicas cannot use the groups of a hybrid one",
                     "hybrid strategies for every unit");
  }

  void flatten(Unit& u) {
    const std::vector<ParameterId> managed = managed_parameters(u.module);
    if (managed.empty()) return;
    check_uniform(u, managed);
    const DType dtype = model_.at(managed.front()).dtype;
    const DType forward = u.precision.param.value_or(dtype);
    std::vector<FlatSource> occurrences;
    std::vector<std::size_t> places;
    occurrences.reserve(managed.size());
    places.reserve(managed.size());
    IdSet<ParameterId> wanted;
    for (const ParameterId id : managed) wanted.insert(id);
    std::string path = u.name;
    occurrences_below(u.module, path, wanted, occurrences, places);
    for (const std::size_t place : places) flattened_places_[place] = 1;
    const std::int64_t align = options_.use_orig_params ? 16 / size_of(forward) : 0;
    for (const ParameterId id : managed) flattened_.insert(id);
    u.flat = lay_out(model_, std::move(occurrences), align, config_.shard, u.sharded());
    u.flat->dtype = dtype;
    u.flat->forward_dtype = forward;
    u.flat->reduce_dtype = u.precision.reduce.value_or(u.precision.param.value_or(dtype));
    u.flat->trainable = std::any_of(managed.begin(), managed.end(),
                                    [&](ParameterId p) { return model_.at(p).trainable; });
  }

  /// Without original parameters flattening removes a module's attribute, with them it marks the
  /// parameter: one tied across units is stored in both only in the first case (F1-G-6).
  bool is_flattened(ModuleId m, const OwnedParameter& p) const {
    if (options_.use_orig_params) return flattened_.contains(p.id);
    return flattened_places_[places_.number(m, p)] != 0;
  }

  /// _get_orig_params.
  std::vector<ParameterId> managed_parameters(ModuleId root) const {
    std::vector<ParameterId> found;
    IdSet<ParameterId> seen;
    for_each_module(model_, root, [&](ModuleId m) {
      for (const OwnedParameter& p : model_.at(m).parameters) {
        if (ignored_.parameters.count(p.id) != 0 || is_flattened(m, p)) continue;
        if (seen.insert(p.id)) found.push_back(p.id);
      }
    });
    return found;
  }

  /// named_modules(remove_duplicate=False): a module with two names is met twice. `path`: of `m`,
  /// the same again afterwards; `places`: numbers of those of `out`.
  void occurrences_below(ModuleId m, std::string& path, const IdSet<ParameterId>& wanted,
                         std::vector<FlatSource>& out, std::vector<std::size_t>& places) const {
    const std::size_t end = path.size();
    if (end > 0) path += '.';
    for (const OwnedParameter& p : model_.at(m).parameters) {
      if (!wanted.contains(p.id) || is_flattened(m, p)) continue;
      FlatSource& source = out.emplace_back();
      source.id = p.id;
      source.owner = m;
      source.full_name.reserve(path.size() + p.name.size());
      source.full_name.append(path).append(p.name);
      source.name = p.name;
      places.push_back(places_.number(m, p));
    }
    const std::size_t begin = path.size();
    for (const ChildModule& c : model_.at(m).children) {
      occurrences_below(c.id, path += c.name, wanted, out, places);
      path.resize(begin);
    }
    path.resize(end);
  }

  /// _validate_frozen_params, _verify_managed_params and _validate_tensors_to_flatten.
  void check_uniform(const Unit& u, const std::vector<ParameterId>& managed) const {
    const ParameterDef& first = model_.at(managed.front());
    const auto place = [&] { return u.name.empty() ? "(root)" : u.name; };
    const auto refuse = [](const std::string& where, std::string what, const char* allowed) {
      throw Fsdp1Error(Refusal::kValueError, where, std::move(what), allowed);
    };
    for (const ParameterId id : managed) {
      const ParameterDef& p = model_.at(id);
      const auto both = [&] { return " (" + first.name + ", " + p.name + ")"; };
      if (p.shape.empty()) refuse(p.name, "a scalar cannot be flattened", "shape [1]");
      if (!is_floating(p.dtype)) {
        refuse(p.name, "an integer parameter cannot be flattened", "ignored_parameters");
      }
      if (p.dtype != first.dtype)
        refuse(place(), "has parameters of several dtypes" + both(),
               "units of one dtype; adapters in that of the base: --lora-dtype base");
      if (!options_.use_orig_params && p.trainable != first.trainable) {
        refuse(place(), "has frozen and trainable parameters" + both(),
               "original parameters (--fsdp1-use-orig-params yes), or units that are frozen as a "
               "whole "
               "(--wrap blocks+adapters)");
      }
    }
  }

  void sort_units() {
    std::vector<std::size_t> position(model_.modules.size()), order(units_.size());
    std::size_t next = 0;
    for_each_module(model_, ModuleId(0), [&](ModuleId m) { position[m.value] = next++; });
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return position[units_[a].module.value] < position[units_[b].module.value];
    });
    std::vector<Unit> sorted;
    sorted.reserve(units_.size());
    for (const std::size_t i : order) sorted.push_back(std::move(units_[i]));
    units_ = std::move(sorted);
  }

  const Model& model_;
  const ParallelConfig& config_;
  const Fsdp1Options& options_;
  const Rule rule_;
  const std::unordered_set<std::string_view> named_;  ///< Rule::names.
  const bool mixed_;
  const Ignored ignored_;
  std::vector<Unit> units_;
  IdSet<ModuleId> visited_;
  const ParameterPlaces places_;
  std::vector<std::uint8_t> flattened_places_;
  IdSet<ParameterId> flattened_;
};

}  // namespace

std::vector<Unit> wrap_units(const Model& model, const ParallelConfig& config) {
  return Wrapper(model, config).run();
}

std::vector<ModuleId> full_precision_modules(const Model& model, const ParallelConfig& config) {
  std::vector<ModuleId> found;
  if (!any_dtype(config.precision) || !rule_of(model, config).automatic()) return found;
  for_each_module(model, ModuleId(0), [&](ModuleId m) {
    if (contains(full_precision_classes(config.fsdp1), model.at(m).class_name)) found.push_back(m);
  });
  return found;
}

std::vector<ParameterId> ignored_parameters(const Model& model, const ParallelConfig& config) {
  const Ignored ignored = find_ignored(model, config.fsdp1);
  return {ignored.parameters.begin(), ignored.parameters.end()};
}

std::pair<double, double> divide_factors(std::int64_t ranks) {
  std::int64_t factor = 1;
  while (ranks % factor == 0 && ranks > factor * factor) factor *= 2;
  return {static_cast<double>(factor), static_cast<double>(ranks) / static_cast<double>(factor)};
}

}  // namespace foreshard::fsdp1
