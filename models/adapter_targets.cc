#include "models/adapter_targets.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "models/adapters.h"

namespace foreshard {
namespace {

struct FamilyTargets {
  const char* class_name;
  std::array<const char*, 4> targets;
};

constexpr std::array kPeftTargets = {
    FamilyTargets{"LlamaForCausalLM", {"q_proj", "v_proj"}},
    FamilyTargets{"MistralForCausalLM", {"q_proj", "v_proj"}},
    FamilyTargets{"MixtralForCausalLM", {"q_proj", "v_proj"}},
    FamilyTargets{"Qwen2ForCausalLM", {"q_proj", "v_proj"}},
    FamilyTargets{"Qwen3ForCausalLM", {"q_proj", "v_proj"}},
    FamilyTargets{"Gemma2ForCausalLM", {"q_proj", "v_proj"}},
    FamilyTargets{"Gemma3ForCausalLM", {"q_proj", "v_proj"}},
    FamilyTargets{"StableLmForCausalLM", {"q_proj", "v_proj"}},
    FamilyTargets{"PhiForCausalLM", {"q_proj", "v_proj", "fc1", "fc2"}},
    FamilyTargets{"GPT2LMHeadModel", {"c_attn"}},
    FamilyTargets{"GPTNeoXForCausalLM", {"query_key_value"}},
    FamilyTargets{"MPTForCausalLM", {"Wqkv"}},
    FamilyTargets{"BertForSequenceClassification", {"query", "value"}},
    FamilyTargets{"T5ForConditionalGeneration", {"q", "v"}},
};

constexpr const char* kAdapted = "lora.Linear";

bool has_linear(const Model& model, const std::string& name) {
  return std::any_of(model.modules.begin(), model.modules.end(), [&](const Module& m) {
    return m.class_name == "Linear" && last_name(m) == name;
  });
}

const char* dtype_text(DType t) {
  return t == DType::kFloat32 ? "fp32" : t == DType::kBFloat16 ? "bf16" : "fp16";
}

bool holds_experts(const Statement& s) {
  return s.function == Function::kExperts || s.function == Function::kRoutedExperts ||
         s.function == Function::kLoopedExperts;
}

}  // namespace

std::string last_name(const Module& m) { return m.name.substr(m.name.rfind('.') + 1); }

std::vector<std::string> default_lora_targets(const Model& model) {
  for (const FamilyTargets& f : kPeftTargets) {
    if (model.root().class_name != f.class_name) continue;
    std::vector<std::string> names;
    for (const char* target : f.targets)
      if (target) names.emplace_back(target);
    return names;
  }
  if (has_linear(model, "q_proj") && has_linear(model, "v_proj")) return {"q_proj", "v_proj"};
  return {};
}

std::optional<AdapterFacts> adapter_facts(const Model& model) {
  std::optional<AdapterFacts> facts;
  for (const Module& m : model.modules) {
    if (m.class_name != kAdapted) continue;
    if (!facts) {
      const ModuleId down = model.find_module(m.name + ".lora_A.default");
      const ParameterDef& weight = model.at(model.at(down).parameters[0].id);
      facts = AdapterFacts{weight.shape[0], {}, weight.dtype};
    }
    const std::string name = last_name(m);
    if (std::find(facts->targets.begin(), facts->targets.end(), name) == facts->targets.end())
      facts->targets.push_back(name);
  }
  return facts;
}

std::string describe_adapters(const Model& model) {
  constexpr std::size_t kMostNames = 4;
  const std::optional<AdapterFacts> facts = adapter_facts(model);
  if (!facts) return "";
  const std::string targets =
      facts->targets.size() <= kMostNames
          ? fmt::format("{}", fmt::join(facts->targets, ", "))
          : fmt::format("{} kinds of linear modules", facts->targets.size());
  return fmt::format("LoRA rank {} on {} in {}", facts->rank, targets, dtype_text(facts->dtype));
}

std::string unpacked_experts(const Model& model) {
  double packed = 0, experts = 0;
  for (const ParameterDef& p : model.parameters)
    if (p.packs > 1) packed += static_cast<double>(p.numel() * p.packs);
  std::set<std::uint32_t> seen;
  for (const Module& m : model.modules) {
    if (std::none_of(m.program.begin(), m.program.end(), holds_experts)) continue;
    for (const OwnedParameter& p : m.parameters)
      if (seen.insert(p.id.value).second) experts += static_cast<double>(model.at(p.id).numel());
  }
  if (packed == 0 || experts == 0) return "";
  return fmt::format(
      "4-bit base: {:.2f} of {:.2f} B parameters are packed; the experts' {:.2f} B stay in 16 "
      "bits, since they are fused tensors and bitsandbytes packs linear modules only "
      "(transformers before 5 kept each expert's as linear modules)",
      packed / 1e9, static_cast<double>(model.parameter_count().value) / 1e9, experts / 1e9);
}

}  // namespace foreshard
