#include "cli/foreign_names.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

#include "cli/foreign/foreign_job.h"

namespace foreshard::cli {
namespace {

using Names = std::vector<std::string_view>;

/// Names of one meaning, the option that a command must have for the hint to help ("" none), and
/// the hint. Names are those of torchrun, torchtitan, Hugging Face's Trainer and Accelerate,
/// DeepSpeed, Megatron-LM, llm-foundry and nanoGPT.
struct Foreign {
  Names names;
  std::string_view option, hint;
};

const Names kBatch{"batch-size",
                   "batch",
                   "bs",
                   "mbs",
                   "micro-batch-size",
                   "local-batch-size",
                   "per-device-train-batch-size",
                   "train-micro-batch-size-per-gpu",
                   "device-train-microbatch-size"};
const Names kSequence{"seq-len",        "seq-length", "sequence-length",        "max-seq-len",
                      "max-seq-length", "max-length", "context-length",         "context",
                      "block-size",     "sequence",   "max-position-embeddings"};
const Names kGpus{"num-gpus", "ngpus", "ngpu", "world-size", "num-processes", "devices", "n-gpus"};
const Names kNodes{"nodes",          "nnodes",        "num-nodes",
                   "nproc-per-node", "gpus-per-node", "num-machines"};
const Names kCheckpoint{"gradient-checkpointing",
                        "activation-checkpointing",
                        "activation-checkpoint",
                        "ac",
                        "ac-mode",
                        "recompute",
                        "recompute-granularity",
                        "recompute-activations",
                        "remat",
                        "checkpoint-activations"};
const Names kAccumulate{"gradient-accumulation-steps",
                        "gradient-accumulation",
                        "grad-accum",
                        "grad-accum-steps",
                        "accum",
                        "ga"};
const Names kGlobal{"global-batch-size", "global-batch", "global-train-batch-size",
                    "train-batch-size", "gbs"};
const Names kHardware{"hardware", "hw",      "machine",  "gpu-type",
                      "device",   "cluster", "instance", "accelerator"};
const Names kPrecision{"dtype", "precision", "mixed-precision", "bf16",
                       "fp16",  "amp",       "compute-dtype",   "torch-dtype"};
const Names kReshard{"reshard-after-forward", "fsdp-reshard-after-forward"};
const Names kStrategy{"sharding-strategy", "fsdp-sharding-strategy"};
const Names kStage{"zero-stage", "stage", "strategy", "backend", "parallelism", "sharding"};
const Names kDeepSpeedFile{"deepspeed", "ds-config", "deepspeed-config", "deepspeed-config-file"};
const Names kOffload{"cpu-offload",       "offload-params", "fsdp-offload-params",
                     "offload-optimizer", "offload-param",  "zero-offload"};
const Names kHsdp{"hsdp",
                  "dp-replicate",
                  "data-parallel-replicate-degree",
                  "dp-shard",
                  "data-parallel-shard-degree",
                  "dp"};
const Names kClip{"max-grad-norm", "clip-grad-norm", "grad-clip", "max-norm", "gradient-clipping"};
const Names kNotModelled{"tp",
                         "tensor-parallel",
                         "tensor-parallel-size",
                         "tensor-parallel-degree",
                         "tensor-model-parallel-size",
                         "pp",
                         "pipeline-parallel",
                         "pipeline-parallel-size",
                         "pipeline-parallel-degree",
                         "pipeline-model-parallel-size",
                         "cp",
                         "context-parallel",
                         "context-parallel-size",
                         "context-parallel-degree",
                         "sp",
                         "sequence-parallel",
                         "ep",
                         "expert-parallel",
                         "expert-parallel-size",
                         "expert-model-parallel-size"};

const Foreign kForeign[] = {
    {{"model", "model-name", "model-name-or-path", "model-id", "config-name"},
     "",
     "the model is the first argument, e.g. foreshard simulate llama3-8b"},
    {kGlobal, "global-batch", "use --global-batch N (sequences of one optimizer step)"},
    {kGlobal, "accumulate",
     "it is GPUs x --micro-batch x --accumulate; foreshard size --global-batch keeps it fixed"},
    {kBatch, "micro-batch", "use --micro-batch B (sequences of one rank)"},
    {kSequence, "seq", "use --seq S (tokens of one sequence)"},
    {kGpus, "gpus", "use --gpus N"},
    {kNodes, "gpus", "use --gpus N, of all nodes together; --on says how many a node has"},
    {kCheckpoint, "checkpoint", "use --checkpoint full, every:K or selective"},
    {kAccumulate, "accumulate", "use --accumulate A"},
    {{"gpu"}, "on", "use --gpus N for how many, --on HARDWARE for which"},
    {kHardware, "on", "use --on HARDWARE"},
    {kPrecision, "param-dtype", "use --param-dtype bf16 (compute) and --model-dtype (as built)"},
    {kReshard, "reshard", "use --reshard true, false or N"},
    {kStrategy, "fsdp1-strategy",
     "use --reshard (FSDP2), --fsdp1-strategy (FSDP1) or --framework zero1, zero2, zero3"},
    {kStage, "framework",
     "use --framework fsdp2, fsdp1, zero1, zero2, zero3, sharded-optimizer, ddp or none"},
    {kDeepSpeedFile, "framework",
     "foreshard import deepspeed FILE -o job.yaml, then --config job.yaml; or --framework zero1, "
     "zero2, zero3"},
    {{"config-file", "fsdp-config"},
     "config",
     "foreshard import accelerate FILE -o job.yaml, then --config job.yaml"},
    {{"job-config-file", "job.config-file"},
     "config",
     "foreshard import torchtitan FILE -o job.yaml, then --config job.yaml"},
    {kOffload, "offload", "use --offload params, optimizer or both"},
    {kHsdp, "replicate", "use --replicate N (copies) and --shard N (ranks of one copy)"},
    {kClip, "clip", "use --clip yes or no"},
    {{"flash-attention", "use-flash-attn", "attn-implementation", "attn"},
     "attention",
     "use --attention and --attention-kernel"},
    {{"torch-compile", "compile-model"}, "compile", "use --compile yes"},
    {{"optim", "optimizer-type"}, "optimizer", "use --optimizer NAME"},
    {{"lora-r", "lora", "rank"}, "lora-rank", "use --lora-rank R"},
    {{"qlora", "load-in-4bit"}, "lora-base", "use --lora-rank R --lora-base 4bit"},
    {{"budget", "train-tokens", "num-tokens"}, "tokens", "use --tokens N, e.g. 1T"},
    {{"days", "max-days"}, "deadline", "use --deadline 45d"},
    {{"cost", "usd"}, "price", "use --price NAME=USD"},
    {kNotModelled, "",
     "not modelled: tensor, pipeline, context and expert parallelism; all GPUs are data parallel"},
};

std::string folded(std::string_view name) {
  std::string out(name);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) {
    return c == '_' ? '-' : static_cast<char>(std::tolower(c));
  });
  return out;
}

