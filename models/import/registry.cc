#include "models/import/registry.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/text.h"
#include "models/adapters.h"
#include "models/import/families.h"
#include "models/model_checks.h"

namespace foreshard {
namespace {

struct Row {
  const char* model_type;
  const char* class_name;
  Model (*build)(HfConfig&);
};

// The first row of a model type is what a file without "architectures" means.
constexpr std::array kRows = {
    Row{"llama", "LlamaForCausalLM", import_llama},
    Row{"mistral", "MistralForCausalLM", import_mistral},
    Row{"mixtral", "MixtralForCausalLM", import_mixtral},
    Row{"qwen2", "Qwen2ForCausalLM", import_qwen2},
    Row{"qwen3", "Qwen3ForCausalLM", import_qwen3},
    Row{"qwen2_moe", "Qwen2MoeForCausalLM", import_qwen2_moe},
    Row{"qwen3_moe", "Qwen3MoeForCausalLM", import_qwen3_moe},
    Row{"gemma2", "Gemma2ForCausalLM", import_gemma2},
    Row{"gemma3_text", "Gemma3ForCausalLM", import_gemma3_text},
    Row{"phi", "PhiForCausalLM", import_phi},
    Row{"phi3", "Phi3ForCausalLM", import_phi3},
    Row{"stablelm", "StableLmForCausalLM", import_stablelm},
    Row{"gpt2", "GPT2LMHeadModel", import_gpt2},
    Row{"gpt_neox", "GPTNeoXForCausalLM", import_gpt_neox},
    Row{"bert", "BertForSequenceClassification", import_bert_classifier},
    Row{"vit", "ViTForImageClassification", import_vit_classifier},
    Row{"deepseek_v3", "DeepseekV3ForCausalLM", import_deepseek_v3},
    Row{"dbrx", "DbrxForCausalLM", import_dbrx},
    Row{"qwen3_next", "Qwen3NextForCausalLM", import_qwen3_next},
    Row{"t5", "T5ForConditionalGeneration", import_t5},
    Row{"llava", "LlavaForConditionalGeneration", import_llava},
    Row{"gemma3", "Gemma3ForConditionalGeneration", import_gemma3},
    Row{"qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", import_qwen2_5_vl},
    Row{"mllama", "MllamaForConditionalGeneration", import_mllama},
    Row{"mpt", "MPTForCausalLM", import_mpt},
};

// Well-known types we do not build, and the supported one that is most like them.
const std::map<std::string, std::string>& relatives() {
  static const std::map<std::string, std::string> m = {{"baichuan", "llama"},
                                                       {"bloom", "gpt2"},
                                                       {"chatglm", "llama"},
                                                       {"cohere", "llama"},
                                                       {"deepseek_v2", "deepseek_v3"},
                                                       {"distilbert", "bert"},
                                                       {"electra", "bert"},
                                                       {"falcon", "gpt_neox"},
                                                       {"gemma", "gemma2"},
                                                       {"glm", "llama"},
                                                       {"gpt_bigcode", "gpt2"},
                                                       {"gpt_neo", "gpt2"},
                                                       {"gpt_oss", "mixtral"},
                                                       {"gptj", "gpt_neox"},
                                                       {"granite", "llama"},
                                                       {"internlm", "llama"},
                                                       {"internlm2", "llama"},
                                                       {"jamba", "mixtral"},
                                                       {"llama4", "mixtral"},
                                                       {"minicpm", "llama"},
                                                       {"minicpm_moe", "mixtral"},
                                                       {"olmo", "llama"},
                                                       {"olmo2", "llama"},
                                                       {"olmoe", "qwen3_moe"},
                                                       {"opt", "gpt2"},
                                                       {"phimoe", "mixtral"},
                                                       {"qwen", "qwen2"},
                                                       {"qwen2_vl", "qwen2_5_vl"},
                                                       {"roberta", "bert"},
                                                       {"starcoder2", "llama"},
                                                       {"xlm-roberta", "bert"},
                                                       {"mt5", "t5"},
                                                       {"deit", "vit"},
                                                       {"siglip", "vit"},
                                                       {"clip", "vit"},
                                                       {"whisper", "t5"}};
  return m;
}

std::string nearest_type(const std::string& type) {
  if (const auto it = relatives().find(type); it != relatives().end()) {
    for (const Row& r : kRows) {
      if (it->second == r.model_type) return it->second;
    }
  }
  std::vector<std::string> types;
  for (const Row& r : kRows) types.emplace_back(r.model_type);
  if (const std::string nearest = nearest_name(type, types); !nearest.empty()) return nearest;
  // Else the one with the longest common beginning.
  std::size_t best = 0;
  std::string found = "llama";
  for (const std::string& candidate : types) {
    const auto common = static_cast<std::size_t>(
        std::mismatch(type.begin(), type.end(), candidate.begin(), candidate.end()).first -
        type.begin());
    if (common > best) {
      best = common;
      found = candidate;
    }
  }
  return found;
}

std::string all_types() {
  std::vector<std::string> types;
  for (const Row& r : kRows) {
    if (types.empty() || types.back() != r.model_type) types.emplace_back(r.model_type);
  }
  return fmt::format("{}", fmt::join(types, ", "));
}

const Row* find_row(ObjectReader& top) {
  const std::string type = top.string("model_type", "");
  if (type.empty()) {
    top.report("model_type", "is missing: nothing says which architecture this is",
               "one of " + all_types());
    return nullptr;
  }
  const auto first =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& r) { return type == r.model_type; });
  const auto classes = top.has("architectures") ? top.string_list("architectures") : std::nullopt;
  if (first == kRows.end()) {
    const std::string named =
        classes && !classes->empty() ? fmt::format(" ({})", classes->front()) : "";
    top.report(
        "model_type", fmt::format("\"{}\"{} is not supported", type, named),
        fmt::format("the nearest supported one is {}; all: {}", nearest_type(type), all_types()));
    return nullptr;
  }
  if (!classes || classes->empty()) return &*first;
  const auto row = std::find_if(kRows.begin(), kRows.end(), [&](const Row& r) {
    return type == r.model_type && classes->front() == r.class_name;
  });
  if (row != kRows.end()) return &*row;
  top.report("architectures",
             fmt::format("\"{}\" is not supported for model type {}", classes->front(), type),
             fmt::format("the nearest supported one is {}", first->class_name));
  return nullptr;
}

