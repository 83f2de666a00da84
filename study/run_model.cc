#include "study/run_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>

#include "core/json.h"
#include "core/text.h"
#include "models/catalogue.h"
#include "models/load_model.h"
#include "models/plain/plain_models.h"
#include "study/run_strategy.h"
#include "study/run_words.h"

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

Json gpt2_configuration(const MeasuredRun& run, std::int64_t ffn, std::int64_t vocabulary) {
  Json c;
  c["model_type"] = "gpt2";
  c["architectures"] = Json::array({"GPT2LMHeadModel"});
  c["vocab_size"] = vocabulary;
  c["n_positions"] = *run.seq_len;
  c["n_embd"] = *run.d_model;
  c["n_head"] = *run.n_heads;
  c["n_layer"] = *run.n_layers;
  c["n_inner"] = ffn;
  const bool mingpt = contains(run.model, "minGPT");  // mingpt/model.py
  for (const char* p : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) c[p] = mingpt ? 0.1 : 0.0;
  if (mingpt) c["tie_word_embeddings"] = false;
  return c;
}

Json mpt_configuration(const MeasuredRun& run, std::int64_t ffn, std::int64_t vocabulary) {
  Json c;
  c["model_type"] = "mpt";
  c["architectures"] = Json::array({"MPTForCausalLM"});
  c["vocab_size"] = vocabulary;
  c["max_seq_len"] = *run.seq_len;
  c["d_model"] = *run.d_model;
  c["n_heads"] = *run.n_heads;
  c["n_layers"] = *run.n_layers;
  c["expansion_ratio"] = ffn / *run.d_model;
  return c;
}

/// Keys that most families share.
Json hub_configuration(const char* type, const char* architecture, const MeasuredRun& run,
                       std::int64_t ffn, std::int64_t vocabulary) {
  Json c;
  c["model_type"] = type;
  c["architectures"] = Json::array({architecture});
  c["vocab_size"] = vocabulary;
  c["hidden_size"] = *run.d_model;
  c["intermediate_size"] = ffn;
  c["num_hidden_layers"] = *run.n_layers;
  c["num_attention_heads"] = *run.n_heads;
  c["max_position_embeddings"] = *run.seq_len;
  return c;
}

Json llama_configuration(const MeasuredRun& run, std::int64_t ffn, std::int64_t vocabulary) {
  Json c = hub_configuration("llama", "LlamaForCausalLM", run, ffn, vocabulary);
  c["num_key_value_heads"] = run.n_kv_heads.value_or(*run.n_heads);
  const LlamaShape shape = llama_shape_of(run);
  c["head_dim"] = shape.head_dim;
  c["tie_word_embeddings"] = shape.tied;
  return c;
}

/// Shape of a model as an importer's configuration.
Json configuration_of(const MeasuredRun& run, std::vector<std::string>& assumptions) {
  const auto named = [&](const char* word) { return contains_any_case(run.model, word); };
  const std::int64_t ffn = run.d_ff.value_or(4 * *run.d_model);
  std::int64_t vocabulary = run.vocab.value_or(50257);
  if (!run.vocab) assumptions.push_back(fmt::format("vocabulary {} (not stated)", vocabulary));
  if (contains(run.model, "MPT")) return mpt_configuration(run, ffn, vocabulary);
  if (named("pythia") || named("neox")) {
    Json c = hub_configuration("gpt_neox", "GPTNeoXForCausalLM", run, ffn, vocabulary);
    c["tie_word_embeddings"] = false;
    return c;
  }
  if (named("gpt")) return gpt2_configuration(run, ffn, vocabulary);
  if (named("bert") || named("esm2")) {
    Json c = hub_configuration("bert", "BertForSequenceClassification", run, ffn, vocabulary);
    c["hidden_dropout_prob"] = c["attention_probs_dropout_prob"] = 0.0;
    return c;
  }
  constexpr std::array kLlamas{"llama", "mistral", "qwen", "yi", "internlm"};
  if (std::none_of(kLlamas.begin(), kLlamas.end(), named))
    assumptions.push_back("\"" + run.model + "\" as a Llama of its shape");
  return llama_configuration(run, ffn, vocabulary);
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

/// Norms and rotary embedding run as fused kernels: Thunder's, Liger's, or those of the flash-attn
/// library in a trainer that is built on them. What torch.compile fuses the planner knows.
bool fused_kernels(const MeasuredRun& run) {
  return contains(run.compile, "thunder") || contains_any_case(run.notes, "liger") ||
         (run.attention_impl.starts_with("flash-attn") && own_data_parallelism(run));
}

/// A row's model without what its table adds to the name: "Llama-2-7B QLoRA", "Llama-3-8B (...)".
const CatalogueModel* known_model(const MeasuredRun& run) {
  std::string name = run.model;
  for (const char* rest : {" LoRA", " QLoRA", " full", " ("})
    name = name.substr(0, name.find(rest));
  return find_catalogue_model(name);
}

bool has_columns(const MeasuredRun& run) { return run.n_layers && run.d_model && run.n_heads; }

/// A Llama whose norms and rotary embedding lack their eager upcasts, as the plain model writes
/// them.
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

MeasuredRun with_shape_of_name(MeasuredRun run) {
  if (!contains(run.model, "minGPT")) return run;
  if (!run.vocab) run.vocab = 65;  // The letters of Shakespeare's works, on which it trains.
  if (has_columns(run) || !run.params_b) return run;
  // Lightning-AI/lightning-minGPT, lightning_mingpt/models.py: gpt2-xl, -xxl, -xxxl, -4xl.
  struct Preset {
    double billions;
    std::int64_t layers, heads, width;
  };
  for (const Preset& p : {Preset{1.475, 48, 25, 1600}, Preset{2.951, 96, 25, 1600},
                          Preset{4.426, 100, 30, 1920}, Preset{8.409, 190, 30, 1920}}) {
    if (std::fabs(*run.params_b / p.billions - 1) > 0.1) continue;
    run.n_layers = p.layers, run.n_heads = run.n_kv_heads = p.heads, run.d_model = p.width;
  }
  return run;
}

bool states_shape(const MeasuredRun& run) {
  return has_columns(run) || known_model(run) != nullptr;
}

std::shared_ptr<const Model> model_of_run(const MeasuredRun& run,
                                          std::vector<std::string>& assumptions) {
  if (!has_columns(run)) {
    const CatalogueModel* const known = known_model(run);
    assumptions.push_back("the shape of " + known->name + " (only the model's name is stated)");
    return model_of(parse_json(known->config, known->name), run.row_id);
  }
  const Json configuration = configuration_of(run, assumptions);
  const bool fused = fused_kernels(run) && configuration["model_type"] == "llama";
  return fused ? fused_llama(run) : model_of(configuration, run.row_id);
}

}  // namespace foreshard
