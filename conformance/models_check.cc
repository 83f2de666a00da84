#include "conformance/models_check.h"

#include <cstdlib>
#include <map>
#include <optional>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/json.h"
#include "models/describe.h"
#include "models/load_model.h"
#include "schedules/planner/model_costs.h"
#include "schedules/planner/unit_facts.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

/// Collects the first difference only.
class Difference {
 public:
  void note(std::string text) {
    if (text_.empty()) text_ = std::move(text);
  }
  template <typename A, typename B>
  void equal(const std::string& what, const A& expected, const B& found) {
    if (!(expected == found)) note(fmt::format("{}: expected {}, found {}", what, expected, found));
  }
  bool none() const { return text_.empty(); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// "0-2,4" -> 0, 1, 2, 4
std::vector<std::int64_t> numbers_of(const std::string& ranges) {
  std::vector<std::int64_t> numbers;
  for (std::size_t at = 0; at < ranges.size();) {
    const std::size_t comma = std::min(ranges.find(',', at), ranges.size());
    const std::string part = ranges.substr(at, comma - at);
    const std::size_t dash = part.find('-');
    const std::int64_t first = std::stoll(part),
                       last = dash == std::string::npos ? first : std::stoll(part.substr(dash + 1));
    for (std::int64_t n = first; n <= last; ++n) numbers.push_back(n);
    at = comma + 1;
  }
  return numbers;
}

using Shape64 = std::vector<std::int64_t>;

/// Rows of `parameter_tree` or `buffers` by full name; element 1 of a row is the shape.
std::map<std::string, Shape64> expected_tensors(const Json& tree) {
  std::map<std::string, Shape64> all;
  for (const Json& row : tree.at("outside_blocks")) all[row.at(0)] = row.at(1).get<Shape64>();
  for (const Json& list : tree.at("blocks")) {
    const std::string name = list.at("list");
    for (const Json& group : list.at("groups")) {
      for (const std::int64_t i : numbers_of(group.at("blocks"))) {
        for (const Json& row : group.at("rows")) {
          all[fmt::format("{}.{}.{}", name, i, row.at(0).get<std::string>())] =
              row.at(1).get<Shape64>();
        }
      }
    }
  }
  return all;
}

void compare_tensors(const char* what, const std::map<std::string, Shape64>& expected,
                     const std::map<std::string, Shape64>& found, Difference& d) {
  for (const auto& [name, shape] : expected) {
    const auto it = found.find(name);
    if (it == found.end()) {
      d.note(fmt::format("{} {} [{}] is missing", what, name, fmt::join(shape, ", ")));
    } else {
      d.equal(fmt::format("{} {}", what, name), fmt::format("[{}]", fmt::join(shape, ", ")),
              fmt::format("[{}]", fmt::join(it->second, ", ")));
    }
  }
  for (const auto& [name, shape] : found) {
    if (!expected.count(name))
      d.note(fmt::format("{} {} [{}] does not exist there", what, name, fmt::join(shape, ", ")));
  }
}

/// Order of registration, where the golden keeps it: the rows of one block, and those outside
/// blocks.
void compare_order(const Json& tree, const ModelFacts& facts, Difference& d) {
  std::vector<std::string> outside;
  for (const Json& row : tree.at("outside_blocks")) outside.push_back(row.at(0));
  std::size_t next = 0;
  for (const TensorFact& t : facts.tensors) {
    if (next < outside.size() && t.name == outside[next]) ++next;
  }
  if (next < outside.size()) d.note("registration order: " + outside[next] + " comes too early");
  for (const Json& list : tree.at("blocks")) {
    for (const Json& group : list.at("groups")) {
      const std::string prefix = fmt::format("{}.{}.", list.at("list").get<std::string>(),
                                             numbers_of(group.at("blocks"))[0]);
      std::size_t row = 0;
      for (const TensorFact& t : facts.tensors) {
        if (t.name.rfind(prefix, 0) != 0 || row >= group.at("rows").size()) continue;
        d.equal("registration order in " + prefix, group.at("rows")[row].at(0).get<std::string>(),
                t.name.substr(prefix.size()));
        ++row;
      }
    }
  }
}

/// Runs of equal numbered units as one row [name with index range, numel, count], as the golden
/// writes them.
std::vector<std::string> folded(const std::vector<UnitFact>& units) {
  std::vector<std::string> rows;
  for (std::size_t i = 0; i < units.size();) {
    const std::string& name = units[i].name;
    const std::size_t dot = name.rfind('.');
    const bool numbered = dot != std::string::npos &&
                          name.find_first_not_of("0123456789", dot + 1) == std::string::npos;
    std::size_t end = i + 1;
    const std::string list = numbered ? name.substr(0, dot + 1) : "";
    while (numbered && end < units.size() && units[end].numel == units[i].numel &&
           units[end].name.rfind(list, 0) == 0 &&
           units[end].name.find('.', dot + 1) == std::string::npos) {
      ++end;
    }
    const std::string label = end - i > 1 ? name + "-" + units[end - 1].name.substr(dot + 1) : name;
    rows.push_back(fmt::format("{} = {} x{}", label, units[i].numel.value, end - i));
    i = end;
  }
  return rows;
}

/// Modules of a unit in alphabetical order: "a + b".
std::string sorted_name(const std::string& name) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t plus = std::min(name.find(" + ", at), name.size());
    parts.push_back(name.substr(at, plus - at));
    at = plus + 3;
  }
  std::sort(parts.begin(), parts.end());
  return fmt::format("{}", fmt::join(parts, " + "));
}

