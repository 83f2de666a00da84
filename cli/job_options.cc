#include "cli/job_options.h"

#include <fmt/format.h>

#include "cli/framework_options.h"
#include "schedules/planner/config_names.h"
#include "schedules/planner/framework_table.h"
#include "schedules/planner/wrap_policy.h"

namespace foreshard::cli {
namespace {

OptionSpec option(std::string name, std::string value, std::string help,
                  std::vector<std::string> choices = {}) {
  return {std::move(name), std::move(value), std::move(help), std::move(choices), true};
}

std::vector<std::string> framework_names() {
  std::vector<std::string> names;
  for (const FrameworkRow& row : frameworks()) names.emplace_back(row.name);
  return names;
}

template <typename Enum, std::size_t N>
std::vector<std::string> choices(const EnumName<Enum> (&values)[N]) {
  std::vector<std::string> names;
  for (const EnumName<Enum>& v : values) names.emplace_back(v.name);
  return names;
}

OptionGroup sharding_group() {
  const std::vector<OptionSpec> wrap = wrap_options();
  return {
      "Sharding",
      {option("framework", "NAME", "Who shards (default fsdp2)", framework_names()),
       option("shard", "N",
              "Ranks that share one copy of the parameters (default: all GPUs / --replicate)"),
       option("replicate", "N", "Copies of the parameters (HSDP; default 1)"), wrap[0], wrap[1],
       option("reshard", "true|false|N",
              "Free gathered parameters after forward; N: keep shards of N ranks (default true)"),
       option("prefetch-forward", "N",
              "Explicit prefetch of the next N units in forward (default: the framework's rule)"),
       option("prefetch-backward", "N", "The same for backward"),
       option("offload", "WHAT",
              "Keep in host memory (FSDP: params; ZeRO: optimizer; ZeRO-3 also params, both)",
              choices(kOffloadNames))}};
}

OptionGroup training_group() {
  return {
      "Training",
      {option("micro-batch", "B", "Sequences of one rank and micro-batch (default 1)"),
       option("seq", "S",
              "Tokens of one sequence, e.g. 8k = 8192 (default 2048, or as many as a model has "
              "learned positions for; positions that are computed set no limit)"),
       option("accumulate", "A", "Micro-batches of one optimizer step (default 1)"),
       option("sync-each-micro-batch", "yes|no",
              "Reduce gradients in each micro-batch (default yes)", {"yes", "no"}),
       option("model-dtype", "DTYPE",
              "Dtype of the parameters as built and of the optimizer (default fp32)"),
       option("param-dtype", "DTYPE", "Dtype of gathered parameters and compute (default bf16)"),
       option("autocast", "yes|no",
              "Compute under torch.autocast to --param-dtype; FSDP: around its units, as "
              "accelerate does "
              "(default no)",
              {"yes", "no"}),
       option("reduce-dtype", "DTYPE",
              "Dtype of gradient reduction (default fp32; ZeRO, DDP's own mixed precision: of "
              "compute; DDP: of parameters)"),
       option("checkpoint", "KIND", "none | full | every:K | selective (default none)"),
       option("checkpoint-reentrant", "yes|no", "The reentrant kind (default no)", {"yes", "no"}),
       option("checkpoint-outside-units", "yes|no",
              "checkpoint(unit(block)) instead of unit(checkpoint(block)) (default: ZeRO-3 yes, "
              "others no)",
              {"yes", "no"}),
       option("optimizer", "NAME", "adamw is the fused one, sgd has momentum 0.9 (default adamw)",
              choices(kOptimizerNames)),
       option("clip", "yes|no", "Clip the gradient norm (default yes)", {"yes", "no"}),
       option("compile", "yes|no", "torch.compile of each block (default no)", {"yes", "no"}),
       option("float8", "KIND",
              "8-bit products in the blocks: scales of the tensor, of rows, or of earlier steps "
              "(default none); with --compile yes the casts are fused",
              choices(kFloat8Names)),
       option("float8-all-gather", "yes|no",
              "Weights are cast before they are gathered (default no)", {"yes", "no"}),
       option("float8-precompute-scales", "yes|no",
              "8-bit all-gathers: all scales from one all-reduce after the optimizer "
              "(default yes)",
              {"yes", "no"}),
       option("attention", "KIND",
              "Attention (default flash: SDPA, with its flash kernel where there is no mask; sdpa: "
              "SDPA without it); flash-attn is that library's own, with windows in the kernel; "
              "math is SDPA's in fp32, eager is written out",
              choices(kAttentionNames)),
       option("attention-kernel", "NAME", "Of flash attention (default flash2)",
              choices(kAttentionKernelNames)),
       option("tf32", "yes|no", "fp32 products on tensor cores (default no)", {"yes", "no"}),
       option("loss", "KIND", "How the loss is computed (default float32)", choices(kLossNames)),
       option("alloc-conf", "TEXT",
              "PYTORCH_CUDA_ALLOC_CONF of the job, e.g. expandable_segments:True")}};
}

}  // namespace

PositionalSpec model_argument() {
  return {
      "MODEL",
      "Catalogue name (foreshard models), a Hugging Face config.json, or a graph file of your own"};
}

std::vector<OptionSpec> wrap_options() {
  std::string no_split;
  for (const FrameworkRow& row : frameworks())
    if (row.forms_units() && !row.root_split) no_split += fmt::format("; {} no", row.name);
  return {option("wrap", "POLICY", fmt::format("{} (default blocks)", kWrapForms)),
          option("root-split", "yes|no",
                 fmt::format("Embedding and head as units of their own (default yes{})", no_split),
                 {"yes", "no"})};
}

OptionGroup adapter_options() {
  return {"Adapters and frozen modules",
          {option("freeze", "NAMES", "Modules that are not trained, e.g. vision_tower"),
           option("lora-rank", "R", "LoRA: adapters of rank R, everything else frozen"),
           option("lora-alpha", "A", "Adapters are scaled by A / R (default 8)"),
           option("lora-dropout", "P", "Dropout before an adapter (default 0)"),
           option("lora-targets", "NAMES",
                  "Linear modules, or all-linear (default: PEFT's for the family)"),
           option("lora-dtype", "KIND",
                  "What adapters are kept in: fp32 (default, as PEFT) or base, as other weights",
                  {"fp32", "base"}),
           option("lora-base", "KIND",
                  "How frozen weights are kept: 16bit (default), 4bit (QLoRA), 4bit-double",
                  {"16bit", "4bit", "4bit-double"})}};
}

std::string with_adapters(std::string model, Arguments& arguments) {
  const bool ranked = arguments.has("lora-rank") || model.find("lora_rank=") != std::string::npos;
  for (const char* name :
       {"lora-rank", "lora-alpha", "lora-dropout", "lora-targets", "lora-dtype", "lora-base"}) {
    if (!arguments.has(name)) continue;
    if (!ranked) {
      arguments.report(name, "there are no adapters without a rank", "add --lora-rank R");
      continue;
    }
    std::string key = name;
    key[4] = '_';
    model += (model.find('?') == std::string::npos ? "?" : "&") + key + "=" + arguments.text(name);
  }
  if (arguments.has("freeze"))
    model +=
        (model.find('?') == std::string::npos ? "?" : "&") + ("freeze=" + arguments.text("freeze"));
  return model;
}

std::vector<OptionGroup> job_options() {
  OptionGroup job{
      "Job",
      {option("gpus", "N", "Number of GPUs"),
       option("on", "HARDWARE",
              "Machine (foreshard hw), a profile file, or e.g. 2x-a100-80-200g, dgx-h100@400g"),
       {"config", "FILE", "YAML file of these options, one \"name: value\" per line", {}, false}}};
  std::vector<OptionGroup> groups{job, training_group(), sharding_group(), adapter_options()};
  for (const FrameworkOptions& f : framework_options()) {
    groups.push_back({f.title, {}, true});
    for (const FrameworkOption& o : f.options) groups.back().options.push_back(o.spec);
  }
  return groups;
}

}  // namespace foreshard::cli
