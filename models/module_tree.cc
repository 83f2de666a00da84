#include "models/module_tree.h"

#include <algorithm>

#include "core/error.h"

namespace foreshard {
namespace {

constexpr std::string_view kFunctionNames[] = {
#define FORESHARD_X(enumerator, text) text,
    FORESHARD_FUNCTIONS(FORESHARD_X)
#undef FORESHARD_X
};

std::string join(const std::string& parent, const std::string& name) {
  return parent.empty() ? name : parent + "." + name;
}

bool holds(const Module& module, ParameterId id) {
  return std::any_of(module.parameters.begin(), module.parameters.end(),
                     [&](const OwnedParameter& p) { return p.id == id; });
}

/// Its own and those of children that have no forward (out_proj of nn.MultiheadAttention). Any
/// other child must be called for them, as hooks are of calls (ZeRO-3 gathers a module's
/// parameters when it is called). A cast reads a dtype only.
void check_parameters(const Model& model, const Module& module, const Statement& s) {
  if (s.function == Function::kCast) return;
  for (const ParameterId id : s.parameters) {
    const bool known =
        holds(module, id) ||
        std::any_of(module.children.begin(), module.children.end(), [&](const ChildModule& c) {
          return !model.at(c.id).has_forward && holds(model.at(c.id), id);
        });
    if (!known)
      throw InternalError(module.name + ": " + std::string(name_of(s.function)) + " reads " +
                          model.at(id).name + ", a parameter of another module");
  }
}

void check_module(const Model& model, const Module& module) {
  std::vector<bool> defined(module.value_names.size(), false);
  for (const ValueSlot v : module.inputs) defined[static_cast<std::size_t>(v)] = true;
  for (const Statement& s : module.program) {
    for (const ValueSlot v : s.inputs) {
      if (!defined[static_cast<std::size_t>(v)]) {
        throw InternalError(module.name + ": value " +
                            module.value_names[static_cast<std::size_t>(v)] +
                            " used before it is made");
      }
    }
    if (s.function == Function::kCall) {
      const Module& child = model.at(s.child);
      if (child.inputs.size() != s.inputs.size() || child.outputs.size() != s.outputs.size()) {
        throw InternalError(module.name + ": call of " + child.name +
                            " with a wrong number of values");
      }
    }
    check_parameters(model, module, s);
    for (const ValueSlot v : s.outputs) defined[static_cast<std::size_t>(v)] = true;
  }
  for (const ValueSlot v : module.outputs) {
    if (!defined[static_cast<std::size_t>(v)])
      throw InternalError(module.name + ": output is never made");
  }
}

}  // namespace

std::string_view name_of(Function f) { return kFunctionNames[static_cast<int>(f)]; }

std::optional<Function> parse_function(std::string_view text) {
  for (std::size_t i = 0; i < std::size(kFunctionNames); ++i) {
    if (kFunctionNames[i] == text) return static_cast<Function>(i);
  }
  return std::nullopt;
}

namespace {

void set_buffers(Model& model, DType dtype) {
  for (Module& m : model.modules) {
    for (BufferDef& b : m.buffers)
      if (b.follows_model) b.dtype = dtype;
  }
}

}  // namespace

void Model::set_dtype(DType dtype) {
  for (ParameterDef& p : parameters) {
    if (p.packs == 1 && !p.keeps_dtype) p.dtype = dtype;
  }
  set_buffers(*this, dtype);
}

void Model::cast(DType dtype) {
  for (ParameterDef& p : parameters) {
    if (p.packs == 1) p.dtype = dtype;
  }
  set_buffers(*this, dtype);
}

bool Model::takes_sequences() const {
  if (arguments.empty() || !arguments[0].tokens) return false;
  const std::vector<std::int64_t>& shape = arguments[0].shape;
  return shape.empty() || std::find(shape.begin(), shape.end(), 0) != shape.end();
}

Elements Model::parameter_count() const {
  Elements n;
  for (const ParameterDef& p : parameters) n += Elements(p.numel() * p.packs);
  return n;
}

Elements Model::trainable_count() const {
  Elements n;
  for (const ParameterDef& p : parameters) {
    if (p.trainable) n += Elements(p.numel());
  }
  return n;
}

ModuleId Model::find_module(std::string_view path) const {
  ModuleId at(0);
  while (!path.empty()) {
    const std::size_t dot = path.find('.');
    const std::string_view part = path.substr(0, dot);
    const auto& children = modules[at.value].children;
    const auto it = std::find_if(children.begin(), children.end(),
                                 [&](const ChildModule& c) { return c.name == part; });
    if (it == children.end()) return {};
    at = it->id;
    path = dot == std::string_view::npos ? std::string_view{} : path.substr(dot + 1);
  }
  return at;
}

ModelBuilder::ModelBuilder(std::string root_class) {
  model_.modules.emplace_back();
  model_.modules[0].class_name = std::move(root_class);
}

ModuleId ModelBuilder::add_module(ModuleId parent, const std::string& name,
                                  const std::string& class_name) {
  const ModuleId id(static_cast<std::uint32_t>(model_.modules.size()));
  Module module;
  module.name = join(model_.at(parent).name, name);
  module.class_name = class_name;
  model_.modules.push_back(std::move(module));
  model_.at(parent).children.push_back({name, id});
  return id;
}

void ModelBuilder::add_alias(ModuleId parent, const std::string& name, ModuleId target) {
  model_.at(parent).children.push_back({name, target});
}

ParameterId ModelBuilder::add_parameter(ModuleId owner, const std::string& name,
                                        std::vector<std::int64_t> shape, DType dtype,
                                        bool trainable) {
  const ParameterId id(static_cast<std::uint32_t>(model_.parameters.size()));
  model_.parameters.push_back(
      {join(model_.at(owner).name, name), std::move(shape), dtype, trainable});
  model_.at(owner).parameters.push_back({name, id});
  return id;
}

void ModelBuilder::tie_parameter(ModuleId owner, const std::string& name, ParameterId source) {
  Module& module = model_.at(owner);
  const auto it = std::find_if(module.parameters.begin(), module.parameters.end(),
                               [&](const OwnedParameter& p) { return p.name == name; });
  if (it == module.parameters.end()) {
    module.parameters.push_back({name, source});
    return;
  }
  const ParameterId old = it->id;
  if (old == source) return;
  // The replaced parameter disappears; ids above it move down by one.
  model_.parameters.erase(model_.parameters.begin() + old.value);
  const auto moved = [&](ParameterId id) {
    if (id == old) id = source;
    return id.value > old.value ? ParameterId(id.value - 1) : id;
  };
  for (Module& m : model_.modules) {
    for (OwnedParameter& p : m.parameters) p.id = moved(p.id);
    for (Statement& s : m.program) {
      for (ParameterId& p : s.parameters) p = moved(p);
    }
  }
}

ValueSlot ModelBuilder::value(ModuleId module, const std::string& name) {
  std::vector<std::string>& names = model_.at(module).value_names;
  const auto it = std::find(names.begin(), names.end(), name);
  if (it != names.end()) return static_cast<ValueSlot>(it - names.begin());
  names.push_back(name);
  return static_cast<ValueSlot>(names.size() - 1);
}

void ModelBuilder::set_signature(ModuleId module, const std::vector<std::string>& inputs,
                                 const std::vector<std::string>& outputs) {
  std::vector<ValueSlot> in, out;
  for (const std::string& n : inputs) in.push_back(value(module, n));
  for (const std::string& n : outputs) out.push_back(value(module, n));
  model_.at(module).inputs = std::move(in);
  model_.at(module).outputs = std::move(out);
}

Statement& ModelBuilder::add_statement(ModuleId module, Function f,
                                       const std::vector<std::string>& inputs,
                                       const std::vector<std::string>& outputs) {
  Statement s;
  s.function = f;
  for (const std::string& n : inputs) s.inputs.push_back(value(module, n));
  for (const std::string& n : outputs) s.outputs.push_back(value(module, n));
  model_.at(module).program.push_back(std::move(s));
  return model_.at(module).program.back();
}

void ModelBuilder::call(ModuleId module, ModuleId child, const std::vector<std::string>& inputs,
                        const std::vector<std::string>& outputs) {
  add_statement(module, Function::kCall, inputs, outputs).child = child;
}

ModuleId ModelBuilder::linear(ModuleId parent, const std::string& name, std::int64_t in,
                              std::int64_t out, bool bias) {
  const ModuleId id = add_module(parent, name, "Linear");
  std::vector<ParameterId> parameters{add_parameter(id, "weight", {out, in})};
  if (bias) parameters.push_back(add_parameter(id, "bias", {out}));
  set_signature(id, {"x"}, {"y"});
  add_statement(id, Function::kLinear, {"x"}, {"y"}).parameters = std::move(parameters);
  return id;
}

ModuleId ModelBuilder::embedding(ModuleId parent, const std::string& name, std::int64_t rows,
                                 std::int64_t dim) {
  const ModuleId id = add_module(parent, name, "Embedding");
  const ParameterId weight = add_parameter(id, "weight", {rows, dim});
  set_signature(id, {"x"}, {"y"});
  add_statement(id, Function::kEmbedding, {"x"}, {"y"}).parameters = {weight};
  return id;
}

ModuleId ModelBuilder::layer_norm(ModuleId parent, const std::string& name, std::int64_t dim,
                                  bool bias, double eps) {
  const ModuleId id = add_module(parent, name, "LayerNorm");
  std::vector<ParameterId> parameters{add_parameter(id, "weight", {dim})};
  if (bias) parameters.push_back(add_parameter(id, "bias", {dim}));
  set_signature(id, {"x"}, {"y"});
  Statement& s = add_statement(id, Function::kLayerNorm, {"x"}, {"y"});
  s.parameters = std::move(parameters);
  s.floats = {eps};
  return id;
}

ModuleId ModelBuilder::rms_norm(ModuleId parent, const std::string& name, std::int64_t dim,
                                double eps) {
  const ModuleId id = add_module(parent, name, "RMSNorm");
  const ParameterId weight = add_parameter(id, "weight", {dim});
  set_signature(id, {"x"}, {"y"});
  Statement& s = add_statement(id, Function::kRmsNorm, {"x"}, {"y"});
  s.parameters = {weight};
  s.floats = {eps};
  return id;
}

Model ModelBuilder::take() {
  for (const Module& m : model_.modules) check_module(model_, m);
  return std::move(model_);
}

}  // namespace foreshard
