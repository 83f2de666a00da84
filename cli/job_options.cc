#include "cli/job_options.h"

namespace foreshard::cli {
namespace {

OptionSpec option(std::string name, std::string value, std::string help, std::vector<std::string> choices = {}) {
  return {std::move(name), std::move(value), std::move(help), std::move(choices), true};
}

OptionGroup sharding_group() {
  return {"Sharding",
          {option("framework", "NAME", "Who shards (default fsdp2)", {"fsdp2", "fsdp1", "zero1", "zero2", "zero3", "ddp", "sharded-optimizer", "none"}),
           option("shard", "N", "Ranks that share one copy of the parameters (default: all GPUs / --replicate)"),
           option("replicate", "N", "Copies of the parameters (HSDP; default 1)"),
           option("wrap", "POLICY", "blocks | every:K | root | size:N | modules:a,b,c (default blocks)"),
           option("root-split", "yes|no", "Embedding and head as units of their own (default yes)", {"yes", "no"}),
           option("reshard", "true|false|N", "Free gathered parameters after forward; N: keep shards of N ranks (default true)"),
           option("prefetch-forward", "N", "Explicit prefetch of the next N units in forward (default: the framework's rule)"),
           option("prefetch-backward", "N", "The same for backward"),
           option("offload", "WHAT", "Keep in host memory", {"none", "params", "optimizer"})}};
}

OptionGroup training_group() {
  return {"Training",
          {option("micro-batch", "B", "Sequences of one rank and micro-batch (default 1)"),
           option("seq", "S", "Tokens of one sequence (default 2048)"),
           option("accumulate", "A", "Micro-batches of one optimizer step (default 1)"),
           option("sync-each-micro-batch", "yes|no", "Reduce gradients in each micro-batch (default yes)", {"yes", "no"}),
           option("model-dtype", "DTYPE", "Dtype of the parameters as built and of the optimizer (default fp32)"),
           option("param-dtype", "DTYPE", "Dtype of gathered parameters and compute (default bf16)"),
           option("autocast", "yes|no", "Compute under torch.autocast to --param-dtype: DDP and one GPU (default no)", {"yes", "no"}),
           option("reduce-dtype", "DTYPE", "Dtype of gradient reduction (default fp32)"),
           option("checkpoint", "KIND", "none | full | every:K | selective (default none)"),
           option("optimizer", "NAME", "adamw is the fused one (default adamw)", {"adamw", "adamw-foreach", "adamw-for-loop", "sgd"}),
           option("clip", "yes|no", "Clip the gradient norm (default yes)", {"yes", "no"}),
           option("compile", "yes|no", "torch.compile of each block (default no)", {"yes", "no"}),
           option("float8", "KIND", "8-bit products in the blocks: scales of the tensor, of rows, or of earlier steps (default none)",
                  {"none", "tensorwise", "rowwise", "rowwise-gw-hp", "delayed"}),
           option("float8-all-gather", "yes|no", "Weights are cast before they are gathered (default no)", {"yes", "no"}),
           option("attention", "KIND", "Attention kernels (default flash)", {"flash", "sdpa", "math"}),
           option("loss", "KIND", "How the loss is computed (default float32)", {"float32", "plain", "chunked", "fused"})}};
}

OptionGroup fsdp1_group() {
  return {"FSDP1",
          {option("fsdp1-strategy", "NAME", "Sharding strategy (default full_shard)",
                  {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"}),
           option("fsdp1-backward-prefetch", "WHEN", "Default backward_pre", {"backward_pre", "backward_post", "none"}),
           option("fsdp1-forward-prefetch", "yes|no", "Default no", {"yes", "no"}),
           option("fsdp1-limit-all-gathers", "yes|no", "Default yes", {"yes", "no"}),
           option("fsdp1-use-orig-params", "yes|no", "Default no", {"yes", "no"})}};
}

OptionGroup zero_group() {
  return {"ZeRO",
          {option("zero-reduce-bucket-size", "N", "Elements (default 5e8)"),
           option("zero-allgather-bucket-size", "N", "Elements (default 5e8)"),
           option("zero-prefetch-bucket-size", "N", "Elements (default 5e7)"),
           option("zero-param-persistence-threshold", "N", "Elements (default 1e5)"),
           option("zero-max-live-parameters", "N", "Elements (default 1e9)"),
           option("zero-max-reuse-distance", "N", "Elements (default 1e9)"),
           option("zero-overlap-comm", "yes|no", "Default: stage 3 yes, others no", {"yes", "no"}),
           option("zero-contiguous-gradients", "yes|no", "Default yes", {"yes", "no"})}};
}

OptionGroup sharded_optimizer_group() {
  return {"Sharded optimizer (ZeRO-1 as trainers write it themselves)",
          {option("sharded-bucket-mb", "MIB", "Gradients reduced together (default 25)"),
           option("sharded-float32-sums", "yes|no", "Gradients summed and reduced in fp32 (default no)", {"yes", "no"}),
           option("sharded-per-tensor", "yes|no", "One collective a tensor instead of a flat bucket (default no)", {"yes", "no"}),
           option("sharded-reduce-scatter", "yes|no", "Reduce-scatter instead of all-reduce (default no)", {"yes", "no"}),
           option("sharded-owners-broadcast", "yes|no", "Owners broadcast whole tensors instead of a gather (default no)", {"yes", "no"})}};
}

OptionGroup ddp_group() {
  return {"DDP",
          {option("ddp-bucket-cap-mb", "MIB", "Bucket size (default 25, the first 1)"),
           option("ddp-gradient-as-bucket-view", "yes|no", "Default no", {"yes", "no"}),
           option("ddp-static-graph", "yes|no", "Default no", {"yes", "no"})}};
}

}  // namespace

PositionalSpec model_argument() {
  return {"MODEL", "Catalogue name (foreshard models), a Hugging Face config.json, or a graph file of your own"};
}

std::vector<OptionGroup> job_options() {
  OptionGroup job{"Job",
                  {option("gpus", "N", "Number of GPUs"),
                   option("on", "HARDWARE", "Machine (foreshard hw), a profile file, or e.g. 2x-a100-80-200g, dgx-h100@400g"),
                   {"config", "FILE", "YAML file of these options, one \"name: value\" per line", {}, false}}};
  return {job, training_group(), sharding_group(), fsdp1_group(), zero_group(), ddp_group(), sharded_optimizer_group()};
}

}  // namespace foreshard::cli
