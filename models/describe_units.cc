#include "models/describe_units.h"

#include <algorithm>
#include <charconv>
#include <set>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/error.h"

namespace foreshard {
namespace {

std::string join_names(const Model& model, const std::vector<ModuleId>& modules) {
  std::vector<std::string> names;
  for (const ModuleId id : modules) names.push_back(model.at(id).name);
  return fmt::format("{}", fmt::join(names, " + "));
}

bool shares_parameter(const Model& model, ModuleId a, ModuleId b) {
  for (const OwnedParameter& p : model.at(a).parameters) {
    for (const OwnedParameter& q : model.at(b).parameters) {
      if (p.id == q.id) return true;
    }
  }
  return false;
}

/// Assigns every (module, parameter name) to one unit; the first claim wins.
class Claims {
 public:
  explicit Claims(const Model& model) : model_(model), claimed_(model.modules.size(), 0) {}

  void claim(const std::string& name, const std::vector<ModuleId>& modules) {
    std::set<ParameterId> parameters;
    std::vector<std::uint8_t> visited(model_.modules.size(), 0);
    for (const ModuleId id : modules) collect(id, parameters, visited);
    if (parameters.empty()) return;
    Elements numel;
    for (const ParameterId p : parameters) numel += Elements(model_.at(p).numel());
    units_.push_back({name, numel});
  }

  std::vector<UnitFact> units_;

 private:
  void collect(ModuleId id, std::set<ParameterId>& parameters, std::vector<std::uint8_t>& visited) {
    if (visited[id.value]++) return;  // Aliases: the same object under several names.
    if (!claimed_[id.value]) {
      claimed_[id.value] = 1;
      for (const OwnedParameter& p : model_.at(id).parameters) parameters.insert(p.id);
    }
    for (const ChildModule& c : model_.at(id).children) collect(c.id, parameters, visited);
  }

  const Model& model_;
  std::vector<std::uint8_t> claimed_;
};

using ModuleGroups = std::vector<std::vector<ModuleId>>;

/// Registration order is the order of ids of built modules.
ModuleGroups single_groups(std::vector<ModuleId> modules) {
  std::sort(modules.begin(), modules.end());
  ModuleGroups groups;
  for (const ModuleId id : modules) groups.push_back({id});
  return groups;
}

std::string list_of(const Model& model, ModuleId id) {
  const std::string& name = model.at(id).name;
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

ModuleGroups grouped_blocks(const Model& model, std::int64_t every) {
  ModuleGroups groups;
  for (const ModuleId id : model.roles.blocks) {
    const bool fits = !groups.empty() && static_cast<std::int64_t>(groups.back().size()) < every &&
                      list_of(model, groups.back().back()) == list_of(model, id);
    if (fits) {
      groups.back().push_back(id);
    } else {
      groups.push_back({id});
    }
  }
  return groups;
}

std::int64_t numel_below(const Model& model, ModuleId id, std::set<ParameterId>& seen,
                         std::set<ModuleId>& visited) {
  if (!visited.insert(id).second) return 0;
  std::int64_t n = 0;
  for (const OwnedParameter& p : model.at(id).parameters) {
    if (seen.insert(p.id).second) n += model.at(p.id).numel();
  }
  for (const ChildModule& c : model.at(id).children) n += numel_below(model, c.id, seen, visited);
  return n;
}

// F1-G-4: recurse iff n >= min; wrap iff what the children left over is >= min; lists are never
// wrapped themselves.
std::int64_t size_policy(const Model& model, ModuleId id, std::int64_t min,
                         std::vector<ModuleId>& wrapped) {
  if (std::find(wrapped.begin(), wrapped.end(), id) != wrapped.end()) return 0;
  std::set<ParameterId> seen;
  std::set<ModuleId> visited;
  const std::int64_t n = numel_below(model, id, seen, visited);
  if (n < min) return 0;
  std::int64_t taken = 0;
  for (const ChildModule& c : model.at(id).children)
    taken += size_policy(model, c.id, min, wrapped);
  const std::string& kind = model.at(id).class_name;
  if (id == ModuleId(0) || n - taken < min || kind == "ModuleList" || kind == "ModuleDict")
    return taken;
  wrapped.push_back(id);
  return n;
}

std::vector<ModuleId> named_modules(const Model& model, const std::vector<std::string>& names) {
  std::vector<ModuleId> found;
  IssueList issues("wrap");
  for (const std::string& name : names) {
    const std::size_t before = found.size();
    if (const ModuleId id = model.find_module(name); !name.empty() && id.valid())
      found.push_back(id);
    for (std::uint32_t i = 1; i < model.modules.size() && found.size() == before; ++i) {
      for (std::uint32_t j = i; j < model.modules.size(); ++j) {
        if (model.modules[j].class_name == name) found.push_back(ModuleId(j));
      }
      break;
    }
    if (found.size() > before) continue;
    std::set<std::string> classes;
    for (const Module& m : model.modules) classes.insert(m.class_name);
    const std::string nearest = nearest_name(name, {classes.begin(), classes.end()});
    issues.add("modules", "there is no module or class \"" + name + "\"",
               nearest.empty() ? "" : "did you mean " + nearest + "?");
  }
  issues.throw_if_any();
  return found;
}

int depth(const Model& model, ModuleId id) {
  const std::string& name = model.at(id).name;
  return static_cast<int>(std::count(name.begin(), name.end(), '.'));
}

void claim_groups(const Model& model, const ModuleGroups& groups, Claims& claims) {
  // Inner modules claim first; the units are then put back into registration order.
  std::vector<std::size_t> order(groups.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return depth(model, groups[a][0]) > depth(model, groups[b][0]);
  });
  std::vector<std::pair<std::size_t, UnitFact>> made;
  for (const std::size_t i : order) {
    const std::size_t before = claims.units_.size();
    claims.claim(join_names(model, groups[i]), groups[i]);
    if (claims.units_.size() > before) made.emplace_back(i, claims.units_.back());
  }
  std::sort(made.begin(), made.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  claims.units_.clear();
  for (auto& [i, unit] : made) claims.units_.push_back(std::move(unit));
}

void claim_ends(const Model& model, std::vector<ModuleId> tail, Claims& claims) {
  const auto& embeddings = model.roles.embeddings;
  const ModuleId embedding = embeddings.empty() ? ModuleId() : embeddings.front();
  const ModuleId head = tail.empty() ? ModuleId() : tail.back();
  const bool tied = embedding.valid() && head.valid() && shares_parameter(model, embedding, head);
  if (embedding.valid() && !tied) claims.claim(model.at(embedding).name, {embedding});
  if (tied) tail.insert(tail.end() - 1, embedding);
  if (!tail.empty()) claims.claim(join_names(model, tail), tail);
}

std::vector<UnitFact> finish(Claims& claims) {
  std::vector<UnitFact> units = std::move(claims.units_);
  claims.units_.clear();
  claims.claim("root", {ModuleId(0)});
  units.insert(units.begin(),
               claims.units_.empty() ? UnitFact{"root", Elements(0)} : claims.units_.front());
  return units;
}

ModuleGroups groups_of(const Model& model, const UnitSpec& spec) {
  switch (spec.kind) {
    case UnitSpec::Kind::kRoot:
      return {};
    case UnitSpec::Kind::kModules:
      return single_groups(named_modules(model, spec.modules));
    case UnitSpec::Kind::kSize: {
      std::vector<ModuleId> wrapped;
      size_policy(model, ModuleId(0), spec.min_elements, wrapped);
      return single_groups(wrapped);
    }
    case UnitSpec::Kind::kEveryK:
      return grouped_blocks(model, spec.every);
    case UnitSpec::Kind::kBlocks:
      break;
  }
  std::vector<ModuleId> modules = model.roles.blocks;
  modules.insert(modules.end(), model.roles.extra_units.begin(), model.roles.extra_units.end());
  return single_groups(modules);
}

std::int64_t positive(const std::string& text, const std::string& whole) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) {
    throw InputError({"--wrap", "",
                      "\"" + whole + "\" needs a whole number of at least 1 after the colon",
                      "every:2, size:100000000"});
  }
  return value;
}

}  // namespace

