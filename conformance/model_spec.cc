#include "conformance/model_spec.h"

#include <algorithm>
#include <utility>

#include "core/json.h"

namespace foreshard {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& message) {
  throw InputError(Issue{"", path, message, ""});
}

std::vector<std::string> names_of(const Json& list) { return list.get<std::vector<std::string>>(); }

std::pair<std::string, std::string> split_last(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

std::int64_t product_of(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (const std::int64_t d : shape) n *= d;
  return n;
}

/// What a subtree inherits from the nodes above it.
struct Inherited {
  DType dtype = DType::kFloat32;
  bool frozen = false;
};

/// Builds the tree in three passes: modules and parameters, then aliases and ties, then forward
/// programs (which may name any child by path).
class SpecBuilder {
 public:
  SpecBuilder(const Json& golden_case, LeafInputs leaf_inputs)
      : case_(golden_case),
        cast_inputs_(leaf_inputs == LeafInputs::kCastToWeight),
        builder_("Container") {}

  ModelSpec build() {
    const Json& root = case_.at("model");
    Inherited inherited;
    if (case_.contains("dtype")) inherited.dtype = dtype_of(case_.at("dtype"));
    fill(root, builder_.root(), inherited);
    place_aliases();
    tie_parameters();
    write_program(root, builder_.root());
    read_arguments();
    spec_.model = builder_.take();
    spec_.model.name = case_.value("id", "case");
    for (const Json& name : case_.value("frozen_params", Json::array())) {
      spec_.model.parameters[parameter(name.get<std::string>()).value].trainable = false;
    }
    return std::move(spec_);
  }

 private:
  struct Alias {
    ModuleId parent;
    std::string name, target;
    std::size_t position;
  };

  void fill(const Json& node, ModuleId id, Inherited inherited) {
    if (node.contains("dtype")) inherited.dtype = dtype_of(node.at("dtype"));
    inherited.frozen = node.value("frozen", inherited.frozen);
    builder_.model().at(id).class_name = node.contains("class")
                                             ? node.at("class").get<std::string>()
                                             : node.at("kind").get<std::string>();
    builder_.model().at(id).has_forward = node.at("kind") != "ModuleList";
    add_leaf_parameters(node, id, inherited);
    for (const Json& p : node.value("params", Json::array())) add_own_parameter(p, id, inherited);
    for (const Json& b : node.value("buffers", Json::array())) {
      builder_.model().at(id).buffers.push_back({b.at("name").get<std::string>(),
                                                 b.at("shape").get<std::vector<std::int64_t>>(),
                                                 dtype_of(b.at("dtype")), false});
    }
    std::size_t position = 0;
    for (const Json& child : node.value("children", Json::array())) {
      const std::string name = child.at("name").get<std::string>();
      if (child.at("kind") == "Alias") {
        aliases_.push_back({id, name, child.at("target").get<std::string>(), position});
      } else {
        fill(child, builder_.add_module(id, name, ""), inherited);
      }
      ++position;
    }
  }

  void add_leaf_parameters(const Json& node, ModuleId id, const Inherited& inherited) {
    const std::string kind = node.at("kind").get<std::string>();
    const auto add = [&](const char* name, std::vector<std::int64_t> shape) {
      builder_.add_parameter(id, name, std::move(shape), inherited.dtype,
                             is_floating(inherited.dtype) && !inherited.frozen);
    };
    const auto arg = [&](const char* name) { return node.at("args").at(name).get<std::int64_t>(); };
    if (kind == "Linear") {
      add("weight", {arg("out"), arg("in")});
      if (node.at("args").value("bias", false)) add("bias", {arg("out")});
    } else if (kind == "LayerNorm") {
      add("weight", {arg("dim")});
      if (node.at("args").value("bias", true)) add("bias", {arg("dim")});
    } else if (kind == "RMSNorm") {
      add("weight", {arg("dim")});
    } else if (kind == "Embedding") {
      add("weight", {arg("num"), arg("dim")});
    } else if (kind == "BatchNorm1d") {
      add_batch_norm(id, arg("dim"), add);
    } else if (kind == "MultiheadAttention") {
      add_multihead_attention(id, arg("dim"), inherited, add);
    } else if (kind == "Experts") {
      const std::int64_t e = arg("experts"), d = arg("dim"), h = arg("hidden");
      add("w1", {e, h, d});
      add("w2", {e, d, h});
      add("w3", {e, h, d});
    } else if (kind != "Container" && kind != "ModuleList") {
      fail(builder_.model().at(id).name, "unknown kind of module '" + kind + "'");
    }
  }

  template <typename Add>
  void add_batch_norm(ModuleId id, std::int64_t dim, const Add& add) {
    add("weight", {dim});
    add("bias", {dim});
    auto& buffers = builder_.model().at(id).buffers;
    buffers.push_back({"running_mean", {dim}, DType::kFloat32, true});
    buffers.push_back({"running_var", {dim}, DType::kFloat32, true});
    buffers.push_back({"num_batches_tracked", {}, DType::kInt64, true});
  }

  /// The output projection is a module that holds parameters and is never called
  /// (torch.nn.MultiheadAttention).
  template <typename Add>
  void add_multihead_attention(ModuleId id, std::int64_t dim, const Inherited& inherited,
                               const Add& add) {
    add("in_proj_weight", {3 * dim, dim});
    add("in_proj_bias", {3 * dim});
    const ModuleId out = builder_.add_module(id, "out_proj", "NonDynamicallyQuantizableLinear");
    builder_.model().at(out).has_forward = false;
    builder_.set_signature(out, {}, {});
    builder_.add_parameter(out, "weight", {dim, dim}, inherited.dtype, !inherited.frozen);
    builder_.add_parameter(out, "bias", {dim}, inherited.dtype, !inherited.frozen);
  }

  void add_own_parameter(const Json& p, ModuleId id, const Inherited& inherited) {
    const DType dtype = p.contains("dtype") ? dtype_of(p.at("dtype")) : inherited.dtype;
    const auto added = builder_.add_parameter(id, p.at("name").get<std::string>(),
                                              p.at("shape").get<std::vector<std::int64_t>>(), dtype,
                                              is_floating(dtype) && !inherited.frozen);
    if (p.value("transposed", false))
      spec_.non_contiguous.push_back(builder_.model().at(added).name);
  }

  void place_aliases() {
    for (const Alias& a : aliases_) {
      builder_.add_alias(a.parent, a.name, module(a.target));
      auto& children = builder_.model().at(a.parent).children;
      std::rotate(children.begin() + static_cast<std::ptrdiff_t>(a.position), children.end() - 1,
                  children.end());
    }
  }

  void tie_parameters() {
    for (const Json& pair : case_.value("tied", Json::array())) {
      const auto [owner, name] = split_last(pair.at(0).get<std::string>());
      builder_.tie_parameter(module(owner), name, parameter(pair.at(1).get<std::string>()));
    }
  }

  ModuleId module(const std::string& path) {
    const ModuleId id = builder_.model().find_module(path);
    if (!id.valid()) fail(path, "no module of this name");
    return id;
  }

  ParameterId parameter(const std::string& name) {
    const ParameterId id =
        find_parameter(spec_.model.modules.empty() ? builder_.model() : spec_.model, name);
    if (!id.valid()) fail(name, "no parameter of this name");
    return id;
  }

  void write_program(const Json& node, ModuleId id) {
    const std::string kind = node.at("kind").get<std::string>();
    if (kind == "ModuleList") {
      builder_.set_signature(id, {}, {});
    } else if (kind == "Container") {
      builder_.set_signature(id, names_of(node.at("inputs")), names_of(node.at("outputs")));
    } else if (kind == "MultiheadAttention") {
      write_multihead_attention(id, node.at("args").at("heads").get<std::int64_t>());
    } else {
      write_leaf(kind, id);
    }
    for (const Json& child : node.value("children", Json::array())) {
      if (child.at("kind") == "Alias") continue;
      write_program(child, child_of(id, child.at("name").get<std::string>()));
    }
    if (kind != "Container") return;
    for (const Json& step : node.at("forward")) write_step(step, id);
  }

  ModuleId child_of(ModuleId parent, const std::string& path) {
    const std::string& prefix = builder_.model().at(parent).name;
    return module(prefix.empty() ? path : prefix + "." + path);
  }

  void write_leaf(const std::string& kind, ModuleId id) {
    builder_.set_signature(id, {"x"}, {"y"});
    if (cast_inputs_ && kind == "RMSNorm") return write_rms_norm(id);
    const bool cast = cast_inputs_ && (kind == "Linear" || kind == "LayerNorm");
    if (cast) cast_to_weight(id);
    Statement& s = builder_.add_statement(id, leaf_function(kind), {cast ? "%x" : "x"}, {"y"});
    for (const OwnedParameter& p : builder_.model().at(id).parameters) s.parameters.push_back(p.id);
    if (kind != "Linear" && kind != "Embedding") s.floats = {1e-5};
  }

  ParameterId weight_of(ModuleId id) { return builder_.model().at(id).parameters.front().id; }

  /// x.to(weight.dtype).
  void cast_to_weight(ModuleId id) {
    builder_.add_statement(id, Function::kParameter, {}, {"%w"}).parameters = {weight_of(id)};
    builder_.add_statement(id, Function::kCast, {"x", "%w"}, {"%x"});
  }

  /// F.rms_norm(x) * weight.
  void write_rms_norm(ModuleId id) {
    builder_.add_statement(id, Function::kRmsNorm, {"x"}, {"%n"}).floats = {1e-5};
    builder_.add_statement(id, Function::kParameter, {}, {"%w"}).parameters = {weight_of(id)};
    builder_.add_statement(id, Function::kMul, {"%n", "%w"}, {"y"});
  }

  /// Self-attention without a mask as torch.nn.MultiheadAttention computes it: sequence first,
  /// hence a transposed input of the projection to q, k, v and a transposed output.
  void write_multihead_attention(ModuleId id, std::int64_t heads) {
    builder_.set_signature(id, {"x"}, {"%y"});
    const auto swap = [&](const char* in, const char* out) {
      builder_.add_statement(id, Function::kTranspose, {in}, {out}).ints = {0, 1};
    };
    const auto linear = [&](ModuleId owner, const char* in, const char* out) {
      const std::vector<OwnedParameter> parameters = builder_.model().at(owner).parameters;
      Statement& s = builder_.add_statement(id, Function::kLinear, {in}, {out});
      for (const OwnedParameter& p : parameters) s.parameters.push_back(p.id);
    };
    swap("x", "%t");
    linear(id, "%t", "%p");
    swap("%p", "%s");
    builder_.add_statement(id, Function::kContiguous, {"%s"}, {"%c"});
    builder_.add_statement(id, Function::kChunk, {"%c"}, {"q", "k", "v"}).ints = {-1, 3};
    builder_.add_statement(id, Function::kPackedAttention, {"q", "k", "v"}, {"%o"}).ints = {
        heads, heads, 0};
    swap("%o", "%u");
    builder_.add_statement(id, Function::kContiguous, {"%u"}, {"%w"});
    linear(child_of(id, "out_proj"), "%w", "%z");
    swap("%z", "%y");
  }

  /// BatchNorm1d stands as a LayerNorm: its gradients arrive in the same order (input, weight,
  /// bias).
  static Function leaf_function(const std::string& kind) {
    if (kind == "Linear") return Function::kLinear;
    if (kind == "LayerNorm" || kind == "BatchNorm1d") return Function::kLayerNorm;
    if (kind == "RMSNorm") return Function::kRmsNorm;
    if (kind == "Embedding") return Function::kEmbedding;
    return Function::kExperts;
  }

  void write_step(const Json& step, ModuleId id) {
    const std::string op = step.at("op").get<std::string>();
    const auto ins = names_of(step.value("in", Json::array())), outs = names_of(step.at("out"));
    if (op == "call") {
      const ModuleId child = child_of(id, step.at("child").get<std::string>());
      Statement& s = builder_.add_statement(id, Function::kCall, ins, outs);
      s.child = child;
      s.no_grad = step.value("no_grad", false);
      return;
    }
    if (op == "attention") {
      Statement& s = builder_.add_statement(id, Function::kPackedAttention, ins, outs);
      const std::int64_t heads = step.at("heads").get<std::int64_t>();
      s.ints = {heads, heads, step.at("causal").get<bool>() ? 1 : 0};
      return;
    }
    Statement& s = builder_.add_statement(id, simple_function(op), ins, outs);
    const Module& m = builder_.model().at(id);
    if (op == "cast") s.dtype = dtype_of(step.at("dtype"));
    if (op == "add_param") {
      const auto it = std::find_if(
          m.parameters.begin(), m.parameters.end(),
          [&](const OwnedParameter& p) { return p.name == step.at("param").get<std::string>(); });
      s.parameters = {it->id};
    }
    if (op == "add_buffer") {
      const auto it = std::find_if(m.buffers.begin(), m.buffers.end(), [&](const BufferDef& b) {
        return b.name == step.at("buffer").get<std::string>();
      });
      s.floats = {static_cast<double>(
          product_of(it->shape))};  // buffers of the specs hold ones; their sum is added
    }
  }

  static Function simple_function(const std::string& op) {
    if (op == "add") return Function::kAdd;
    if (op == "mul") return Function::kMul;
    if (op == "silu") return Function::kSilu;
    if (op == "gelu") return Function::kGelu;
    if (op == "relu") return Function::kRelu;
    if (op == "detach") return Function::kDetach;
    if (op == "cast") return Function::kCast;
    if (op == "add_param") return Function::kAddParameter;
    if (op == "add_buffer") return Function::kAddScalar;
    fail("forward", "unknown operation '" + op + "'");
  }

  void read_arguments() {
    for (const Json& input : case_.at("inputs")) {
      ModelArgument a;
      a.name = input.at("name").get<std::string>();
      a.tokens = input.at("kind") == "tokens";
      a.shape = input.at("shape").get<std::vector<std::int64_t>>();
      if (a.tokens) {
        a.vocabulary = input.at("vocab").get<std::int64_t>();
      } else {
        a.dtype = input.contains("dtype") ? dtype_of(input.at("dtype")) : DType::kFloat32;
        a.requires_grad = input.value("requires_grad", false);
      }
      builder_.model().arguments.push_back(std::move(a));
    }
  }

  const Json& case_;
  const bool cast_inputs_;
  ModelBuilder builder_;
  ModelSpec spec_;
  std::vector<Alias> aliases_;
};

}  // namespace

ModelSpec read_model_spec(const Json& golden_case, LeafInputs leaf_inputs) {
  return SpecBuilder(golden_case, leaf_inputs).build();
}

ParameterId find_parameter(const Model& model, const std::string& name) {
  const auto [owner, local] = split_last(name);
  const ModuleId id = model.find_module(owner);
  if (!id.valid()) return {};
  for (const OwnedParameter& p : model.at(id).parameters) {
    if (p.name == local) return p.id;
  }
  return {};
}

bool is_leaf(const Module& m) {
  return std::none_of(m.program.begin(), m.program.end(), [](const Statement& s) {
    return s.function == Function::kAddParameter || s.function == Function::kCall;
  });
}

DType dtype_of(const Json& name) {
  const auto parsed = parse_dtype(name.get<std::string>());
  if (!parsed) fail("dtype", "unknown dtype " + describe_json(name));
  return *parsed;
}

std::optional<DType> dtype_or_none(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return std::nullopt;
  return dtype_of(*it);
}

Reshard reshard_of(const Json& value) {
  if (value.is_null()) return {};
  if (value.is_boolean()) return value.get<bool>() ? Reshard::yes() : Reshard::no();
  return Reshard::to_group(value.get<std::int64_t>());
}

}  // namespace foreshard
