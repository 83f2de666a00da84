#include "study/run_model.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <mutex>

#include "core/json.h"
#include "core/text.h"
#include "models/load_model.h"
#include "models/plain/plain_models.h"

namespace foreshard {
namespace {

/// What a Llama's stated size says of facts that have no column.
struct LlamaShape {
  bool tied = false;      ///< The head's weight is the embedding's.
  std::int64_t head_dim;  ///< Not always width / heads (Qwen3).
};

LlamaShape llama_shape_of(const MeasuredRun& run) {
  const std::int64_t usual = *run.d_model / *run.n_heads;
  LlamaShape best{false, usual};
  if (!run.params_b || !run.vocab) return best;
  const auto width = static_cast<double>(*run.d_model);
  const auto heads = static_cast<double>(*run.n_heads + run.n_kv_heads.value_or(*run.n_heads));
  const double ffn = 3 * width * static_cast<double>(run.d_ff.value_or(4 * *run.d_model));
  const double table = static_cast<double>(*run.vocab) * width;
  double nearest = 1e300;
  for (const std::int64_t head_dim : {usual, std::int64_t{64}, std::int64_t{128}}) {
    const double block = 2 * width * heads * static_cast<double>(head_dim) + ffn;
    for (const bool tied : {false, true}) {
      const double size = static_cast<double>(*run.n_layers) * block + table * (tied ? 1 : 2);
      const double off = std::fabs(size - *run.params_b * 1e9);
      if (off >= nearest * 0.5) continue;  // The usual shape unless another fits much better.
      nearest = off;
      best = {tied, head_dim};
    }
  }
  return best;
}

/// Shape of a model as an importer's configuration.
Json configuration_of(const MeasuredRun& run, std::vector<std::string>& assumptions) {
  const std::int64_t width = *run.d_model;
  const std::int64_t ffn = run.d_ff.value_or(4 * width);
  std::int64_t vocabulary = run.vocab.value_or(50257);
  if (!run.vocab) assumptions.push_back(fmt::format("vocabulary {} (not stated)", vocabulary));
  Json c;
  if (contains(run.model, "MPT")) {
    c["model_type"] = "mpt";
    c["architectures"] = Json::array({"MPTForCausalLM"});
    c["vocab_size"] = vocabulary;
    c["max_seq_len"] = *run.seq_len;
    c["d_model"] = width;
    c["n_heads"] = *run.n_heads;
    c["n_layers"] = *run.n_layers;
    c["expansion_ratio"] = ffn / width;
    return c;
  }
  if (contains(run.model, "GPT") || contains(run.model, "gpt")) {
    c["model_type"] = "gpt2";
    c["architectures"] = Json::array({"GPT2LMHeadModel"});
    c["vocab_size"] = vocabulary;
    c["n_positions"] = *run.seq_len;
    c["n_embd"] = width;
    c["n_head"] = *run.n_heads;
    c["n_layer"] = *run.n_layers;
    c["n_inner"] = ffn;
    for (const char* p : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) c[p] = 0.0;
    return c;
  }
  c["model_type"] = "llama";
  c["architectures"] = Json::array({"LlamaForCausalLM"});
  c["vocab_size"] = vocabulary;
  c["hidden_size"] = width;
  c["intermediate_size"] = ffn;
  c["num_hidden_layers"] = *run.n_layers;
  c["num_attention_heads"] = *run.n_heads;
  c["num_key_value_heads"] = run.n_kv_heads.value_or(*run.n_heads);
  c["max_position_embeddings"] = *run.seq_len;
  const LlamaShape shape = llama_shape_of(run);
  c["head_dim"] = shape.head_dim;
  c["tie_word_embeddings"] = shape.tied;
  return c;
}

/// Models by configuration text: rows repeat a few shapes hundreds of times.
std::shared_ptr<const Model> model_of(const Json& configuration, const std::string& row) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Model>> known;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<const Model>& model = known[configuration.dump()];
  if (!model) model = std::make_shared<const Model>(model_from_json(configuration, row));
  return model;
}

/// Norms and rotary embedding run as fused kernels: torch.compile, or a trainer on the kernels of
/// the flash-attn library.
bool fused_kernels(const MeasuredRun& run) {
  return run.compile == "yes" || run.attention_impl.starts_with("flash-attn");
}

/// A Llama whose norms and rotary embedding lack their eager upcasts, as the plain model writes
/// them (a compiler's partitioner saves the inputs of cheap chains, not their fp32 intermediates).
std::shared_ptr<const Model> fused_llama(const MeasuredRun& run) {
  PlainModelOptions o;
  o.layers = *run.n_layers;
  o.hidden = *run.d_model;
  o.heads = *run.n_heads;
  o.kv_heads = run.n_kv_heads.value_or(*run.n_heads);
  o.ffn = run.d_ff.value_or(4 * o.hidden);
  o.vocabulary = run.vocab.value_or(32000);
  o.max_sequence = *run.seq_len;
  const LlamaShape shape = llama_shape_of(run);
  o.tied = shape.tied;
  o.fused_projections = contains(run.precision, "fp32 grad accumulation");  // nanotron
  o.head_dim = shape.head_dim;
  return std::make_shared<const Model>(plain_llama(o));
}

}  // namespace

std::shared_ptr<const Model> model_of_run(const MeasuredRun& run,
                                          std::vector<std::string>& assumptions) {
  const Json configuration = configuration_of(run, assumptions);
  const bool fused = fused_kernels(run) && configuration["model_type"] == "llama";
  return fused ? fused_llama(run) : model_of(configuration, run.row_id);
}

}  // namespace foreshard
