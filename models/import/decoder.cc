#include "models/import/decoder.h"

#include <algorithm>

namespace foreshard {
namespace {

std::int64_t window_of(const DecoderSpec& spec, std::int64_t layer) {
  return spec.windows.empty() ? 0 : spec.windows[static_cast<std::size_t>(layer)];
}

bool has_sliding(const DecoderSpec& spec) {
  return std::any_of(spec.windows.begin(), spec.windows.end(),
                     [](std::int64_t w) { return w > 0; });
}
bool has_full(const DecoderSpec& spec) {
  return spec.windows.empty() ||
         std::find(spec.windows.begin(), spec.windows.end(), 0) != spec.windows.end();
}

// Which masks the model asks the library for; each may turn out to be None.
struct Masks {
  bool full = false, sliding = false;
  std::int64_t window = 0;
};
Masks masks_of(const DecoderSpec& spec) {
  using Calls = DecoderSpec::MaskCalls;
  Masks m;
  m.full = spec.mask_calls != Calls::kAsUsed;
  m.sliding = spec.mask_calls == Calls::kBoth;
  for (std::int64_t i = 0; i < spec.layers; ++i) {
    const std::int64_t w = window_of(spec, i);
    m.window = std::max(m.window, w);
    (w > 0 ? m.sliding : m.full) = true;
  }
  return m;
}

ModuleId add_attention(ModelBuilder& b, ModuleId block, const DecoderSpec& spec,
                       std::int64_t layer) {
  AttentionSpec attention = spec.attention;
  attention.class_name = spec.prefix + "Attention";
  attention.hidden = spec.hidden;
  attention.norm_class = spec.prefix + "RMSNorm";
  attention.norm_eps = spec.norm_eps;
  attention.norm_style = spec.norm_style;
  attention.takes_mask = true;
  attention.call.repeats = attention.heads / attention.kv_heads;
  attention.call.window = window_of(spec, layer);
  return attention_module(b, block, "self_attn", attention);
}

struct BlockParts {
  DecoderSpec::Mixer mixer;
  ModuleId mlp, input_norm, attention_norm, ffn_norm, post_norm;
};

BlockParts add_parts(ModelBuilder& b, ModuleId block, const DecoderSpec& spec, std::int64_t layer) {
  BlockParts parts;
  if (spec.mixer) parts.mixer = spec.mixer(b, block, layer);
  if (!parts.mixer.module.valid()) parts.mixer = {"self_attn", add_attention(b, block, spec, layer), true};
  parts.mlp = spec.mlp ? spec.mlp(b, block, layer)
                       : gated_mlp(b, block, "mlp", spec.prefix + "MLP", spec.hidden, spec.ffn,
                                   spec.mlp_bias, spec.activation);
  const auto norm = [&](const char* name) {
    return rms_norm_module(b, block, name, spec.prefix + "RMSNorm", spec.hidden, spec.norm_eps,
                           spec.norm_style);
  };
  parts.input_norm = norm("input_layernorm");
  parts.attention_norm = norm("post_attention_layernorm");
  if (spec.four_norms) {
    parts.ffn_norm = norm("pre_feedforward_layernorm");
    parts.post_norm = norm("post_feedforward_layernorm");
  }
  return parts;
}

ModuleId add_block(ModelBuilder& b, ModuleId list, const DecoderSpec& spec, std::int64_t layer) {
  const ModuleId block = b.add_module(list, std::to_string(layer), spec.prefix + "DecoderLayer");
  const BlockParts parts = add_parts(b, block, spec, layer);

  std::vector<std::string> inputs{"hidden_states"};
  if (parts.mixer.positional) inputs = block_inputs(spec);
  Program p(b, block, inputs);
  p.op(Function::kAssign, {"hidden_states"}, "residual");
  p.call(parts.input_norm, {"hidden_states"}, "hidden_states");
  std::erase(inputs, "position_ids");
  p.call(parts.mixer.module, inputs, "hidden_states");
  if (spec.four_norms) p.call(parts.attention_norm, {"hidden_states"}, "hidden_states");
  p.add("residual", p.dropout("hidden_states", spec.residual_dropout), "hidden_states");
  p.op(Function::kAssign, {"hidden_states"}, "residual");
  p.call(spec.four_norms ? parts.ffn_norm : parts.attention_norm, {"hidden_states"},
         "hidden_states");
  p.call(parts.mlp, {"hidden_states"}, "hidden_states");
  if (spec.four_norms) p.call(parts.post_norm, {"hidden_states"}, "hidden_states");
  p.add("residual", p.dropout("hidden_states", spec.residual_dropout), "hidden_states");
  p.returns({"hidden_states"});
  return block;
}

void make_mask(Program& p, const DecoderSpec& spec, std::int64_t window, bool sliding,
               const std::string& name) {
  p.op_ints(Function::kCausalMask, {"inputs_embeds", "position_ids"},
            {window, spec.masks_always ? 1 : 0, sliding ? 1 : 0}, name);
  p.last().dtype = spec.attention.call.eager ? DType::kFloat32 : DType::kBool;
}

ModuleId add_embedding(ModelBuilder& b, ModuleId parent, const DecoderSpec& spec) {
  const ModuleId id = b.embedding(parent, "embed_tokens", spec.vocabulary, spec.hidden);
  Module& module = b.model().at(id);
  module.class_name = spec.embedding_class;
  if (!spec.embedding_scale) return id;
  module.buffers.push_back({"embed_scale", {}, DType::kFloat32, false, true});
  const ParameterId weight = module.parameters[0].id;
  b.add_statement(id, Function::kBuffer, {}, {"%scale"}).ints = {0};
  b.add_statement(id, Function::kCast, {"%scale"}, {"%cast"}).parameters = {weight};
  b.add_statement(id, Function::kMulScalar, {"y", "%cast"}, {"y"}).floats = {
      *spec.embedding_scale};
  return id;
}

ModuleId add_rotary(ModelBuilder& b, ModuleId model, const DecoderSpec& spec) {
  const ModuleId id = rotary_module(b, model, "rotary_emb", spec.prefix + "RotaryEmbedding",
                                    spec.attention.rotary, spec.long_rope);
  if (spec.second_rotary) {
    auto& buffers = b.model().at(id).buffers;
    buffers.clear();
    for (const char* kind : {"full_attention", "sliding_attention"}) {
      const bool sliding = std::string_view(kind) == "sliding_attention";
      if (!(sliding ? has_sliding(spec) : has_full(spec))) continue;
      for (const char* name : {"_inv_freq", "_original_inv_freq"}) {
        buffers.push_back(
            {kind + std::string(name), {spec.attention.rotary / 2}, DType::kFloat32, false});
      }
    }
  }
  return id;
}

void write_forward(ModelBuilder& b, const Decoder& d, ModuleId rotary, const DecoderSpec& spec,
                   const Masks& masks, bool from_embeddings) {
  Program p(b, d.model, {from_embeddings ? "inputs_embeds" : "input_ids"});
  // Arguments, then locals in the order of the library's code; the tuple (cos, sin) drops its last
  // item first. Models that ask for several masks hold the arguments of the calls in a dict behind
  // them.
  using Names = std::vector<const char*>;
  const Names order =
      spec.mask_calls == DecoderSpec::MaskCalls::kAsUsed
          ? Names{"position_ids",  "inputs_embeds", "causal_mask", "sliding_mask",
                  "hidden_states", "sin",           "cos"}
          : Names{"causal_mask", "sliding_mask", "inputs_embeds", "position_ids", "hidden_states",
                  "sin",         "cos"};
  for (const char* name : order) b.value(d.model, name);
  if (!from_embeddings) p.call(d.embedding, {"input_ids"}, "inputs_embeds");
  p.op(Function::kPositionIds, {"inputs_embeds"}, "position_ids");
  if (masks.full) make_mask(p, spec, 0, false, "causal_mask");
  if (masks.sliding) make_mask(p, spec, masks.window, true, "sliding_mask");
  if (spec.embedding_dropout > 0)
    p.dropout("inputs_embeds", spec.embedding_dropout, "inputs_embeds");
  p.op(Function::kAssign, {"inputs_embeds"}, "hidden_states");
  p.call_all(rotary, {"hidden_states", "position_ids"}, {"cos", "sin"});
  const bool two_tables = spec.second_rotary && has_sliding(spec) && has_full(spec);
  if (two_tables)
    p.call_all(rotary, {"hidden_states", "position_ids"}, {"sliding_cos", "sliding_sin"});
  for (std::int64_t i = 0; i < spec.layers; ++i) {
    const ModuleId block = d.blocks[static_cast<std::size_t>(i)];
    const bool sliding = window_of(spec, i) > 0;
    std::vector<std::string> arguments;
    for (const ValueSlot slot : b.model().at(block).inputs) {
      const std::string& name = b.model().at(block).value_names[static_cast<std::size_t>(slot)];
      if (name == "attention_mask") {
        arguments.push_back(sliding ? "sliding_mask" : "causal_mask");
      } else if ((name == "cos" || name == "sin") && sliding && two_tables) {
        arguments.push_back("sliding_" + name);
      } else {
        arguments.push_back(name);
      }
    }
    p.call(block, arguments, "hidden_states");
  }
  p.call(d.norm, {"hidden_states"}, "hidden_states");
  p.returns({"hidden_states"});
}

}  // namespace

// The positions are an argument of the block that nothing uses: a checkpoint keeps it. It drops its
// list last first.
std::vector<std::string> block_inputs(const DecoderSpec& spec) {
  if (spec.positions_before_table)
    return {"hidden_states", "cos", "sin", "position_ids", "attention_mask"};
  return {"hidden_states", "position_ids", "cos", "sin", "attention_mask"};
}

ModelArgument token_argument(const std::string& name, std::int64_t vocabulary) {
  ModelArgument argument;
  argument.name = name;
  argument.vocabulary = vocabulary;
  return argument;
}

ModelArgument pixel_argument(std::vector<std::int64_t> shape) {
  ModelArgument argument;
  argument.name = "pixel_values";
  argument.tokens = false;
  argument.shape = std::move(shape);
  argument.dtype = DType::kFloat32;
  return argument;
}

Model finish_causal(ModelBuilder& b, const Decoder& decoder, ModuleId head, std::int64_t vocabulary,
                    bool tied) {
  Model& model = b.model();
  if (tied) b.tie_parameter(head, "weight", model.at(decoder.embedding).parameters[0].id);
  Program p(b, b.root(), {"input_ids"});
  p.call(decoder.model, {"input_ids"}, "hidden_states");
  p.returns({p.call(head, {"hidden_states"}, "logits")});
  model.architecture = model.root().class_name;
  model.arguments = {token_argument("input_ids", vocabulary)};
  model.roles = {decoder.blocks, {decoder.embedding}, {decoder.norm, head}, {}};
  return b.take();
}

Decoder add_decoder(ModelBuilder& b, ModuleId parent, const std::string& name,
                    const DecoderSpec& spec, bool from_embeddings) {
  Decoder d;
  const Masks masks = masks_of(spec);
  const std::string model_class = spec.prefix + (from_embeddings ? "TextModel" : "Model");
  d.model = b.add_module(parent, name, spec.model_class.empty() ? model_class : spec.model_class);
  d.embedding = add_embedding(b, d.model, spec);
  const ModuleId list = b.add_module(d.model, "layers", "ModuleList");
  b.model().at(list).has_forward = false;
  for (std::int64_t i = 0; i < spec.layers; ++i)
    d.blocks.push_back(spec.block ? spec.block(b, list, i) : add_block(b, list, spec, i));
  d.norm = spec.norm == DecoderSpec::Norm::kLayer
               ? b.layer_norm(d.model, spec.final_norm, spec.hidden, true, spec.norm_eps)
               : rms_norm_module(b, d.model, spec.final_norm, spec.prefix + "RMSNorm", spec.hidden,
                                 spec.norm_eps, spec.norm_style);
  const ModuleId rotary = add_rotary(b, d.model, spec);
  write_forward(b, d, rotary, spec, masks, from_embeddings);
  return d;
}

Model causal_model(const std::string& class_name, const std::string& base, const DecoderSpec& spec,
                   const CausalHead& head) {
  ModelBuilder b(class_name);
  const Decoder d = add_decoder(b, b.root(), base, spec);
  const ModuleId lm_head = b.linear(b.root(), "lm_head", spec.hidden, spec.vocabulary, head.bias);
  if (head.tied) b.tie_parameter(lm_head, "weight", b.model().at(d.embedding).parameters[0].id);
  Program p(b, b.root(), {"input_ids"});
  p.call(d.model, {"input_ids"}, "hidden_states");
  p.call(lm_head, {"hidden_states"}, "logits");
  if (head.softcap) {
    p.mul_scalar("logits", 1.0 / *head.softcap, "logits");
    p.op(Function::kTanh, {"logits"}, "logits");
    p.mul_scalar("logits", *head.softcap, "logits");
  }
  p.returns({"logits"});
  b.model().architecture = class_name;
  b.model().arguments = {token_argument("input_ids", spec.vocabulary)};
  b.model().roles = {d.blocks, {d.embedding}, {d.norm, lm_head}, {}};
  return b.take();
}

}  // namespace foreshard
