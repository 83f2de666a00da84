// Batch, precision and optimizer of a DeepSpeed file.

#include <fmt/format.h>

#include <algorithm>

#include "cli/foreign/deepspeed.h"
#include "core/json.h"
#include "core/text.h"

namespace foreshard::cli::deepspeed {
namespace {

constexpr const char* kBatch = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulate = "gradient_accumulation_steps";
constexpr std::int64_t kMostSequences = std::int64_t{1} << 40;
constexpr std::int64_t kMostOfARank = 1 << 20;

/// Sequences of a step, of a micro-batch, micro-batches of a step; absent: not said.
struct Batch {
  std::optional<std::int64_t> whole, micro, accumulate;
};

/// What trainers fill in from their own arguments stays open.
void leave_batch_open(KeyReader& keys, const Batch& b) {
  const char* micro = "per_device_train_batch_size of the trainer";
  const char* accumulate = "gradient_accumulation_steps of the trainer";
  if (b.micro)
    keys.set("micro-batch", std::to_string(*b.micro), kMicro);
  else if (keys.is_auto(kMicro))
    keys.open("micro-batch", "1", micro, kMicro);
  else
    keys.open("micro-batch", "1", micro);
  if (b.accumulate)
    keys.set("accumulate", std::to_string(*b.accumulate), kAccumulate);
  else if (keys.is_auto(kAccumulate))
    keys.open("accumulate", "1", accumulate, kAccumulate);
  else
    keys.open("accumulate", "1", accumulate);
  keys.same(kBatch, "the trainer's: GPUs x micro-batch x accumulation");
}

/// True if the batch, the other two of `b` and the GPUs agree.
bool agrees(KeyReader& keys, const Batch& b, std::int64_t gpus) {
  if (*b.micro > 0 && *b.accumulate > 0 && *b.whole == *b.micro * *b.accumulate * gpus) return true;
  keys.refuse(keys.has(kBatch) ? kBatch : kMicro,
              fmt::format("{} sequences are not {} (micro-batch) x {} (accumulation) x {} GPUs",
                          *b.whole, *b.micro, *b.accumulate, gpus),
              "DeepSpeed stops here, too");
  return false;
}

/// The GPUs that the three numbers leave; 0 (reported) if there are none.
std::int64_t gpus_behind(KeyReader& keys, const Batch& b) {
  const std::int64_t each = *b.micro * *b.accumulate;
  if (*b.whole % each == 0) return *b.whole / each;
  keys.refuse(kBatch,
              fmt::format("{} sequences are no multiple of {} (micro-batch) x {} "
                          "(accumulation)",
                          *b.whole, *b.micro, *b.accumulate),
              "DeepSpeed stops here, too");
  return 0;
}

}  // namespace

void read_batch(KeyReader& keys, std::int64_t gpus) {
  Batch b{keys.whole(kBatch, 1, kMostSequences), keys.whole(kMicro, 1, kMostOfARank),
          keys.whole(kAccumulate, 1, kMostOfARank)};
  const bool filled = keys.is_auto(kBatch) || keys.is_auto(kMicro) || keys.is_auto(kAccumulate);
  const auto wrong = [&](const char* key, const auto& value) {
    return keys.has(key) && !keys.is_auto(key) && !value;
  };
  if (wrong(kBatch, b.whole) || wrong(kMicro, b.micro) || wrong(kAccumulate, b.accumulate)) return;
  if (gpus > 0) keys.set("gpus", std::to_string(gpus), "--gpus");
  if (filled) return leave_batch_open(keys, b);
  if (!b.whole && !b.micro)
    return keys.refuse(kMicro, "is missing, and train_batch_size too: DeepSpeed stops here",
                       "a number of sequences, or \"auto\" under a trainer");
  if (b.whole && b.micro && b.accumulate && gpus == 0) {
    gpus = gpus_behind(keys, b);
    if (gpus == 0) return;
    keys.set("gpus", std::to_string(gpus), kBatch);
  } else if (b.whole && gpus == 0) {
    return keys.refuse(kBatch, "the number of GPUs says how it is divided", "add --gpus N");
  }
  if (!b.accumulate) b.accumulate = b.whole && b.micro ? *b.whole / *b.micro / gpus : 1;
  if (!b.micro) b.micro = *b.whole / gpus / *b.accumulate;
  if (b.whole && !agrees(keys, b, gpus)) return;
  keys.set("micro-batch", std::to_string(*b.micro), keys.has(kMicro) ? kMicro : kBatch);
  keys.set("accumulate", std::to_string(*b.accumulate),
           keys.has(kAccumulate) ? kAccumulate
           : b.whole             ? kBatch
                                 : "gradient_accumulation_steps is absent: 1");
  keys.same(kBatch, "GPUs x micro-batch x accumulation");
}

// ----------------------------------------------------------------------------------------------
// precision

namespace {

constexpr const char* kBf16 = "bf16.enabled";
constexpr const char* kFp16 = "fp16.enabled";

/// An option's spelling of a dtype that DeepSpeed spells in several ways (config.py: DtypeEnum).
std::optional<std::string> dtype_of(KeyReader& keys, std::string_view key) {
  auto name = keys.choice(key, {"bf16", "fp16", "fp32", "bfloat16", "float16", "float32", "half",
                                "float", "torch.bfloat16", "torch.float16", "torch.float32"});
  if (!name) return std::nullopt;
  if (contains(*name, "bf")) return "bf16";
  return contains(*name, "16") || *name == "half" ? "fp16" : "fp32";
}

/// "bf16", "fp16", "fp32", or "" where a trainer's arguments say it.
std::string read_compute_dtype(KeyReader& keys) {
  const bool bf16 = keys.boolean(kBf16).value_or(false);
  const bool fp16 = keys.boolean(kFp16).value_or(false);
  if (bf16 && fp16) keys.refuse(kFp16, "fp16 and bf16 are both enabled", "one of them");
  const char* asked = bf16 ? kBf16 : fp16 ? kFp16 : nullptr;
  if (asked != nullptr) {
    keys.set("param-dtype", bf16 ? "bf16" : "fp16", asked);
  } else if (keys.is_auto(kBf16) || keys.is_auto(kFp16)) {
    const char* key = keys.is_auto(kBf16) ? kBf16 : kFp16;
    keys.open("param-dtype", "bf16", "bf16 with the trainer's --bf16, fp16 with --fp16, else fp32",
              key);
  } else {
    keys.set("param-dtype", "fp32",
             keys.has(kBf16)   ? kBf16
             : keys.has(kFp16) ? kFp16
                               : "neither bf16 nor fp16 is enabled");
  }
  for (const char* key : {kBf16, kFp16})
    keys.same(key, keys.is_auto(key) ? "\"auto\": the trainer's arguments" : "off");
  return asked == nullptr ? (keys.is_auto(kBf16) || keys.is_auto(kFp16) ? "" : "fp32")
                          : (bf16 ? "bf16" : "fp16");
}

void read_autocast(KeyReader& keys, const std::string& compute) {
  const char* enabled = "torch_autocast.enabled";
  const bool on = keys.boolean(enabled).value_or(false);
  for (const char* key :
       {enabled, "torch_autocast.dtype", "torch_autocast.lower_precision_safe_modules"}) {
    if (!keys.has(key)) continue;
    if (!on)
      keys.same(key, "off");
    else if (compute == "bf16" || compute == "fp16")
      keys.not_modelled(key,
                        "casts of norms, softmax and losses to fp32 (torch.autocast around "
                        "16-bit parameters)");
    else if (key == enabled)
      keys.refuse(key, "torch.autocast over fp32 parameters is not planned with ZeRO",
                  "bf16.enabled: true, or FSDP with --autocast yes");
  }
}

}  // namespace

void read_precision(KeyReader& keys) {
  const std::string compute = read_compute_dtype(keys);
  read_autocast(keys, compute);
  const char* param = "data_types.param_dtype";
  if (const auto dtype = dtype_of(keys, param)) {
    if (!compute.empty() && *dtype != compute)
      keys.refuse(param, fmt::format("{} parameters beside {} are not planned", *dtype, compute),
                  "leave it out");
    else
      keys.same(param, "as fp16 and bf16 say");
  }
  const char* accumulated = "data_types.grad_accum_dtype";
  if (const auto dtype = dtype_of(keys, accumulated))
    keys.set("zero-grad-accum-dtype", *dtype, accumulated);
  const char* reduced = "communication_data_type";
  if (const auto dtype = keys.choice(reduced, {"fp16", "bf16", "fp32"}))
    keys.set("reduce-dtype", *dtype, reduced);
  for (const char* key : {param, accumulated, reduced})
    if (keys.is_auto(key)) keys.refuse(key, "\"auto\": nobody fills it", "fp16, bf16 or fp32");
}

// ----------------------------------------------------------------------------------------------
// optimizer

void read_optimizer(KeyReader& keys, bool offloaded) {
  const char* type = "optimizer.type";
  const char* torch_adam = "optimizer.params.torch_adam";
  const char* foreach = "optimizer.params.foreach";
  const char* momentum = "optimizer.params.momentum";
  const char* forced = "zero_force_ds_cpu_optimizer";
  const std::string name = lower_case(keys.word(type).value_or(""));
  const bool by_torch = keys.boolean(torch_adam).value_or(false);
  if (name == "adam" || name == "adamw") {
    const bool listed = by_torch && !offloaded, each = listed && keys.boolean(foreach) == false;
    keys.set("optimizer",
             each     ? "adamw-for-loop"
             : listed ? "adamw-foreach"
                      : "adamw",
             each     ? foreach
             : listed ? torch_adam
                      : type);
    if (by_torch && offloaded)
      keys.not_modelled(torch_adam, "offloaded states are planned with DeepSpeedCPUAdam");
  } else if (name == "sgd") {
    const double m = keys.number(momentum, 0, 1).value_or(0);
    if (offloaded) keys.refuse(type, "offloaded states are planned with DeepSpeedCPUAdam", "AdamW");
    if (m == 0)
      keys.refuse(type, "SGD without momentum is not planned", "optimizer.params.momentum: 0.9");
    else
      keys.set("optimizer", "sgd", type);
  } else if (keys.has(type) && (keys.is_auto(type) || keys.word(type))) {
    keys.refuse(type, fmt::format("the optimizer {} is not planned", keys.find(type)->dump()),
                "Adam, AdamW and SGD are");
  } else if (!keys.has(type)) {
    keys.open("optimizer", "adamw", "the script's optimizer, or the trainer's --optim");
  }
  for (const char* key : {type, torch_adam, foreach, momentum, "optimizer.params.adam_w_mode"})
    keys.same(key, "the same kernels");
  if (offloaded && !keys.boolean(forced).value_or(true))
    keys.not_modelled(forced, "offloaded states are planned with DeepSpeedCPUAdam");
  keys.same(forced, "DeepSpeedCPUAdam steps offloaded states");
}

}  // namespace foreshard::cli::deepspeed