void compare_units(const char* rule, const Json& expected, const std::vector<UnitFact>& units,
                   Difference& d) {
  std::vector<std::string> rows;
  for (const Json& row : expected) {
    rows.push_back(fmt::format("{} = {} x{}", sorted_name(row.at(0).get<std::string>()),
                               row.at(1).get<std::int64_t>(), row.at(2).get<int>()));
  }
  const std::vector<std::string> found = folded(units);
  for (std::size_t i = 0; i < std::max(rows.size(), found.size()); ++i) {
    d.equal(fmt::format("units {}[{}]", rule, i), i < rows.size() ? rows[i] : "none",
            i < found.size() ? found[i] : "none");
  }
}

/// Units as accelerate's FSDP1 policy makes them: embedding and head stay in the root.
std::vector<UnitFact> fsdp1_units(const Model& model) {
  ParallelConfig c;
  c.framework = FrameworkKind::kFsdp1;
  c.wrap.root_split = false;
  return unit_facts(model, c);
}

/// Units with the input embedding (model.get_input_embeddings(): position embeddings stay in the
/// root) and the head of their own, these last, as the recordings list them.
std::vector<UnitFact> split_units(Model model) {
  if (model.roles.embeddings.size() > 1) model.roles.embeddings.resize(1);
  std::vector<UnitFact> units = unit_facts(model, {});
  for (UnitFact& u : units) u.name = sorted_name(u.name);
  std::vector<ModuleId> ends = model.roles.embeddings;
  ends.insert(ends.end(), model.roles.tail.begin(), model.roles.tail.end());
  std::stable_partition(units.begin(), units.end(), [&](const UnitFact& u) {
    return std::none_of(ends.begin(), ends.end(), [&](ModuleId end) {
      return (" + " + u.name + " + ").find(" + " + model.at(end).name + " + ") != std::string::npos;
    });
  });
  return units;
}

/// accelerate looks for the final norm among the direct children of the base model only; where a
/// text model is nested it stays in the root.
Model with_base_model_norm(Model model) {
  std::vector<ModuleId>& tail = model.roles.tail;
  if (tail.empty() || model.at(tail[0]).class_name.find("Norm") == std::string::npos) return model;
  const std::string& norm = model.at(tail[0]).name;
  bool direct = std::count(norm.begin(), norm.end(), '.') == 1;
  const std::string base = norm.substr(0, norm.find('.') + 1);
  for (const ModuleId block : model.roles.blocks)
    direct = direct && model.at(block).name.starts_with(base);
  if (!direct) tail.erase(tail.begin());
  return model;
}

