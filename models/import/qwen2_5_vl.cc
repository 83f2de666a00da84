// Qwen2.5-VL: a vision tower with attention in windows and positions along two axes, a Qwen2
// decoder.

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "models/import/families.h"
#include "models/import/multimodal.h"

namespace foreshard {
namespace {

/// The family has no default image; one of 448 x 448 is 32 x 32 patches of 14 (the size the
/// recordings use). The processor cuts images of any size into such patches: `image_size`, a key
/// of ours, says another side.
constexpr std::int64_t kGridSide = 32;

struct QwenVision {
  std::int64_t depth, hidden, ffn, heads, channels, patch, merge, time, window, out;
  std::int64_t grid = 0;  ///< Patches along a side of the image.
  Activation activation;
  std::vector<std::int64_t> full_blocks;

  std::int64_t unit() const { return merge * merge; }
  std::int64_t head_dim() const { return hidden / heads; }
  std::int64_t patches() const { return grid * grid; }
};

/// get_vision_window_index of the library for one image: patches in each window, row by row, edge
/// windows smaller.
std::vector<std::int64_t> window_lengths(const QwenVision& v) {
  const std::int64_t side = v.grid / v.merge, step = v.window / v.merge / v.patch;
  std::vector<std::int64_t> lengths;
  for (std::int64_t y = 0; y < side; y += step) {
    for (std::int64_t x = 0; x < side; x += step) {
      lengths.push_back(std::min(step, side - y) * std::min(step, side - x) * v.unit());
    }
  }
  return lengths;
}

ModuleId norm(ModelBuilder& b, ModuleId parent, const std::string& name, std::int64_t dim) {
  return rms_norm_module(b, parent, name, "Qwen2_5_VLRMSNorm", dim, 1e-6, NormStyle::kLlama);
}

ModuleId add_patch_embed(ModelBuilder& b, ModuleId tower, const QwenVision& v) {
  const ModuleId id = b.add_module(tower, "patch_embed", "Qwen2_5_VisionPatchEmbed");
  const ModuleId proj =
      patch_convolution(b, id, "proj", v.channels, v.hidden, v.patch, false, v.time);
  Program p(b, id, {"hidden_states"});
  p.view("hidden_states", {-1, v.channels, v.time, v.patch, v.patch}, "hidden_states");
  p.returns({p.view(p.call(proj, {"hidden_states"}), {-1, v.hidden})});
  return id;
}

ModuleId add_rotary(ModelBuilder& b, ModuleId tower, const QwenVision& v) {
  const ModuleId id = b.add_module(tower, "rotary_pos_emb", "Qwen2_5_VLVisionRotaryEmbedding");
  for (const char* buffer : {"inv_freq", "original_inv_freq"}) {
    b.model().at(id).buffers.push_back({buffer, {v.head_dim() / 4}, DType::kFloat32, false});
  }
  Program p(b, id, {"x"});
  p.ops(Function::kAxialRotaryTable, {"x"}, {v.head_dim()}, {"cos", "sin"});
  p.returns({"cos", "sin"});
  return id;
}

/// q and k turned in fp32, [n, heads, d].
void rotate(Program& p, const std::string& x, std::int64_t width) {
  const Program::Value wide = p.cast(x, DType::kFloat32, x + "_wide");
  const Program::Value half = p.cat({p.op(Function::kNeg, {p.slice(wide, -1, width / 2, width)}),
                                     p.slice(wide, -1, 0, width / 2)},
                                    -1);
  const Program::Value turned = p.add(p.mul(wide, "unsqueezed_cos"), p.mul(half, "unsqueezed_sin"));
  p.cast_like(turned, x, x);
}

ModuleId add_attention(ModelBuilder& b, ModuleId block, const QwenVision& v,
                       const std::vector<std::int64_t>& lengths) {
  const ModuleId id = b.add_module(block, "attn", "Qwen2_5_VLVisionAttention");
  const ModuleId qkv = b.linear(id, "qkv", v.hidden, 3 * v.hidden, true);
  const ModuleId proj = b.linear(id, "proj", v.hidden, v.hidden, true);
  Program p(b, id, {"hidden_states", "cos", "sin"});
  const Program::Value all =
      p.transpose(p.view(p.call(qkv, {"hidden_states"}), {0, 3, v.heads, -1}), 0, 1);
  const std::vector<std::string> names{"query_states", "key_states", "value_states"};
  for (std::int64_t i = 0; i < 3; ++i) p.select(all, 0, i, names[static_cast<std::size_t>(i)]);
  for (const char* x : {"cos", "sin"})
    p.op_ints(Function::kUnsqueeze, {x}, {1}, std::string("unsqueezed_") + x);
  for (std::size_t i = 0; i < 2; ++i) rotate(p, names[i], v.head_dim());
  for (const std::string& x : names)
    p.op_ints(Function::kUnsqueeze, {p.transpose(x, 0, 1)}, {0}, x);
  p.op_ints(Function::kWindowedAttention, names, lengths, "attn_output");
  p.last().floats = {0.0, 1.0 / std::sqrt(static_cast<double>(v.head_dim()))};
  p.returns({p.call(proj, {p.view("attn_output", {-1, v.hidden})})});
  return id;
}

ModuleId add_block(ModelBuilder& b, ModuleId list, std::int64_t layer, const QwenVision& v) {
  const bool full =
      std::find(v.full_blocks.begin(), v.full_blocks.end(), layer) != v.full_blocks.end();
  const ModuleId id = b.add_module(list, std::to_string(layer), "Qwen2_5_VLVisionBlock");
  const ModuleId norm1 = norm(b, id, "norm1", v.hidden), norm2 = norm(b, id, "norm2", v.hidden);
  const ModuleId attention =
      add_attention(b, id, v, full ? std::vector<std::int64_t>{v.patches()} : window_lengths(v));
  const ModuleId mlp =
      gated_mlp(b, id, "mlp", "Qwen2_5_VLMLP", v.hidden, v.ffn, true, v.activation);
  Program p(b, id, {"hidden_states", "cos", "sin"});
  p.add("hidden_states", p.call(attention, {p.call(norm1, {"hidden_states"}), "cos", "sin"}),
        "hidden_states");
  p.returns({p.add("hidden_states", p.call(mlp, {p.call(norm2, {"hidden_states"})}))});
  return id;
}

ModuleId add_merger(ModelBuilder& b, ModuleId tower, const QwenVision& v) {
  const ModuleId id = b.add_module(tower, "merger", "Qwen2_5_VLPatchMerger");
  const std::int64_t wide = v.hidden * v.unit();
  const ModuleId ln_q = norm(b, id, "ln_q", v.hidden);
  const ModuleId mlp = b.add_module(id, "mlp", "Sequential");
  const ModuleId first = b.linear(mlp, "0", wide, wide, true);
  const ModuleId second = b.linear(mlp, "2", wide, v.out, true);
  Program f(b, mlp, {"x"});
  f.returns({f.call(second, {f.op_ints(Function::kGelu, {f.call(first, {"x"})}, {0})})});
  Program p(b, id, {"x"});
  p.returns({p.call(mlp, {p.view(p.call(ln_q, {"x"}), {-1, wide})})});
  return id;
}

ModuleId add_tower(Multimodal& m, const QwenVision& v) {
  ModelBuilder& b = m.b;
  const ModuleId id = b.add_module(m.model, "visual", "Qwen2_5_VisionTransformerPretrainedModel");
  const ModuleId embed = add_patch_embed(b, id, v), rotary = add_rotary(b, id, v);
  const ModuleId list = b.add_module(id, "blocks", "ModuleList");
  b.model().at(list).has_forward = false;
  for (std::int64_t i = 0; i < v.depth; ++i) m.vision_blocks.push_back(add_block(b, list, i, v));
  const ModuleId merger = add_merger(b, id, v);
  Program p(b, id, {"hidden_states"});
  p.call(embed, {"hidden_states"}, "hidden_states");
  p.op_ints(Function::kWindowOrder, {"hidden_states"}, {v.unit()}, "hidden_states");
  p.call_all(rotary, {"hidden_states"}, {"cos", "sin"});
  for (const char* x : {"cos", "sin"}) p.op_ints(Function::kWindowOrder, {x}, {v.unit()}, x);
  for (const ModuleId block : m.vision_blocks)
    p.call(block, {"hidden_states", "cos", "sin"}, "hidden_states");
  p.returns({p.op_ints(Function::kWindowOrder, {p.call(merger, {"hidden_states"})}, {1})});
  return id;
}

QwenVision read_qwen_vision(HfConfig& parent) {
  HfConfig c = parent.nested("vision_config");
  QwenVision v;
  v.depth = c.size_or("depth", "num_hidden_layers", 32, kLargestLayers);
  v.hidden = c.size("hidden_size", 3584);
  v.ffn = c.size("intermediate_size", 3420);
  v.heads = c.size_or("num_heads", "num_attention_heads", 16, 1 << 16);
  v.channels = c.size("in_channels", 3);
  v.patch = c.side("patch_size", 14);
  v.merge = c.size("spatial_merge_size", 2);
  v.time = c.side("temporal_patch_size", 2);
  v.window = c.size("window_size", 112);
  v.out = c.size("out_hidden_size", 3584);
  v.activation = read_activation(c, "hidden_act", "silu");
  v.full_blocks = c.integers("fullatt_block_indexes", 0, kLargestLayers)
                      .value_or(std::vector<std::int64_t>{7, 15, 23, 31});
  c.require_multiple("hidden_size", v.hidden, "num_heads", v.heads);
  if (v.hidden / v.heads % 4 != 0)
    c.problem("num_heads", "leaves a head size that two axes cannot share",
              "head sizes divisible by 4");
  const std::int64_t image = parent.size("image_size", kGridSide * v.patch, 16384);
  v.grid = image / v.patch;
  if (v.grid % v.merge != 0 || image % v.patch != 0)
    parent.problem(
        "image_size",
        fmt::format("{} is not made of {} x {} patches of {}", image, v.merge, v.merge, v.patch),
        fmt::format("a multiple of {}", v.merge * v.patch));
  if (v.window / v.merge / v.patch < 1)
    c.problem("window_size", "is smaller than one merged patch");
  c.ignore({"model_type", "tokens_per_second", "in_chans", "spatial_patch_size"});
  c.finish();
  return v;
}

DecoderSpec read_text(HfConfig& config) {
  DecoderDefaults defaults{152064, 8192, 29568, 80, 64, 8, true, {}, 1e-5, true};
  DecoderSpec spec = read_decoder(config, "Qwen2_5_VL", defaults);
  spec.attention.qkv_bias = true;
  if (spec.attention.head_dim * spec.attention.heads != spec.hidden) {
    config.problem("head_dim",
                   "is not hidden_size / num_attention_heads, which this model always uses");
  }
  read_qwen_windows(config, spec, 80);
  return spec;
}

}  // namespace

Model import_qwen2_5_vl(HfConfig& config) {
  const QwenVision vision = read_qwen_vision(config);
  DecoderSpec text;
  bool tied = read_tied(config, false);
  if (config.has("text_config")) {
    HfConfig nested = config.nested("text_config");
    nested.ignore({"model_type"});
    text = read_text(nested);
    tied = read_tied(nested, false) || tied;
    nested.finish();
  } else {
    text = read_text(config);  // Older files: text keys at the top level.
  }
  const std::int64_t token = config.size("image_token_id", 151655, kLargestVocabulary);
  config.ignore(
      {"video_token_id", "vision_start_token_id", "vision_end_token_id", "vision_token_id"});
  if (vision.out != text.hidden) {
    config.problem("vision_config.out_hidden_size",
                   fmt::format("is {} and the text's hidden_size {}", vision.out, text.hidden),
                   "equal sizes");
  }
  const std::int64_t images = read_images(config);
  config.finish();
  if (!config.usable()) return {};
  Multimodal m("Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLModel");
  const ModuleId tower = add_tower(m, vision);
  m.add_language_model(text);
  Program p(m.b, m.model, {"input_ids", "pixel_values"});
  p.call(m.decoder.embedding, {"input_ids"}, "inputs_embeds");
  p.cat({p.call(tower, {"pixel_values"})}, 0, "image_embeds");
  merge_images(p, token, "image_embeds");
  p.returns({p.call(m.decoder.model, {"inputs_embeds"}, "hidden_states")});
  m.sample_of(images, vision.grid * vision.patch, vision.patches() / vision.unit());
  const std::int64_t pixels = vision.channels * vision.time * vision.patch * vision.patch;
  return m.finish(text.vocabulary, tied, {pixel_argument({-images * vision.patches(), pixels})});
}

}  // namespace foreshard
