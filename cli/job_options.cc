#include "cli/job_options.h"

namespace foreshard::cli {
namespace {

OptionSpec option(std::string name, std::string value, std::string help,
                  std::vector<std::string> choices = {}) {
  return {std::move(name), std::move(value), std::move(help), std::move(choices), true};
}

OptionGroup sharding_group() {
  return {
      "Sharding",
      {option("framework", "NAME", "Who shards (default fsdp2)",
              {"fsdp2", "fsdp1", "zero1", "zero2", "zero3", "ddp", "sharded-optimizer", "none"}),
       option("shard", "N",
              "Ranks that share one copy of the parameters (default: all GPUs / --replicate)"),
       option("replicate", "N", "Copies of the parameters (HSDP; default 1)"),
       option("wrap", "POLICY",
              "blocks | every:K | root | size:N | modules:a,b,c (default blocks)"),
       option("root-split", "yes|no",
              "Embedding and head as units of their own (default yes; fsdp1 no)", {"yes", "no"}),
       option("reshard", "true|false|N",
              "Free gathered parameters after forward; N: keep shards of N ranks (default true)"),
       option("prefetch-forward", "N",
              "Explicit prefetch of the next N units in forward (default: the framework's rule)"),
       option("prefetch-backward", "N", "The same for backward"),
       option("offload", "WHAT",
              "Keep in host memory (FSDP: params; ZeRO: optimizer; ZeRO-3 also params, both)",
              {"none", "params", "optimizer", "both"})}};
}

OptionGroup training_group() {
  return {
      "Training",
      {option("micro-batch", "B", "Sequences of one rank and micro-batch (default 1)"),
       option("seq", "S", "Tokens of one sequence (default 2048)"),
       option("accumulate", "A", "Micro-batches of one optimizer step (default 1)"),
       option("sync-each-micro-batch", "yes|no",
              "Reduce gradients in each micro-batch (default yes)", {"yes", "no"}),
       option("model-dtype", "DTYPE",
              "Dtype of the parameters as built and of the optimizer (default fp32)"),
       option("param-dtype", "DTYPE", "Dtype of gathered parameters and compute (default bf16)"),
       option("autocast", "yes|no",
              "Compute under torch.autocast to --param-dtype: DDP and one GPU (default no)",
              {"yes", "no"}),
       option("reduce-dtype", "DTYPE", "Dtype of gradient reduction (default fp32)"),
       option("checkpoint", "KIND", "none | full | every:K | selective (default none)"),
       option("checkpoint-reentrant", "yes|no", "The reentrant kind (default no)", {"yes", "no"}),
       option("checkpoint-outside-units", "yes|no",
              "checkpoint(unit(block)) instead of unit(checkpoint(block)) (default: ZeRO-3 yes, "
              "others no)",
              {"yes", "no"}),
       option("optimizer", "NAME", "adamw is the fused one (default adamw)",
              {"adamw", "adamw-foreach", "adamw-for-loop", "sgd"}),
       option("clip", "yes|no", "Clip the gradient norm (default yes)", {"yes", "no"}),
       option("compile", "yes|no", "torch.compile of each block (default no)", {"yes", "no"}),
       option("float8", "KIND",
              "8-bit products in the blocks: scales of the tensor, of rows, or of earlier steps "
              "(default none)",
              {"none", "tensorwise", "rowwise", "rowwise-gw-hp", "delayed"}),
       option("float8-all-gather", "yes|no",
              "Weights are cast before they are gathered (default no)", {"yes", "no"}),
       option("attention", "KIND", "Attention kernels (default flash)", {"flash", "sdpa", "math"}),
       option("attention-kernel", "NAME",
              "Generation of the flash kernels; flash3 is also cuDNN's (default flash2)",
              {"flash2", "flash1", "flash3"}),
       option("loss", "KIND", "How the loss is computed (default float32)",
              {"float32", "plain", "chunked", "fused"})}};
}

OptionGroup fsdp1_group() {
  return {
      "FSDP1",
      {option("fsdp1-strategy", "NAME",
              "Sharding strategy (default full_shard; with --replicate hybrid_shard)",
              {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"}),
       option(
           "fsdp1-policy", "NAME",
           "PyTorch's policy behind --wrap (default lambda); the class policies take classes there",
           {"lambda", "module_class", "transformer", "always"}),
       option("fsdp1-ignored-modules", "a,b,c", "Modules that stay whole and out of it"),
       option("fsdp1-backward-prefetch", "WHEN", "Default backward_pre",
              {"backward_pre", "backward_post", "none"}),
       option("fsdp1-forward-prefetch", "yes|no", "Default no", {"yes", "no"}),
       option("fsdp1-limit-all-gathers", "yes|no", "Default yes", {"yes", "no"}),
       option("fsdp1-use-orig-params", "yes|no", "Default no", {"yes", "no"}),
       option("fsdp1-keep-low-precision-grads", "yes|no", "Default no", {"yes", "no"})}};
}

OptionGroup zero_group() {
  return {"ZeRO",
          {option("zero-reduce-bucket-size", "N",
                  "Elements, or auto: hidden size squared (default 5e8)"),
           option("zero-allgather-bucket-size", "N", "Elements (default 5e8)"),
           option("zero-prefetch-bucket-size", "N",
                  "Elements, or auto: 0.9 x hidden size squared (default 5e7)"),
           option("zero-param-persistence-threshold", "N",
                  "Elements, or auto: 10 x hidden size (default 1e5)"),
           option("zero-max-live-parameters", "N", "Elements (default 1e9)"),
           option("zero-max-reuse-distance", "N", "Elements (default 1e9)"),
           option("zero-overlap-comm", "yes|no", "Default: stage 3 yes, others no", {"yes", "no"}),
           option("zero-contiguous-gradients", "yes|no", "Default yes", {"yes", "no"}),
           option("zero-reduce-scatter", "yes|no", "Default yes", {"yes", "no"}),
           option("zero-round-robin-gradients", "yes|no",
                  "Stages 1, 2: deal parameters out to partitions (default no)", {"yes", "no"}),
           option("zero-multi-rank-allreduce", "yes|no",
                  "Stages 1, 2: use_multi_rank_bucket_allreduce (default yes)", {"yes", "no"}),
           option("zero-grad-accum-dtype", "DTYPE",
                  "Dtype of accumulated gradients (default: --param-dtype)"),
           option("zero-pin-memory", "yes|no",
                  "Page-locked memory for offloaded states (default no)", {"yes", "no"}),
           option("zero-offload-ratio", "R",
                  "Stage 3: part of the sub-groups that the CPU steps, 0 to 1 (default 1)"),
           option("zero-throughput-timer", "yes|no",
                  "The engine's timer waits for the device around each micro-batch (default yes)",
                  {"yes", "no"}),
           option("zero-wall-clock-breakdown", "yes|no",
                  "The host reads the engine's timers after each micro-batch (default no)",
                  {"yes", "no"}),
           option("zero-model-persistence-threshold", "N", "Stage 3, elements (default: no limit)"),
           option("zero-sub-group-size", "N", "Stage 3, elements (default 1e9)"),
           option("zero-hpz-partition-size", "N",
                  "Stage 3: ranks of the secondary group (ZeRO++ hpZ; default 1: none)"),
           option("zero-leaf-classes", "A,B",
                  "Stage 3: classes fetched as a whole (set_z3_leaf_modules)"),
           option("zero-module-granularity", "N",
                  "Stage 3: modules this fine are fetched as a whole (default 0: none)"),
           option("zero-init", "yes|no",
                  "Stage 3: the model is built under zero.Init, never whole on a GPU (default yes)",
                  {"yes", "no"})}};
}

OptionGroup sharded_optimizer_group() {
  return {
      "Sharded optimizer (ZeRO-1 as trainers write it themselves)",
      {option("sharded-bucket-mb", "MIB", "Gradients reduced together (default 25)"),
       option("sharded-float32-sums", "yes|no", "Gradients summed and reduced in fp32 (default no)",
              {"yes", "no"}),
       option("sharded-per-tensor", "yes|no",
              "One collective a tensor instead of a flat bucket (default no)", {"yes", "no"}),
       option("sharded-reduce-scatter", "yes|no",
              "Reduce-scatter instead of all-reduce (default no)", {"yes", "no"}),
       option("sharded-owners-broadcast", "yes|no",
              "Owners broadcast whole tensors instead of a gather (default no)", {"yes", "no"})}};
}

OptionGroup ddp_group() {
  return {
      "DDP",
      {option("ddp-bucket-cap-mb", "MIB", "Bucket size (default 25, the first 1)"),
       option("ddp-gradient-as-bucket-view", "yes|no", "Default no", {"yes", "no"}),
       option("ddp-static-graph", "yes|no", "Default no", {"yes", "no"}),
       option("ddp-bucket-cap-mb-list", "A,B,...", "A size for each bucket, the last one repeats"),
       option("ddp-find-unused-parameters", "yes|no", "Default no", {"yes", "no"}),
       option("ddp-broadcast-buffers", "yes|no", "Before every forward (default yes)",
              {"yes", "no"}),
       option("ddp-batched-grad-copy", "yes|no", "One copy for each bucket (default no)",
              {"yes", "no"}),
       option("ddp-comm-hook", "NAME", "What buckets pass on their way (default none)",
              {"none", "allreduce", "bf16", "fp16", "powersgd"}),
       option("ddp-powersgd-rank", "R", "Columns of PowerSGD's factors (default 1)"),
       option("ddp-powersgd-min-compression", "X",
              "Only matrices that shrink by more than this go out as factors (default 2)"),
       option("ddp-powersgd-error-feedback", "yes|no", "Default yes", {"yes", "no"}),
       option("ddp-powersgd-warm-start", "yes|no", "Default yes", {"yes", "no"}),
       option("ddp-mixed-precision", "yes|no",
              "DDP's own: parameters cast to --param-dtype, reduced in --reduce-dtype (default no)",
              {"yes", "no"}),
       option("ddp-lazy-buckets", "yes|no",
              "lazy_bucket_allocation: buckets only live in backward (default no)", {"yes", "no"}),
       option("ddp-skip-unused", "yes|no",
              "Buckets without a used parameter are not reduced (default no)", {"yes", "no"})}};
}

}  // namespace

PositionalSpec model_argument() {
  return {
      "MODEL",
      "Catalogue name (foreshard models), a Hugging Face config.json, or a graph file of your own"};
}

OptionGroup adapter_options() {
  return {"Adapters",
          {option("lora-rank", "R", "LoRA: adapters of rank R, everything else frozen"),
           option("lora-alpha", "A", "Adapters are scaled by A / R (default 8)"),
           option("lora-dropout", "P", "Dropout before an adapter (default 0)"),
           option("lora-targets", "NAMES",
                  "Linear modules, e.g. q_proj,v_proj (default) or all-linear"),
           option("lora-base", "KIND",
                  "How frozen weights are kept: 16bit (default), 4bit (QLoRA), 4bit-double",
                  {"16bit", "4bit", "4bit-double"})}};
}

std::string with_adapters(std::string model, const Arguments& arguments) {
  for (const char* name :
       {"lora-rank", "lora-alpha", "lora-dropout", "lora-targets", "lora-base"}) {
    if (!arguments.has(name)) continue;
    std::string key = name;
    key[4] = '_';
    model += (model.find('?') == std::string::npos ? "?" : "&") + key + "=" + arguments.text(name);
  }
  return model;
}

std::vector<OptionGroup> job_options() {
  OptionGroup job{
      "Job",
      {option("gpus", "N", "Number of GPUs"),
       option("on", "HARDWARE",
              "Machine (foreshard hw), a profile file, or e.g. 2x-a100-80-200g, dgx-h100@400g"),
       {"config", "FILE", "YAML file of these options, one \"name: value\" per line", {}, false}}};
  return {job,           training_group(), sharding_group(), adapter_options(),
          fsdp1_group(), zero_group(),     ddp_group(),      sharded_optimizer_group()};
}

}  // namespace foreshard::cli