void compare_all_units(const Json& units, const Model& model, Difference& d) {
  compare_units("accelerate_fsdp1", units.at("accelerate_fsdp1"), fsdp1_units(model), d);
  compare_units("accelerate_fsdp2", units.at("accelerate_fsdp2"),
                split_units(with_base_model_norm(model)), d);
  const Json& titan = units.contains("torchtitan_like") ? units.at("torchtitan_like")
                                                        : units.at("accelerate_fsdp2");
  compare_units("torchtitan_like", titan.is_array() ? titan : units.at("accelerate_fsdp2"),
                split_units(model), d);
}

std::map<std::string, Shape64> found_tensors(const ModelFacts& facts) {
  std::map<std::string, Shape64> all;
  for (const TensorFact& t : facts.tensors) all[t.name] = t.shape;
  return all;
}

std::map<std::string, Shape64> found_buffers(const Model& model) {
  std::map<std::string, Shape64> all;
  for (const ModuleId id : modules_in_order(model)) {
    const Module& m = model.at(id);
    for (const BufferDef& b : m.buffers)
      all[m.name.empty() ? b.name : m.name + "." + b.name] = b.shape;
  }
  return all;
}

/// FLOPs equal; saved bytes within 0.1 %.
void compare_costs(const Json& golden, const Model& model, ModelFacts& facts, Difference& d) {
  if (!golden.contains("saved") || golden.at("saved").empty()) return;
  const std::string length = golden.at("saved").begin().key();
  const std::int64_t sequence = length == "image" ? 1 : std::stoll(length);
  facts.costs = model_costs(model, 1, sequence);
  const Json& flops = golden.at("flops").at(length);
  d.equal("forward FLOPs", flops.at("forward").at("total").get<std::int64_t>(),
          facts.costs->forward.value);
  d.equal("backward FLOPs", flops.at("backward").at("total").get<std::int64_t>(),
          facts.costs->backward.value);
  const std::int64_t saved = golden.at("saved").at(length).at("bytes").get<std::int64_t>();
  const double off = static_cast<double>(facts.costs->saved_for_backward.value - saved) /
                     static_cast<double>(saved);
  if (off > 1e-3 || off < -1e-3)
    d.equal("saved bytes", saved, facts.costs->saved_for_backward.value);
}

std::string ties_text(const std::vector<std::vector<std::string>>& ties) {
  std::vector<std::string> groups;
  for (const auto& g : ties) groups.push_back(fmt::format("{}", fmt::join(g, " = ")));
  return groups.empty() ? "none" : fmt::format("{}", fmt::join(groups, "; "));
}

// ------------------------------------------------------------------------------------------------
// finding the config

std::optional<Json> config_beside(const fs::path& file, const std::string& name) {
  std::vector<fs::path> roots;
  if (const char* shared = std::getenv("FORESHARD_SHARED")) roots.emplace_back(shared);
  for (fs::path up = fs::absolute(file).parent_path();
       up.has_parent_path() && up != up.parent_path(); up = up.parent_path()) {
    roots.push_back(up);
    roots.push_back(up / "shared");
  }
  for (const fs::path& root : roots) {
    for (const fs::path& folder : {root / "data/user-files/hf-config", root / "hf-config", root}) {
      const fs::path candidate = folder / (name + ".json");
      std::error_code error;
      if (!fs::exists(candidate, error) || fs::equivalent(candidate, file, error)) continue;
      Json json = read_json_file(candidate);
      if (json.is_object() && json.contains("model_type")) return json;
    }
  }
  return std::nullopt;
}

