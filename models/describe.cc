#include "models/describe.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/format.h"
#include "core/json.h"
#include "models/module_walk.h"

namespace foreshard {
namespace {

// Experts keep all their rows and a token visits top_k of them: numel * top_k / experts are active
// (rounded down).
Elements idle_experts(const Model& model) {
  Elements idle;
  std::set<ParameterId> seen;
  for (const Module& m : model.modules) {
    for (const Statement& s : m.program) {
      if (s.function != Function::kRoutedExperts && s.function != Function::kLoopedExperts)
        continue;
      const std::int64_t experts = s.ints[0], top_k = s.ints[1];
      for (const ParameterId p : s.parameters) {
        if (!seen.insert(p).second) continue;
        const std::int64_t numel = model.at(p).numel();
        idle += Elements(numel -
                         static_cast<std::int64_t>(static_cast<__int128>(numel) * top_k / experts));
      }
    }
  }
  return idle;
}

Elements numel_of(const Model& model, ModuleId id) {
  std::set<ParameterId> parameters;
  for (const ModuleId m : modules_in_order(model, id)) {
    for (const OwnedParameter& p : model.at(m).parameters) parameters.insert(p.id);
  }
  Elements n;
  for (const ParameterId p : parameters) n += Elements(model.at(p).numel());
  return n;
}

std::vector<BlockFact> block_facts(const Model& model) {
  std::vector<BlockFact> facts;
  for (const ModuleId id : model.roles.blocks) {
    const BlockFact one{model.at(id).class_name, 1, numel_of(model, id)};
    const auto it = std::find_if(facts.begin(), facts.end(), [&](const BlockFact& b) {
      return b.class_name == one.class_name && b.numel == one.numel;
    });
    if (it == facts.end()) {
      facts.push_back(one);
    } else {
      ++it->count;
    }
  }
  return facts;
}

Json units_json(const std::vector<UnitFact>& units) {
  Json list = Json::array();
  for (const UnitFact& u : units) list.push_back({{"name", u.name}, {"numel", u.numel.value}});
  return list;
}

}  // namespace

std::vector<ModuleId> modules_in_order(const Model& model, ModuleId root) {
  std::vector<ModuleId> order;
  if (root == ModuleId(0)) order.reserve(model.modules.size());
  for_each_module(model, root, [&](ModuleId m) { order.push_back(m); });
  return order;
}

ModelFacts model_facts(const Model& model) {
  ModelFacts f;
  f.name = model.name;
  f.architecture = model.architecture;
  f.total = model.parameter_count();
  f.trainable = model.trainable_count();
  f.active_per_token = f.total - idle_experts(model);
  std::vector<std::vector<std::string>> names(model.parameters.size());
  for (const ModuleId id : modules_in_order(model)) {
    const Module& m = model.at(id);
    for (const OwnedParameter& p : m.parameters) {
      const std::string full = m.name.empty() ? p.name : m.name + "." + p.name;
      const ParameterDef& def = model.at(p.id);
      f.tensors.push_back({full, def.shape, model.stated_dtype.value_or(def.dtype)});
      names[p.id.value].push_back(full);
    }
  }
  for (auto& group : names) {
    if (group.size() > 1) f.tied.push_back(std::move(group));
  }
  f.blocks = block_facts(model);
  return f;
}

Json facts_to_json(const ModelFacts& f) {
  Json json{{"name", f.name}, {"architecture", f.architecture}};
  json["parameters"] = {{"total", f.total.value},
                        {"trainable", f.trainable.value},
                        {"active_per_token", f.active_per_token.value},
                        {"tied", f.tied}};
  json["tensors"] = Json::array();
  for (const TensorFact& t : f.tensors) {
    json["tensors"].push_back(
        {{"name", t.name}, {"shape", t.shape}, {"dtype", std::string(name_of(t.dtype))}});
  }
  json["blocks"] = Json::array();
  for (const BlockFact& b : f.blocks) {
    json["blocks"].push_back(
        {{"class", b.class_name}, {"count", b.count}, {"numel", b.numel.value}});
  }
  json["units"] = units_json(f.units);
  if (f.costs) {
    Json classes = Json::object();
    for (const auto& [name, flops] : f.costs->by_class) classes[name] = flops.value;
    json["flops"] = {{"forward", f.costs->forward.value},
                     {"backward", f.costs->backward.value},
                     {"forward_causal", f.costs->forward_causal.value},
                     {"backward_causal", f.costs->backward_causal.value},
                     {"by_class", classes}};
    json["saved_for_backward_bytes"] = f.costs->saved_for_backward.value;
  }
  return json;
}

std::string flops_text(Flops flops) {
  const auto n = static_cast<double>(flops.value);
  static constexpr std::pair<double, const char*> kScales[] = {
      {1e15, "PFLOP"}, {1e12, "TFLOP"}, {1e9, "GFLOP"}, {1e6, "MFLOP"}};
  for (const auto& [unit, name] : kScales)
    if (n >= unit) return fmt::format("{:.2f} {}", n / unit, name);
  return fmt::format("{} FLOP", flops.value);
}

std::string facts_to_text(const ModelFacts& f, const std::string& sample) {
  std::string out = fmt::format("{} ({})\n", f.name, f.architecture);
  const auto number = [](std::int64_t n) {
    std::string digits = std::to_string(n), grouped;
    for (std::size_t i = 0; i < digits.size(); ++i) {
      if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
      grouped += digits[i];
    }
    return grouped;
  };
  out += fmt::format("parameters  {:>20}\ntrainable   {:>20}\nper token   {:>20}\n",
                     number(f.total.value), number(f.trainable.value),
                     number(f.active_per_token.value));
  for (const auto& group : f.tied) out += fmt::format("tied        {}\n", fmt::join(group, " = "));
  for (const BlockFact& b : f.blocks)
    out +=
        fmt::format("blocks      {} x {}, {} each\n", b.count, b.class_name, number(b.numel.value));
  for (std::size_t i = 0; i < f.units.size(); ++i) {
    std::size_t last = i;
    while (i > 0 && last + 1 < f.units.size() && f.units[last + 1].numel == f.units[i].numel)
      ++last;
    const std::string name =
        last > i ? f.units[i].name + " .. " + f.units[last].name : f.units[i].name;
    out += fmt::format("unit        {:>20}  {}{}\n", number(f.units[i].numel.value), name,
                       last > i ? fmt::format(" ({} units)", last - i + 1) : "");
    i = last;
  }
  if (f.costs) {
    const ModelCosts& c = *f.costs;
    out += fmt::format(
        "FLOPs       {:>20}  forward{}\nFLOPs       {:>20}  backward\nsaved       {:>20}  for "
        "backward\n",
        flops_text(c.forward_causal), sample.empty() ? "" : ", " + sample,
        flops_text(c.backward_causal), format_memory(c.saved_for_backward));
    if (c.forward != c.forward_causal)
      out += fmt::format("{:>34}causal attention counts half; in full (as --json): {} and {}\n", "",
                         flops_text(c.forward), flops_text(c.backward));
  }
  return out;
}

}  // namespace foreshard
