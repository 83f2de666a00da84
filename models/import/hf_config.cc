#include "models/import/hf_config.h"

#include <algorithm>

#include <fmt/core.h>

#include "core/json.h"

namespace foreshard {
namespace {

const Json& empty_object() {
  static const Json empty = Json::object();
  return empty;
}

// Keys of every config that have no effect on parameters, FLOPs or saved tensors: PretrainedConfig,
// GenerationConfig and older generation keys, rotary settings (golden rule: rotary keys change
// neither parameters nor FLOPs).
const std::set<std::string_view>& generic_keys() {
  static const std::set<std::string_view> keys = {"_name_or_path",
                                                  "_commit_hash",
                                                  "_attn_implementation",
                                                  "_attn_implementation_autoset",
                                                  "architectures",
                                                  "auto_map",
                                                  "attn_implementation",
                                                  "bad_words_ids",
                                                  "begin_suppress_tokens",
                                                  "bos_token_id",
                                                  "cache_implementation",
                                                  "chunk_size_feed_forward",
                                                  "cross_attention_hidden_size",
                                                  "decoder_start_token_id",
                                                  "diversity_penalty",
                                                  "do_sample",
                                                  "dtype",
                                                  "early_stopping",
                                                  "encoder_no_repeat_ngram_size",
                                                  "eos_token_id",
                                                  "exponential_decay_length_penalty",
                                                  "finetuning_task",
                                                  "forced_bos_token_id",
                                                  "forced_eos_token_id",
                                                  "gradient_checkpointing",
                                                  "id2label",
                                                  "initializer_range",
                                                  "is_encoder_decoder",
                                                  "label2id",
                                                  "length_penalty",
                                                  "max_length",
                                                  "max_new_tokens",
                                                  "min_length",
                                                  "model_type",
                                                  "no_repeat_ngram_size",
                                                  "num_beam_groups",
                                                  "num_beams",
                                                  "num_labels",
                                                  "num_return_sequences",
                                                  "output_attentions",
                                                  "output_hidden_states",
                                                  "output_scores",
                                                  "pad_token_id",
                                                  "prefix",
                                                  "problem_type",
                                                  "pruned_heads",
                                                  "quantization_config",
                                                  "remove_invalid_values",
                                                  "repetition_penalty",
                                                  "return_dict",
                                                  "return_dict_in_generate",
                                                  "rope_parameters",
                                                  "rope_scaling",
                                                  "rope_theta",
                                                  "sep_token_id",
                                                  "suppress_tokens",
                                                  "task_specific_params",
                                                  "temperature",
                                                  "tf_legacy_loss",
                                                  "tie_encoder_decoder",
                                                  "tie_word_embeddings",
                                                  "tokenizer_class",
                                                  "top_k",
                                                  "top_p",
                                                  "torch_dtype",
                                                  "torchscript",
                                                  "transformers_version",
                                                  "typical_p",
                                                  "use_bfloat16",
                                                  "use_cache"};
  return keys;
}

/// Sizes that every published configuration states.
bool shapes_a_model(std::string_view key) {
  constexpr std::string_view kKeys[] = {"hidden_size",
                                        "num_hidden_layers",
                                        "num_attention_heads",
                                        "vocab_size",
                                        "d_model",
                                        "n_embd",
                                        "n_layer",
                                        "n_head"};
  return std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys);
}

}  // namespace

HfConfig::HfConfig(const Json& object, std::string path, IssueList& issues,
                   std::vector<std::string>& warnings)
    : object_(object.is_object() ? &object : &empty_object()),
      path_(path),
      issues_(issues),
      warnings_(warnings),
      reader_(object, std::move(path), issues) {}

void HfConfig::refuse_null(std::string_view key) {
  if (reader_.is_null(key)) {
    reader_.report(key, "is null, which this model type does not allow",
                   "leave the key out for the default");
  }
}

std::int64_t HfConfig::size(std::string_view key, std::int64_t fallback, std::int64_t max,
                            std::int64_t min) {
  know(key);
  refuse_null(key);
  if (path_.empty() && !reader_.has(key) && shapes_a_model(key))
    warnings_.push_back(
        fmt::format("{} is absent: {} is taken, the library's default", key, fallback));
  return reader_.integer(key, fallback, min, max);
}

std::int64_t HfConfig::size_or(std::string_view key, std::string_view alias, std::int64_t fallback,
                               std::int64_t max) {
  know(key);
  know(alias);
  if (!reader_.has(alias)) return size(key, fallback, max);
  const std::int64_t second = reader_.integer(alias, fallback, 1, max);
  if (!reader_.has(key)) return second;
  const std::int64_t first = reader_.integer(key, fallback, 1, max);
  if (first != second) {
    reader_.report(key, fmt::format("is {} but its other name {} is {}", first, alias, second),
                   "give one of the two");
  }
  return first;
}

