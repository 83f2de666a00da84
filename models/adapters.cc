#include "models/adapters.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/integers.h"
#include "models/adapter_targets.h"
#include "models/import/program.h"

namespace foreshard {
namespace {

constexpr std::int64_t kBlock = 64,
                       kNestedBlock = 256;    // bitsandbytes' blocksize, and that of nested scales.
constexpr std::int64_t kValuesInStorage = 4;  // NF4 in bfloat16 (bnb_4bit_quant_storage).

bool is_linear(const Module& m) { return m.class_name == "Linear" || m.class_name == "Conv1D"; }

std::vector<ModuleId> linear_modules(const Model& model) {
  const std::set<ModuleId> tail(model.roles.tail.begin(), model.roles.tail.end());
  std::vector<ModuleId> found;
  for (std::uint32_t i = 0; i < model.modules.size(); ++i) {
    if (is_linear(model.modules[i]) && !tail.count(ModuleId(i))) found.emplace_back(i);
  }
  return found;
}

std::vector<ModuleId> targets_of(const Model& model, const LoraOptions& options) {
  const std::vector<ModuleId> all = linear_modules(model);
  const std::vector<std::string> targets =
      options.targets.empty() ? default_lora_targets(model) : options.targets;
  const auto wanted = [&](const std::string& name) {
    return std::any_of(targets.begin(), targets.end(),
                       [&](const std::string& t) { return t == "all-linear" || t == name; });
  };
  std::vector<ModuleId> chosen;
  std::set<std::string> names, unmatched(targets.begin(), targets.end());
  for (const ModuleId id : all) {
    const std::string name = last_name(model.at(id));
    names.insert(name);
    unmatched.erase(name);
    if (wanted(name)) chosen.push_back(id);
  }
  unmatched.erase("all-linear");
  if (targets.empty()) {
    throw InputError(
        {"lora_targets", "",
         fmt::format("is missing: PEFT has no default for {}", model.root().class_name),
         fmt::format("all-linear, or of {}", fmt::join(names, ", "))});
  }
  if (!unmatched.empty() || chosen.empty()) {
    throw InputError({"lora_targets", fmt::format("{}", fmt::join(unmatched, ", ")),
                      "names no linear module of the model",
                      fmt::format("all-linear, or of {}", fmt::join(names, ", "))});
  }
  return chosen;
}

struct LinearShape {
  std::int64_t in, out;
};

/// Weights are [out, in], Conv1D's [in, out].
LinearShape shape_of(const Model& model, const Module& m) {
  const std::vector<std::int64_t>& s = model.at(m.parameters[0].id).shape;
  return m.class_name == "Conv1D" ? LinearShape{s[0], s[1]} : LinearShape{s[1], s[0]};
}

/// The module's contents under a new child; its parameters are renamed.
ModuleId move_to_base(ModelBuilder& b, ModuleId id) {
  const ModuleId base = b.add_module(id, "base_layer", b.model().at(id).class_name);
  Module& from = b.model().at(id);
  Module& to = b.model().at(base);
  to.parameters = std::exchange(from.parameters, {});
  to.buffers = std::exchange(from.buffers, {});
  to.program = std::exchange(from.program, {});
  to.value_names = std::exchange(from.value_names, {});
  to.inputs = std::exchange(from.inputs, {});
  to.outputs = std::exchange(from.outputs, {});
  for (const OwnedParameter& p : to.parameters) {
    std::string& name = b.model().parameters[p.id.value].name;
    if (name == from.name + "." + p.name) name = to.name + "." + p.name;
  }
  return base;
}

ModuleId add_factor(ModelBuilder& b, ModuleId parent, const std::string& name, std::int64_t in,
                    std::int64_t out, LoraOptions::Dtype dtype) {
  const ModuleId dict = b.add_module(parent, name, "ModuleDict");
  b.model().at(dict).has_forward = false;
  const ModuleId factor = b.linear(dict, "default", in, out, false);
  ParameterDef& weight = b.model().parameters[b.model().at(factor).parameters[0].id.value];
  weight.keeps_dtype = dtype == LoraOptions::Dtype::kFloat32;
  return factor;
}

/// peft.tuners.lora.Linear: result + lora_B(lora_A(dropout(x))) * scaling, computed in what lora_A
/// is in and given back in the dtype of the base's result.
void adapt(ModelBuilder& b, ModuleId id, const LoraOptions& options) {
  const LinearShape shape = shape_of(b.model(), b.model().at(id));
  const ModuleId base = move_to_base(b, id);
  const ModuleId down = add_factor(b, id, "lora_A", shape.in, options.rank, options.dtype);
  const ModuleId up = add_factor(b, id, "lora_B", options.rank, shape.out, options.dtype);
  b.model().at(id).class_name = "lora.Linear";
  Program p(b, id, {"x"});
  p.call(base, {"x"}, "result");
  p.op(Function::kDtypeOf, {"result"}, "dtype");
  p.op(Function::kCast, {"x"}, "x");
  p.last().parameters = {b.model().at(down).parameters[0].id};
  const Program::Value low = p.call(down, {p.dropout("x", options.dropout)});
  const double scaling = options.alpha / static_cast<double>(options.rank);
  p.add("result", p.mul_scalar(p.call(up, {low}), scaling), "result");
  p.cast_like("result", "dtype", "result");
  p.returns({"result"});
}

/// bitsandbytes.nn.Linear4bit: packed weight, its quantisation state as buffers, which no framework
/// shards.
void quantise(ModelBuilder& b, ModuleId id, bool nested) {
  Model& model = b.model();
  Module& m = model.at(id);
  const LinearShape shape = shape_of(model, m);
  const std::int64_t values = shape.in * shape.out, blocks = ceil_div(values, kBlock);
  ParameterDef& weight = model.parameters[m.parameters[0].id.value];
  weight.shape = {ceil_div(values, kValuesInStorage), 1};
  weight.dtype = DType::kBFloat16;
  weight.packs = kValuesInStorage;
  m.buffers.push_back({"absmax", {blocks}, nested ? DType::kUInt8 : DType::kFloat32, false});
  m.buffers.push_back({"quant_map", {16}, DType::kFloat32, false});
  if (nested) {
    m.buffers.push_back(
        {"nested_absmax", {ceil_div(blocks, kNestedBlock)}, DType::kFloat32, false});
    m.buffers.push_back({"nested_quant_map", {256}, DType::kFloat32, false});
  }
  const std::vector<OwnedParameter> parameters = m.parameters;
  m.class_name = "Linear4bit";
  m.program.clear();
  m.value_names.clear();
  Program p(b, id, {"x"});
  p.op_ints(Function::kLinear4Bit, {"x"}, {shape.out, shape.in}, "y");
  for (const OwnedParameter& parameter : parameters) p.last().parameters.push_back(parameter.id);
  p.returns({"y"});
}

/// Rewrites what adapt() wrote for a base in four bits (peft/tuners/lora/bnb.py): the base's result
/// is cloned, the product cast before the sum, and neither cast is made under autocast.
void adapt_over_packed(Module& adapter) {
  std::vector<Statement>& program = adapter.program;
  for (Statement& s : program)
    if (s.function == Function::kCast) s.ints = {1};
  Statement clone = program.front();  // Its output is the base's result.
  clone.function = Function::kClone;
  clone.inputs = clone.outputs;
  clone.child = ModuleId();
  Statement cast = program.back(), sum = program[program.size() - 2];
  cast.inputs[0] = cast.outputs[0] = sum.inputs[1];
  cast.ints = {1};
  program.resize(program.size() - 2);
  program.push_back(std::move(cast));
  program.push_back(std::move(sum));
  program.insert(program.begin() + 1, std::move(clone));
}

/// `linear`: modules that are linear (Conv1D included: transformers' replace_with_bnb_linear) or
/// have one as their base layer.
void pack_frozen(ModelBuilder& b, const std::vector<ModuleId>& linear, bool nested) {
  for (const ModuleId id : linear) {
    const Module& m = b.model().at(id);
    const ModuleId base = is_linear(m) ? id : m.children.front().id;
    quantise(b, base, nested);
  }
  for (Module& m : b.model().modules)
    if (m.class_name == "lora.Linear") adapt_over_packed(m);
}

}  // namespace

std::vector<std::string> blocks_and_adapters(const Model& model) {
  std::vector<std::string> names;
  for (const ModuleId block : model.roles.blocks) names.push_back(model.at(block).name);
  const auto trainable = [&](const OwnedParameter& p) { return model.at(p.id).trainable; };
  const bool mixed = std::any_of(model.parameters.begin(), model.parameters.end(),
                                 [](const ParameterDef& p) { return !p.trainable; });
  for (const Module& m : model.modules) {
    if (mixed && m.children.empty() && !m.parameters.empty() &&
        std::all_of(m.parameters.begin(), m.parameters.end(), trainable))
      names.push_back(m.name);
  }
  return names;
}

Model with_lora(Model model, const LoraOptions& options) {
  const std::vector<ModuleId> targets = targets_of(model, options), linear = linear_modules(model);
  ModelBuilder b(model.root().class_name);
  b.model() = std::move(model);
  for (ParameterDef& p : b.model().parameters) p.trainable = false;
  for (const ModuleId id : targets) adapt(b, id, options);
  if (options.base != LoraOptions::Base::k16Bit)
    pack_frozen(b, linear, options.base == LoraOptions::Base::k4BitDouble);
  return b.take();
}

Model with_4bit_base(Model model) {
  std::vector<ModuleId> frozen = linear_modules(model);
  std::erase_if(frozen, [&](ModuleId id) {
    const std::vector<OwnedParameter>& own = model.at(id).parameters;
    return own.empty() || model.at(own[0].id).trainable;
  });
  ModelBuilder b(model.root().class_name);
  b.model() = std::move(model);
  pack_frozen(b, frozen, false);
  return b.take();
}

}  // namespace foreshard
