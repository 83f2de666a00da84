// The forward programs of a graph file's modules.

#include <algorithm>

#include <fmt/core.h>

#include "core/enum_names.h"
#include "core/json.h"
#include "models/graph_file_reader.h"

namespace foreshard {

void GraphFileReader::read_call(ObjectReader& r, ModuleId id) {
  const std::string child = r.required_string("call");
  const bool each = r.boolean("each", false);
  const std::vector<std::string> in = names(r, "in"), out = names(r, "out");
  const std::vector<ModuleId> found = modules_of(each ? child + ".*" : child, id);
  if (child.empty() || (found.empty() && !each) || (!each && found.size() != 1)) {
    r.report("call", "there is no module \"" + child + "\" below this one");
    return;
  }
  statements_ += static_cast<std::int64_t>(found.size());
  for (const ModuleId target : found) {
    if (statements_ > kMostStatements) return;
    builder_.call(id, target, in, out);
  }
}

void GraphFileReader::read_statement(const Json& json, ModuleId id, const std::string& path) {
  ObjectReader r(json, path, issues_);
  if (!json.is_object()) return;
  if (r.has("call")) {
    read_call(r, id);
    r.finish();
    return;
  }
  const std::string text = r.required_string("do");
  const auto function = parse_function(text);
  if (!function || *function == Function::kCall) {
    std::vector<std::string> known;
    for (std::size_t f = 1; f < kEnumerators<Function>; ++f)
      known.emplace_back(name_of(static_cast<Function>(f)));
    const std::string nearest = nearest_name(text, known);
    r.report("do", "there is no function \"" + text + "\"",
             nearest.empty() ? "" : "did you mean " + nearest + "?");
    return;
  }
  Statement& s = builder_.add_statement(id, *function, names(r, "in"), names(r, "out"));
  ++statements_;
  s.ints = r.integer_list("ints", INT64_MIN, INT64_MAX).value_or(std::vector<std::int64_t>{});
  if (const Json* floats = r.get("floats"); floats && floats->is_array()) {
    for (const Json& f : *floats) {
      if (f.is_number())
        s.floats.push_back(f.get<double>());
      else
        r.report("floats", "found " + describe_json(f), "numbers");
    }
  }
  s.dtype = dtype(r, DType::kFloat32);
  s.no_grad = r.boolean("no_grad", false);
  for (const std::string& name : names(r, "parameters")) {
    const auto& owned = builder_.model().at(id).parameters;
    const auto it = std::find_if(owned.begin(), owned.end(),
                                 [&](const OwnedParameter& p) { return p.name == name; });
    if (it == owned.end()) {
      r.report("parameters", "this module has no parameter \"" + name + "\"");
    } else {
      s.parameters.push_back(it->id);
    }
  }
  r.finish();
}

void GraphFileReader::read_program(const PendingProgram& pending) {
  if (!pending.json->is_array()) {
    issues_.add(pending.path, "found " + describe_json(*pending.json), "a list of statements");
    return;
  }
  for (std::size_t i = 0; i < pending.json->size() && statements_ <= kMostStatements; ++i) {
    if (issues_.issues().size() > 50) return;  // The first fifty say enough.
    read_statement((*pending.json)[i], pending.module, fmt::format("{}[{}]", pending.path, i));
  }
}

}  // namespace foreshard