std::optional<std::int64_t> HfConfig::optional_size(std::string_view key,
                                                    std::optional<std::int64_t> fallback,
                                                    std::int64_t max, std::int64_t min) {
  know(key);
  if (reader_.is_null(key)) return std::nullopt;
  if (!reader_.has(key)) return fallback;
  return reader_.integer(key, min, min, max);
}

double HfConfig::number(std::string_view key, double fallback, double min, double max) {
  know(key);
  refuse_null(key);
  return reader_.number(key, fallback, min, max);
}

std::optional<double> HfConfig::optional_number(std::string_view key,
                                                std::optional<double> fallback, double min,
                                                double max) {
  know(key);
  if (reader_.is_null(key)) return std::nullopt;
  if (!reader_.has(key)) return fallback;
  return reader_.number(key, min, min, max);
}

double HfConfig::probability(std::string_view key, double fallback) {
  know(key);
  if (reader_.is_null(key)) return 0.0;
  return reader_.number(key, fallback, 0.0, 0.999999);
}

bool HfConfig::flag(std::string_view key, bool fallback) {
  know(key);
  refuse_null(key);
  return reader_.boolean(key, fallback);
}

std::string HfConfig::text(std::string_view key, std::string fallback) {
  know(key);
  return reader_.string(key, std::move(fallback));
}

std::string HfConfig::choice(std::string_view key, std::string fallback,
                             const std::vector<std::string>& allowed) {
  know(key);
  return reader_.choice(key, std::move(fallback), allowed);
}

std::optional<std::vector<std::int64_t>> HfConfig::integers(std::string_view key, std::int64_t min,
                                                            std::int64_t max) {
  know(key);
  return reader_.integer_list(key, min, max);
}

std::optional<std::vector<std::string>> HfConfig::texts(std::string_view key) {
  know(key);
  return reader_.string_list(key);
}

HfConfig HfConfig::nested(std::string_view key) {
  know(key);
  const Json* value = reader_.has(key) ? reader_.get(key) : nullptr;
  return HfConfig(value ? *value : empty_object(), reader_.path_of(key), issues_, warnings_);
}

const Json* HfConfig::get(std::string_view key) {
  know(key);
  return reader_.get(key);
}

bool HfConfig::has(std::string_view key) {
  know(key);
  return reader_.has(key);
}

void HfConfig::ignore(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) know(key);
}

std::int64_t HfConfig::labels() {
  if (const Json* labels = get("id2label"); labels && labels->is_object()) {
    const auto count = static_cast<std::int64_t>(labels->size());
    if (has("num_labels") && size("num_labels", count) != count) {
      problem("num_labels", fmt::format("does not agree with the {} entries of id2label", count),
              "leave one of the two out");
    }
    return count;
  }
  return size("num_labels", 2);
}

std::int64_t HfConfig::side(std::string_view key, std::int64_t fallback) {
  const Json* value = get(key);
  if (!value || !value->is_array()) return size(key, fallback, 1 << 16);
  const auto sides = reader_.integer_list(key, 1, 1 << 16);
  if (!sides) return fallback;
  if (sides->size() != 2 || (*sides)[0] != (*sides)[1]) {
    problem(key, "is not one side or a square",
            "an integer, or two equal ones; images that are not square are not modelled");
    return fallback;
  }
  return (*sides)[0];
}

void HfConfig::problem(std::string_view key, std::string message, std::string hint) {
  reader_.report(key, std::move(message), std::move(hint));
}

void HfConfig::require_multiple(std::string_view key, std::int64_t whole, std::string_view part_key,
                                std::int64_t part) {
  if (part > 0 && whole % part == 0) return;
  const std::int64_t below = whole / part * part;
  problem(key, fmt::format("is {}, not a multiple of {} = {}", whole, part_key, part),
          below > 0 ? fmt::format("{} or {} would be", below, below + part)
                    : fmt::format("{} would be", part));
}

void HfConfig::finish() {
  for (const auto& [key, value] : object_->items()) {
    if (known_.count(key) || generic_keys().count(key)) continue;
    const std::vector<std::string> candidates(known_.begin(), known_.end());
    const std::string nearest = nearest_name(key, candidates);
    const std::string place = path_.empty() ? key : path_ + "." + key;
    warnings_.push_back(place +
                        ": this model type has no such key; ignored, as the library ignores it" +
                        (nearest.empty() ? std::string() : "; did you mean " + nearest + "?"));
  }
}

}  // namespace foreshard