void read_stated_dtype(ObjectReader& top, Model& model) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const Json* value = top.get(key);
    if (!value || !value->is_string()) continue;
    model.stated_dtype = parse_dtype(value->get<std::string>());
    if (model.stated_dtype) return;
  }
}

/// Keys of ours, which ask for adapters on whatever model the file describes
/// (docs/formats/model.md).
std::optional<LoraOptions> take_adapters(Json& json, IssueList& issues) {
  ObjectReader top(json, "", issues);
  if (!top.has("lora_rank")) {
    for (const char* key :
         {"lora_alpha", "lora_dropout", "lora_targets", "lora_dtype", "lora_base"}) {
      if (top.has(key)) top.report(key, "needs a rank", "lora_rank");
    }
    return std::nullopt;
  }
  LoraOptions o;
  o.rank = top.integer("lora_rank", 8, 1, kLargestWidth);
  o.alpha = top.number("lora_alpha", 8.0, 1e-6, 1e9);
  o.dropout = top.number("lora_dropout", 0.0, 0.0, 0.999999);
  const std::string targets = top.string("lora_targets", "");
  if (!targets.empty()) o.targets = parts_of(targets, ',');
  const std::string dtype = top.string("lora_dtype", "fp32");
  if (dtype == "base")
    o.dtype = LoraOptions::Dtype::kBase;
  else if (dtype != "fp32")
    top.report("lora_dtype", "is \"" + dtype + "\"", "fp32 or base");
  const std::string base = top.string("lora_base", "16bit");
  if (base == "4bit")
    o.base = LoraOptions::Base::k4Bit;
  else if (base == "4bit-double")
    o.base = LoraOptions::Base::k4BitDouble;
  else if (base != "16bit")
    top.report("lora_base", "is \"" + base + "\"", "16bit, 4bit or 4bit-double");
  for (const char* key :
       {"lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "lora_dtype", "lora_base"})
    json.erase(key);
  return o;
}

}  // namespace

std::vector<SupportedArchitecture> supported_architectures() {
  std::vector<SupportedArchitecture> all;
  for (const Row& r : kRows) all.push_back({r.model_type, r.class_name});
  return all;
}

Model import_hf_config(const Json& given, const std::string& file,
                       std::vector<std::string>& warnings) {
  IssueList issues(file);
  Json json = given;
  const std::optional<LoraOptions> adapters =
      json.is_object() ? take_adapters(json, issues) : std::nullopt;
  ObjectReader top(json, "", issues);
  issues.throw_if_any();
  const Row* row = find_row(top);
  issues.throw_if_any();
  HfConfig config(json, "", issues, warnings);
  Model model = row->build(config);
  issues.throw_if_any();
  check_parameter_count(model, issues);
  issues.throw_if_any();
  read_stated_dtype(top, model);
  if (adapters) model = with_lora(std::move(model), *adapters);
  if (top.has("quantization_config")) {
    model.not_modelled.push_back("quantization_config: the plain model is described");
  }
  return model;
}

}  // namespace foreshard
