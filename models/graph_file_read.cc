#include <algorithm>

#include <fmt/core.h>

#include "core/enum_names.h"
#include "core/json.h"
#include "models/graph_file.h"
#include "models/graph_file_reader.h"
#include "models/model_checks.h"

namespace foreshard {

DType GraphFileReader::dtype(ObjectReader& r, DType fallback) {
  const std::string text = r.string("dtype", std::string(name_of(fallback)));
  if (const auto parsed = parse_dtype(text)) return *parsed;
  r.report("dtype", "\"" + text + "\" is no element type",
           "float32, bfloat16, float16, int64, bool, ...");
  return fallback;
}

bool GraphFileReader::may_add_module(const std::string& path) {
  if (static_cast<std::int64_t>(builder_.model().modules.size()) < kMostModules) return true;
  if (issues_.empty())
    issues_.add(path, fmt::format("the model has more than {} modules", kMostModules));
  return false;
}

/// One name or a list of names.
std::vector<std::string> GraphFileReader::names(ObjectReader& r, std::string_view key) {
  const Json* value = r.get(key);
  if (!value) return {};
  if (value->is_string()) return {value->get<std::string>()};
  return r.string_list(key).value_or(std::vector<std::string>{});
}

bool GraphFileReader::read_leaf(ObjectReader& r, ModuleId parent, const std::string& name) {
  if (!r.has("leaf")) return false;
  const std::string leaf =
      r.choice("leaf", "linear", {"linear", "embedding", "layer_norm", "rms_norm"});
  if (leaf == "linear") {
    const std::int64_t in = r.required_integer("in", 1, kLargestSize),
                       out = r.required_integer("out", 1, kLargestSize);
    builder_.linear(parent, name, in, out, r.boolean("bias", false));
  } else if (leaf == "embedding") {
    const std::int64_t rows = r.required_integer("rows", 1, kLargestSize),
                       dim = r.required_integer("dim", 1, kLargestSize);
    builder_.embedding(parent, name, rows, dim);
  } else {
    const std::int64_t dim = r.required_integer("dim", 1, kLargestSize);
    const double eps = r.number("eps", leaf == "rms_norm" ? 1e-6 : 1e-5, 0, 1);
    if (leaf == "rms_norm") {
      builder_.rms_norm(parent, name, dim, eps);
    } else {
      builder_.layer_norm(parent, name, dim, r.boolean("bias", true), eps);
    }
  }
  r.finish();
  return true;
}

void GraphFileReader::read_child(const Json& json, ModuleId parent, const std::string& name,
                        const std::string& path) {
  if (!may_add_module(path)) return;
  if (name.empty() || name.find('.') != std::string::npos) {
    issues_.add(path, "is not a module name", "a name without dots");
    return;
  }
  ObjectReader r(json, path, issues_);
  if (!json.is_object()) return;
  if (r.has("alias")) {
    aliases_.push_back({parent, name, r.required_string("alias"), path});
    r.finish();
    return;
  }
  if (r.has("repeat")) {
    const std::int64_t count = r.required_integer("repeat", 0, kMostModules);
    const Json* of = r.get("of");
    if (!of) r.report("of", "is missing", "the module that is repeated");
    r.finish();
    const ModuleId list = builder_.add_module(parent, name, "ModuleList");
    builder_.model().at(list).has_forward = false;
    for (std::int64_t i = 0; of && i < count && issues_.issues().size() < 20; ++i) {
      read_child(*of, list, std::to_string(i), path + ".of");
      if (!may_add_module(path)) return;
    }
    return;
  }
  if (read_leaf(r, parent, name)) return;
  read_module(json, builder_.add_module(parent, name, "Module"), path);
}

void GraphFileReader::read_parameters(const Json& json, ModuleId id, const std::string& path) {
  ObjectReader r(json, path, issues_);
  if (!json.is_object()) return;
  for (const auto& [name, value] : json.items()) {
    const std::string place = path + "." + name;
    if (value.is_array()) {
      const auto shape = r.integer_list(name, 1, kLargestSize);
      if (shape) builder_.add_parameter(id, name, *shape);
      continue;
    }
    r.get(name);
    ObjectReader p(value, place, issues_);
    if (p.has("tied")) {
      ties_.push_back({id, name, p.required_string("tied"), place});
      builder_.add_parameter(id, name,
                             {1});  // Holds the place; replaced when all modules are known.
    } else {
      const auto shape = p.integer_list("shape", 1, kLargestSize);
      if (!shape)
        p.report("shape", "is missing", "a list of sizes; or {\"tied\": \"module.parameter\"}");
      const DType type = dtype(p, DType::kFloat32);
      const bool trainable = p.boolean("trainable", true);
      if (shape) builder_.add_parameter(id, name, *shape, type, trainable);
    }
    p.finish();
  }
}

void GraphFileReader::read_buffers(const Json& json, ModuleId id, const std::string& path) {
  ObjectReader all(json, path, issues_);
  if (!json.is_object()) return;
  for (const auto& [name, value] : json.items()) {
    ObjectReader r(value, path + "." + name, issues_);
    BufferDef buffer;
    buffer.name = name;
    buffer.shape = r.integer_list("shape", 0, kLargestSize).value_or(std::vector<std::int64_t>{});
    buffer.dtype = dtype(r, DType::kFloat32);
    buffer.persistent = r.boolean("persistent", false);
    buffer.follows_model = r.boolean("follows_model", false);
    r.finish();
    builder_.model().at(id).buffers.push_back(std::move(buffer));
  }
}

void GraphFileReader::read_module(const Json& json, ModuleId id, const std::string& path) {
  ObjectReader r(json, path, issues_);
  if (!json.is_object()) return;
  builder_.model().at(id).class_name = r.string("class", "Module");
  if (const Json* parameters = r.get("parameters"))
    read_parameters(*parameters, id, r.path_of("parameters"));
  if (const Json* buffers = r.get("buffers")) read_buffers(*buffers, id, r.path_of("buffers"));
  if (const Json* children = r.get("children")) {
    ObjectReader c(*children, r.path_of("children"), issues_);
    if (children->is_object()) {
      for (const auto& [name, child] : children->items())
        read_child(child, id, name, r.path_of("children") + "." + name);
    }
  }
  const std::vector<std::string> inputs = names(r, "inputs"), outputs = names(r, "outputs");
  builder_.set_signature(id, inputs, outputs);
  if (const Json* forward = r.get("forward")) {
    programs_.push_back({id, forward, r.path_of("forward")});
  } else {
    builder_.model().at(id).has_forward = false;
  }
  r.finish();
}

std::vector<ModuleId> GraphFileReader::modules_of(const std::string& pattern, ModuleId from) {
  std::vector<ModuleId> at{from};
  std::size_t start = 0;
  while (start <= pattern.size() && !pattern.empty()) {
    const std::size_t dot = std::min(pattern.find('.', start), pattern.size());
    const std::string part = pattern.substr(start, dot - start);
    std::vector<ModuleId> next;
    for (const ModuleId id : at) {
      for (const ChildModule& c : builder_.model().at(id).children) {
        if (part == "*" || c.name == part) next.push_back(c.id);
      }
    }
    at = std::move(next);
    start = dot + 1;
  }
  return at;
}

void GraphFileReader::resolve() {
  for (const PendingAlias& a : aliases_) {
    const auto found = modules_of(a.target, builder_.root());
    const std::string& owner = builder_.model().at(a.parent).name;
    if (found.size() != 1 || a.target.find('*') != std::string::npos) {
      issues_.add(a.path, "there is no module \"" + a.target + "\"", "the full path of a module");
    } else if (owner == a.target || owner.rfind(a.target + ".", 0) == 0) {
      issues_.add(a.path, "module \"" + a.target + "\" would contain itself");
    } else {
      builder_.add_alias(a.parent, a.name, found[0]);
    }
  }
  for (const PendingTie& t : ties_) {
    const std::size_t dot = t.source.rfind('.');
    const std::string owner = dot == std::string::npos ? "" : t.source.substr(0, dot);
    const std::string name = dot == std::string::npos ? t.source : t.source.substr(dot + 1);
    const auto found = modules_of(owner, builder_.root());
    const OwnedParameter* source = nullptr;
    if (found.size() == 1) {
      for (const OwnedParameter& p : builder_.model().at(found[0]).parameters) {
        if (p.name == name) source = &p;
      }
    }
    const bool itself = found.size() == 1 && found[0] == t.owner && name == t.name;
    if (!source || itself) {
      issues_.add(t.path, "there is no parameter \"" + t.source + "\" to share",
                  "the full name of another parameter");
    } else {
      builder_.tie_parameter(t.owner, t.name, source->id);
    }
  }
}

void GraphFileReader::read_arguments(ObjectReader& top) {
  const Json* list = top.get("arguments");
  if (!list || !list->is_array() || list->empty()) {
    top.report("arguments", "is missing or empty", "a list of what the root's forward takes");
    return;
  }
  for (std::size_t i = 0; i < list->size(); ++i) {
    ObjectReader r((*list)[i], fmt::format("arguments[{}]", i), issues_);
    ModelArgument argument;
    argument.name = r.required_string("name");
    argument.tokens = r.choice("kind", "tokens", {"tokens", "float"}) == "tokens";
    argument.shape =
        r.integer_list("shape", -1, kLargestSize).value_or(std::vector<std::int64_t>{});
    argument.dtype = dtype(r, argument.tokens ? DType::kInt64 : DType::kFloat32);
    argument.vocabulary = r.integer("vocabulary", 0, 0, kLargestSize);
    argument.requires_grad = r.boolean("requires_grad", false);
    if (argument.tokens && argument.vocabulary == 0)
      r.report("vocabulary", "is missing", "the number of token ids");
    if (!argument.tokens && argument.shape.empty())
      r.report("shape", "is missing", "sizes, -1 for the micro-batch");
    r.finish();
    builder_.model().arguments.push_back(std::move(argument));
  }
}

void GraphFileReader::read_roles(ObjectReader& top) {
  const Json* json = top.get("roles");
  if (!json) return;
  ObjectReader r(*json, "roles", issues_);
  const auto read = [&](const char* key, std::vector<ModuleId>& to) {
    for (const std::string& pattern : names(r, key)) {
      const auto found = modules_of(pattern, builder_.root());
      if (found.empty() || pattern.empty())
        r.report(key, "there is no module \"" + pattern + "\"");
      else
        to.insert(to.end(), found.begin(), found.end());
    }
  };
  ModelRoles& roles = builder_.model().roles;
  read("blocks", roles.blocks);
  read("embeddings", roles.embeddings);
  read("tail", roles.tail);
  read("extra_units", roles.extra_units);
  r.finish();
}

Model GraphFileReader::read(const Json& json) {
  ObjectReader top(json, "", issues_);
  top.choice("format", "", {"foreshard-model"});
  if (const std::int64_t version = top.required_integer("version", 1, INT32_MAX); version > 1) {
    top.report("version", fmt::format("{} is newer than this program", version), "1");
  }
  Model& model = builder_.model();
  model.name = top.string("name", "");
  model.architecture = top.string("architecture", "");
  model.longest_sequence = top.integer("longest_sequence", 0, 0, kLargestSize);
  model.shortest_sequence = top.integer("shortest_sequence", 0, 0, kLargestSize);
  model.sample = top.string("sample", "");
  model.classes = top.integer("classes", 0, 0, kLargestSize);
  if (top.has("dtype")) model.stated_dtype = dtype(top, DType::kFloat32);
  read_arguments(top);
  if (const Json* root = top.get("root")) {
    read_module(*root, builder_.root(), "root");
  } else {
    top.report("root", "is missing", "the root module");
  }
  resolve();
  for (const PendingProgram& p : programs_) read_program(p);
  read_roles(top);
  top.finish();
  if (statements_ > kMostStatements)
    issues_.add("root", fmt::format("more than {} statements", kMostStatements));
  issues_.throw_if_any();
  if (model.root().inputs.size() != model.arguments.size()) {
    issues_.add("root.inputs", fmt::format("{} inputs for {} arguments", model.root().inputs.size(),
                                           model.arguments.size()));
  }
  check_parameter_count(model, issues_);
  check_dimensions(model, issues_);
  check_programs(model, issues_);
  check_call_circles(model, issues_);
  issues_.throw_if_any();
  return builder_.take();
}

Model read_graph_file(const Json& json, const std::string& file) { return GraphFileReader(file).read(json); }

}  // namespace foreshard