std::string case_name(const fs::path& file) {
  fs::path stem = file.filename();
  while (stem.extension() == ".json" || stem.extension() == ".gz") stem = stem.stem();
  return stem.string();
}

Json config_of(const Json& golden, const fs::path& file, const std::string& name) {
  for (const char* key : {"config_json", "inline", "hf_config"}) {
    if (golden.contains(key) && golden.at(key).is_object()) return golden.at(key);
  }
  if (golden.contains("model") && golden.at("model").is_object() &&
      golden.at("model").contains("inline")) {
    return golden.at("model").at("inline");
  }
  if (auto found = config_beside(file, name)) return *found;
  throw InputError({file.string(), "", "no configuration for this case",
                    "data/user-files/hf-config/" + name + ".json"});
}

// ------------------------------------------------------------------------------------------------
// the two forms

CheckResult check_facts(const Json& golden, const std::string& name, const Json& config) {
  CheckResult result;
  result.id = name;
  const Model model = model_from_json(config, name);
  ModelFacts facts = model_facts(model);
  Difference d;
  d.equal("class", golden.at("class").get<std::string>(), model.architecture);
  const Json& p = golden.at("parameters");
  d.equal("total", p.at("total").get<std::int64_t>(), facts.total.value);
  d.equal("active", p.at("active").get<std::int64_t>(), facts.active_per_token.value);
  d.equal("tied", ties_text(p.at("tied").get<std::vector<std::vector<std::string>>>()),
          ties_text(facts.tied));
  compare_tensors("tensor", expected_tensors(golden.at("parameter_tree")), found_tensors(facts), d);
  compare_order(golden.at("parameter_tree"), facts, d);
  compare_tensors("buffer", expected_tensors(golden.at("buffers")), found_buffers(model), d);
  compare_all_units(golden.at("units"), model, d);
  if (d.none()) compare_costs(golden, model, facts, d);
  result.ok = d.none();
  result.first_difference = d.text();
  result.predicted = facts_to_json(facts).dump();
  return result;
}

CheckResult check_catalogue_row(const std::string& name, const Json& row) {
  CheckResult result;
  result.id = "catalogue: " + name;
  Json config = row.at("hyperparameters");
  config["model_type"] = row.at("model_type");
  config["architectures"] = {row.at("class")};
  const Model model = model_from_json(config, name);
  const ModelFacts facts = model_facts(model);
  Difference d;
  d.equal("total", row.at("parameters").get<std::int64_t>(), facts.total.value);
  d.equal("active", row.at("active").get<std::int64_t>(), facts.active_per_token.value);
  d.equal("tied", ties_text(row.at("tied").get<std::vector<std::vector<std::string>>>()),
          ties_text(facts.tied));
  compare_units("accelerate_fsdp1", row.at("accelerate_fsdp1"), fsdp1_units(model), d);
  compare_units("accelerate_fsdp2", row.at("accelerate_fsdp2"),
                split_units(with_base_model_norm(model)), d);
  result.ok = d.none();
  result.first_difference = d.text();
  return result;
}

template <typename Check>
CheckResult guarded(const std::string& id, const Check& check) {
  try {
    return check();
  } catch (const std::exception& error) {
    CheckResult failed;
    failed.id = id;
    failed.first_difference = error.what();
    return failed;
  }
}

}  // namespace

std::vector<CheckResult> check_models(const fs::path& file) {
  const Json golden = read_json_file(file);
  const std::string name = case_name(file);
  if (!golden.is_object()) return {};
  std::vector<CheckResult> results;
  if (golden.contains("parameter_tree")) {
    results.push_back(
        guarded(name, [&] { return check_facts(golden, name, config_of(golden, file, name)); }));
    return results;
  }
  for (const auto& [key, row] : golden.items()) {
    if (!row.is_object() || !row.contains("hyperparameters")) continue;
    results.push_back(
        guarded("catalogue: " + key, [&k = key, &r = row] { return check_catalogue_row(k, r); }));
  }
  return results;
}

}  // namespace foreshard