UnitSpec parse_unit_spec(const std::string& text) {
  UnitSpec spec;
  const std::size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon),
                    rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (kind == "blocks" && rest.empty()) return spec;
  if (kind == "root" && rest.empty()) {
    spec.kind = UnitSpec::Kind::kRoot;
  } else if (kind == "every") {
    spec.kind = UnitSpec::Kind::kEveryK;
    spec.every = positive(rest, text);
  } else if (kind == "size") {
    spec.kind = UnitSpec::Kind::kSize;
    spec.min_elements = positive(rest, text);
  } else if (kind == "modules" && !rest.empty()) {
    spec.kind = UnitSpec::Kind::kModules;
    for (std::size_t at = 0; at <= rest.size();) {
      const std::size_t comma = std::min(rest.find(',', at), rest.size());
      spec.modules.push_back(rest.substr(at, comma - at));
      at = comma + 1;
    }
  } else {
    throw InputError({"--wrap", "", "\"" + text + "\" is no wrap spec",
                      "blocks, every:K, root, size:N or modules:a,b,c"});
  }
  return spec;
}

std::vector<UnitFact> model_units(const Model& model, const UnitSpec& spec) {
  Claims claims(model);
  claim_groups(model, groups_of(model, spec), claims);
  if (spec.root_split) claim_ends(model, model.roles.tail, claims);
  return finish(claims);
}

std::vector<UnitFact> split_units(const Model& model, TailRule rule) {
  std::vector<ModuleId> tail = model.roles.tail;
  if (rule == TailRule::kBaseModelNorm && !tail.empty()) {
    const std::string& norm = model.at(tail.front()).name;
    bool direct = std::count(norm.begin(), norm.end(), '.') ==
                  1;  // base.norm, where all blocks are the base model's
    const std::string base = norm.substr(0, norm.find('.') + 1);
    for (const ModuleId block : model.roles.blocks)
      direct = direct && model.at(block).name.rfind(base, 0) == 0;
    const bool is_norm = model.at(tail.front()).class_name.find("Norm") != std::string::npos;
    if (is_norm && !direct) tail.erase(tail.begin());
  }
  Claims claims(model);
  claim_groups(model, groups_of(model, {}), claims);
  claim_ends(model, tail, claims);
  return finish(claims);
}

}  // namespace foreshard
