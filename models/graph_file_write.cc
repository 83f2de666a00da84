#include "core/json.h"
#include "models/graph_file.h"

namespace foreshard {
namespace {

Json names_of(const Module& module, const std::vector<ValueSlot>& slots) {
  Json list = Json::array();
  for (const ValueSlot s : slots) list.push_back(module.value_names[static_cast<std::size_t>(s)]);
  return list;
}

class Writer {
 public:
  explicit Writer(const Model& model)
      : model_(model), seen_parameters_(model.parameters.size(), false) {
    seen_modules_.resize(model.modules.size(), false);
  }
  Json write();

 private:
  Json module(ModuleId id);
  Json parameter(const OwnedParameter& owned);
  Json statement(const Module& module, const Statement& s);
  Json roles(const std::vector<ModuleId>& ids);

  const Model& model_;
  std::vector<bool> seen_parameters_, seen_modules_;
};

Json Writer::parameter(const OwnedParameter& owned) {
  const ParameterDef& def = model_.at(owned.id);
  if (seen_parameters_[owned.id.value]) return Json{{"tied", def.name}};
  seen_parameters_[owned.id.value] = true;
  if (def.dtype == DType::kFloat32 && def.trainable) return Json(def.shape);
  Json json{{"shape", def.shape}, {"dtype", std::string(name_of(def.dtype))}};
  if (!def.trainable) json["trainable"] = false;
  return json;
}

Json Writer::statement(const Module& module, const Statement& s) {
  Json json = Json::object();
  if (s.function == Function::kCall) {
    const std::string& target = model_.at(s.child).name;
    json["call"] = module.name.empty() ? target : target.substr(module.name.size() + 1);
    json["in"] = names_of(module, s.inputs);
    json["out"] = names_of(module, s.outputs);
    return json;
  }
  json["do"] = std::string(name_of(s.function));
  json["in"] = names_of(module, s.inputs);
  json["out"] = names_of(module, s.outputs);
  for (const ParameterId id : s.parameters) {
    for (const OwnedParameter& owned : module.parameters) {
      if (owned.id == id) {
        json["parameters"].push_back(owned.name);
        break;
      }
    }
  }
  if (!s.ints.empty()) json["ints"] = s.ints;
  if (!s.floats.empty()) json["floats"] = s.floats;
  if (s.dtype != DType::kFloat32) json["dtype"] = std::string(name_of(s.dtype));
  if (s.no_grad) json["no_grad"] = true;
  return json;
}

Json Writer::module(ModuleId id) {
  seen_modules_[id.value] = true;
  const Module& m = model_.at(id);
  Json json{{"class", m.class_name}};
  for (const OwnedParameter& p : m.parameters) json["parameters"][p.name] = parameter(p);
  for (const BufferDef& b : m.buffers) {
    Json& buffer = json["buffers"][b.name] = {
        {"shape", b.shape}, {"dtype", std::string(name_of(b.dtype))}, {"persistent", b.persistent}};
    if (b.follows_model) buffer["follows_model"] = true;
  }
  for (const ChildModule& c : m.children) {
    json["children"][c.name] =
        seen_modules_[c.id.value] ? Json{{"alias", model_.at(c.id).name}} : module(c.id);
  }
  json["inputs"] = names_of(m, m.inputs);
  json["outputs"] = names_of(m, m.outputs);
  if (m.has_forward) {
    json["forward"] = Json::array();
    for (const Statement& s : m.program) json["forward"].push_back(statement(m, s));
  }
  return json;
}

Json Writer::roles(const std::vector<ModuleId>& ids) {
  Json list = Json::array();
  for (const ModuleId id : ids) list.push_back(model_.at(id).name);
  return list;
}

Json Writer::write() {
  Json json{{"format", "foreshard-model"},
            {"version", 1},
            {"name", model_.name},
            {"architecture", model_.architecture}};
  if (model_.stated_dtype) json["dtype"] = std::string(name_of(*model_.stated_dtype));
  if (model_.longest_sequence > 0) json["longest_sequence"] = model_.longest_sequence;
  if (model_.shortest_sequence > 0) json["shortest_sequence"] = model_.shortest_sequence;
  if (!model_.sample.empty()) json["sample"] = model_.sample;
  if (model_.classes > 0) json["classes"] = model_.classes;
  json["arguments"] = Json::array();
  for (const ModelArgument& a : model_.arguments) {
    Json argument{{"name", a.name}, {"kind", a.tokens ? "tokens" : "float"}};
    if (!a.shape.empty()) argument["shape"] = a.shape;
    argument["dtype"] = std::string(name_of(a.dtype));
    if (a.vocabulary > 0) argument["vocabulary"] = a.vocabulary;
    if (a.requires_grad) argument["requires_grad"] = true;
    json["arguments"].push_back(std::move(argument));
  }
  json["root"] = module(ModuleId(0));
  json["roles"] = {{"blocks", roles(model_.roles.blocks)},
                   {"embeddings", roles(model_.roles.embeddings)},
                   {"tail", roles(model_.roles.tail)},
                   {"extra_units", roles(model_.roles.extra_units)}};
  return json;
}

}  // namespace

Json write_graph_file(const Model& model) { return Writer(model).write(); }

}  // namespace foreshard
