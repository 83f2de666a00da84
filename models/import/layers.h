#pragma once

// Pieces that several Hugging Face families share, each as the library's eager code runs it.

#include <optional>
#include <string>
#include <vector>

#include "models/import/program.h"

namespace foreshard {

class HfConfig;

/// Reads an activation by the library's name; names we have no op for are refused with the list of
/// those we have.
Activation read_activation(HfConfig& config, std::string_view key, const std::string& fallback);
std::optional<Activation> parse_activation(const std::string& name);
/// act(x), op by op.
Program::Value activate(Program& p, Activation activation, const Program::Value& x,
                        const Program::Value& out = {});

/// Decomposed RMS norms: Llama's (fp32 inside, weight in the model's dtype), Gemma's (1 + weight,
/// in fp32), T5's (input not converted before the product).
enum class NormStyle : std::uint8_t { kLlama, kGemma, kT5 };
ModuleId rms_norm_module(ModelBuilder& b, ModuleId parent, const std::string& name,
                         const std::string& class_name, std::int64_t dim, double eps,
                         NormStyle style);

/// down(act(gate(x)) * up(x)) with separate projections.
ModuleId gated_mlp(ModelBuilder& b, ModuleId parent, const std::string& name,
                   const std::string& class_name, std::int64_t hidden, std::int64_t ffn, bool bias,
                   Activation activation);
/// second(act(first(x))), both with bias.
ModuleId plain_mlp(ModelBuilder& b, ModuleId parent, const std::string& name,
                   const std::string& class_name, const std::string& first,
                   const std::string& second, std::int64_t hidden, std::int64_t ffn,
                   Activation activation);

/// nn.Conv2d whose stride is its kernel (patches); `time` > 0: nn.Conv3d over that many frames at
/// once.
ModuleId patch_convolution(ModelBuilder& b, ModuleId parent, const std::string& name,
                           std::int64_t channels, std::int64_t filters, std::int64_t patch,
                           bool bias, std::int64_t time = 0);

/// cos and sin of the rotary embedding, `width` wide, as a module without parameters; inputs: x,
/// position_ids. `long_rope`: its frequencies are chosen anew in each call
/// (longrope_frequency_update).
ModuleId rotary_module(ModelBuilder& b, ModuleId parent, const std::string& name,
                       const std::string& class_name, std::int64_t width, bool long_rope = false);
/// Values q and k rotated by cos and sin ([b, s, width]) and assigned again. `rotated` <
/// `head_dim`, or `always_cat`: only the first `rotated` elements turn and the rest is
/// concatenated, which makes the result contiguous per head.
/// kSumThenCat joins q before k is turned, kBothThenCat turns both first and keeps the turned parts
/// as locals.
enum class RotaryCat : std::uint8_t { kNever, kSumThenCat, kBothThenCat };
void apply_rotary(Program& p, const Program::Value& q, const Program::Value& k,
                  const Program::Value& cos, const Program::Value& sin, std::int64_t rotated,
                  RotaryCat cat);

/// The attention call itself on values q, k, v ([b, heads, s, d]); leaves [b, s, heads, d] in
/// `attn_output`.
struct AttentionCall {
  bool causal = true;
  double scale = 1.0, dropout = 0.0;
  std::string mask;               ///< Value name; empty: none.
  bool eager = false;             ///< Products and softmax op by op instead of SDPA.
  std::int64_t repeats = 1;       ///< eager: heads / kv heads.
  std::optional<double> softcap;  ///< eager only.
  std::int64_t window = 0;        ///< Keys that a query sees; 0: all. The mask says the same.
};
void attend(Program& p, const AttentionCall& call);

/// Self attention with separate q, k, v and output projections.
struct AttentionSpec {
  std::string class_name;
  std::int64_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;
  bool qkv_bias = false, out_bias = false;
  std::vector<std::string> order = {"q_proj", "k_proj", "v_proj",
                                    "o_proj"};  ///< Registration order; last = output.
  std::string q = "q_proj", k = "k_proj", v = "v_proj", o = "o_proj";
  enum class QkNorm : std::uint8_t {
    kNone,
    kBeforeTranspose,
    kAfterTranspose
  } qk_norm = QkNorm::kNone;
  std::string norm_class;
  double norm_eps = 1e-6;
  NormStyle norm_style = NormStyle::kLlama;
  std::int64_t rotary = 0;  ///< Width turned by the rotary embedding; 0: none (no cos, sin inputs).
  AttentionCall call;
  bool takes_mask = false;  ///< A third input "attention_mask".
};
/// Inputs: hidden_states[, cos, sin][, attention_mask].
ModuleId attention_module(ModelBuilder& b, ModuleId parent, const std::string& name,
                          const AttentionSpec& spec);

/// Modules of an attention whose heads turn only in part: projections, and norms of q and k after
/// the transpose (invalid: none).
struct PartialRotaryAttention {
  ModuleId q, k, v, out, q_norm, k_norm;
  /// q, k and v are projected before the first is cut into heads: autograd then runs the
  /// projections' backward after that of all three views.
  bool projected_first = false;
};
/// Inputs: hidden_states, cos, sin, attention_mask. Phi's and StableLM's forward.
void write_partial_rotary_attention(ModelBuilder& b, ModuleId id, const AttentionSpec& spec,
                                    const PartialRotaryAttention& parts);

}  // namespace foreshard