bool holds(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::string foreign_option_hint(std::string_view name, const std::vector<std::string>& known) {
  const std::string wanted = folded(name);
  if (std::find(known.begin(), known.end(), wanted) != known.end()) return "use --" + wanted;
  for (const Foreign& f : kForeign) {
    const bool usable =
        f.option.empty() || std::find(known.begin(), known.end(), f.option) != known.end();
    if (usable && holds(f.names, wanted)) return std::string(f.hint);
  }
  const bool of_a_job = std::find(known.begin(), known.end(), "framework") != known.end();
  return of_a_job ? foreign_key_hint(wanted, known) : "";
}

std::string foreign_value_hint(std::string_view option, std::string_view value) {
  const std::string wanted = folded(value);
  if (option == "framework") {
    if (holds({"deepspeed", "zero", "ds"}, wanted))
      return "DeepSpeed's stages are zero1, zero2 and zero3";
    if (holds({"fsdp", "fully-shard", "fully-sharded-data-parallel"}, wanted))
      return "fsdp2 is fully_shard, fsdp1 is FullyShardedDataParallel";
    if (holds({"zero0", "zero-0", "stage0"}, wanted))
      return "stage 0 shards nothing: ddp, or none on one GPU";
    if (holds({"single", "one", "single-gpu"}, wanted)) return "none trains on one GPU";
    if (holds({"megatron", "megatron-lm", "nemo"}, wanted))
      return "its tensor and pipeline parallelism is not modelled";
  }
  if (option == "offload" && wanted == "nvme")
    return "offload to NVMe is not modelled: params, optimizer and both go to host memory";
  if (option == "optimizer" && holds({"adamw-torch-fused", "adamw-fused", "fused"}, wanted))
    return "adamw is the fused one";
  return "";
}

}  // namespace foreshard::cli
