#include "study/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/format.h"
#include "core/integers.h"
#include "schedules/planner/config_names.h"
#include "schedules/planner/framework_table.h"
#include "schedules/planner/wrap_policy.h"

namespace foreshard {
namespace {

std::string checkpointing(const ParallelConfig& c) {
  switch (c.checkpoint) {
    case CheckpointKind::kNone:
      return "no checkpointing";
    case CheckpointKind::kFull:
      return "full checkpointing";
    case CheckpointKind::kEveryK:
      return fmt::format("checkpointing every {} blocks", c.checkpoint_every);
    case CheckpointKind::kSelectiveOp:
      return "selective checkpointing";
    case CheckpointKind::kModules:
      return "checkpointing of named modules";
  }
  return "";
}

std::string_view optimizer_title(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdamWFused:
      return "AdamW fused";
    case OptimizerKind::kAdamWForeach:
      return "AdamW foreach";
    case OptimizerKind::kAdamWForLoop:
      return "AdamW for-loop";
    case OptimizerKind::kSgd:
      return "SGD with momentum";
    case OptimizerKind::kNone:
      break;
  }
  return "no optimizer";
}

bool has_attention_kernel(AttentionKernel kernel, GpuGeneration generation) {
  using enum AttentionKernel;
  switch (generation) {
    case GpuGeneration::kVolta:
      return false;
    case GpuGeneration::kTuring:
      return kernel == kFlash1;
    case GpuGeneration::kAmpere:
    case GpuGeneration::kAda:
    case GpuGeneration::kBlackwell:
      return kernel != kFlash3;
    case GpuGeneration::kHopper:
      return true;
    case GpuGeneration::kCdna:
      return kernel == kFlash1 || kernel == kFlash2;
  }
  return false;
}

std::string attention_text(const Job& job) {
  const std::string kind(name_in(kAttentionNames, job.config.attention));
  if (!takes_flash(job.config.attention)) return kind + " attention";
  const bool library = job.config.attention == AttentionKind::kFlashLibrary;
  return fmt::format("{}{} ({})", kind, library ? "" : " attention",
                     name_in(kAttentionKernelNames, job.attention_kernel));
}

/// What else of the parameters is kept in more than the 16 bits in which the model is built.
std::string wider_parameters(const Job& job) {
  if (row_of(job.config.framework).precision == PrecisionRule::kMasters) return ", fp32 masters";
  const bool wide_adapters =
      std::any_of(job.model->parameters.begin(), job.model->parameters.end(),
                  [](const ParameterDef& p) { return p.keeps_dtype && p.dtype == DType::kFloat32; });
  return wide_adapters ? ", fp32 adapters" : " throughout";
}

}  // namespace

CostParameters Job::cost_parameters() const {
  CostParameters out;
  out.attention.kernel = attention_kernel;
  out.matmul.tf32 = tf32;
  return out;
}

std::string short_dtype(DType t) {
  switch (t) {
    case DType::kFloat32:
      return "fp32";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat16:
      return "fp16";
    default:
      return std::string(name_of(t));
  }
}

DType compute_dtype(const ParallelConfig& c) { return row_of(c.framework).compute_dtype(c); }

DType reduction_dtype(const ParallelConfig& c) { return row_of(c.framework).reduction_dtype(c); }

std::string settle_attention(Job& job, bool asked) {
  AttentionKind& kind = job.config.attention;
  if (!takes_flash(kind)) return "";
  std::string lacks = lacks_attention_kernel(job.attention_kernel, job.hardware.gpu);
  if (!lacks.empty() && !asked && kind == AttentionKind::kFlash) kind = AttentionKind::kSdpa;
  return lacks;
}

std::string lacks_attention_kernel(AttentionKernel kernel, const GpuProfile& gpu) {
  if (has_attention_kernel(kernel, gpu.generation)) return "";
  const auto refusal = [&](std::string_view needs) {
    return fmt::format("{} needs {}, {} is {}", name_in(kAttentionKernelNames, kernel), needs,
                       gpu.name, name_of(gpu.generation));
  };
  switch (kernel) {
    case AttentionKernel::kFlash1:
      return refusal("turing or later");
    case AttentionKernel::kFlash2:
    case AttentionKernel::kCudnn:
      return refusal("ampere or later");
    case AttentionKernel::kFlash3:
      return refusal("hopper");
  }
  return "";
}

std::string describe_precision(const Job& job, bool with_checkpoints) {
  const ParallelConfig& c = job.config;
  const DType param = compute_dtype(c), reduce = reduction_dtype(c);
  std::string out = short_dtype(param);
  if (c.model_dtype != DType::kFloat32 && c.model_dtype != param)
    out += " over " + short_dtype(c.model_dtype) + " parameters";
  else if (c.model_dtype != DType::kFloat32)
    out += wider_parameters(job);
  if (reduce != param && row_of(c.framework).ranks != RankLayout::kOneDevice)
    out += ", " + short_dtype(reduce) + " reduce";
  if (c.float8 != Float8Kind::kNone)
    out += fmt::format(", float8 {} products", name_in(kFloat8Names, c.float8));
  const bool by_itself = row_of(c.framework).precision != PrecisionRule::kMixed &&
                         c.model_dtype == DType::kFloat32;  // 16 bits over fp32: how else?
  if (c.autocast && !by_itself) out += ", autocast";
  if (with_checkpoints) out += ", " + checkpointing(c);
  if (c.compile) out += ", compiled";
  if (c.offload == OffloadKind::kParameters) out += ", parameters in host memory";
  if (c.offload == OffloadKind::kOptimizer) out += ", optimizer in host memory";
  if (c.offload == OffloadKind::kBoth) out += ", parameters and optimizer in host memory";
  return out;
}

std::string describe_batch(const Job& job) {
  const ParallelConfig& c = job.config;
  const bool tokens = job.has_tokens();
  const std::int64_t batch = c.micro_batch * c.accumulate * job.gpus;
  std::string out = tokens ? fmt::format("seq {} · ", c.sequence) : "";
  out += fmt::format("micro-batch {}", c.micro_batch);
  if (c.accumulate > 1) {
    out += fmt::format(" · accumulate {}", c.accumulate);
    if (!c.sync_each_micro_batch) out += " (reduced at the last)";
  }
  out += fmt::format(" · global batch {} {}{}", with_thousands(batch),
                     tokens ? "sequence" : "sample", batch == 1 ? "" : "s");
  if (tokens) out += fmt::format(" ({} tokens)", with_thousands(batch * c.sequence));
  return job.model->sample.empty() ? out : out + " · each " + job.model->sample;
}

std::string describe_training(const Job& job) {
  const ParallelConfig& c = job.config;
  std::string out(optimizer_title(c.optimizer));
  if (c.clip) out += ", clipping";
  out += " · " + attention_text(job);
  const std::string_view loss = name_in(kLossNames, c.loss);
  return loss.empty() ? out : out + fmt::format(" · loss {}", loss);
}

std::string describe_wrapping(const ParallelConfig& c) {
  if (!row_of(c.framework).forms_units()) return "";
  std::string out = describe_wrap(c.wrap);
  if (c.wrap.kind != WrapPolicy::Kind::kRootOnly && !c.wrap.root_split)
    out += ", embedding and head in the root";
  if (c.reshard.kind == Reshard::Kind::kNo) out += ", kept gathered";
  if (c.reshard.kind == Reshard::Kind::kGroup)
    out += fmt::format(", resharded to {}", c.reshard.group);
  return out;
}

std::string network_text(const HardwareProfile& h) {
  if (h.network.kind == NetworkKind::kNone || !h.network.nics.known() ||
      !h.network.nic_rate.known())
    return "";
  return fmt::format("{} x {:.0f} Gb/s {}", h.network.nics.count(),
                     h.network.nic_rate.value * 8 / 1e9, name_of(h.network.kind));
}

std::string describe_machines(const HardwareProfile& h, std::int64_t gpus) {
  const std::int64_t per_node = std::max<std::int64_t>(1, h.gpus_per_node());
  const std::int64_t nodes = ceil_div(gpus, per_node);
  const std::string network = nodes == 1 ? "" : network_text(h);
  return fmt::format("{} x {} ({} node{}{}{})", gpus, h.gpu.title, nodes, nodes == 1 ? "" : "s",
                     network.empty() ? "" : ", ", network);
}

}  // namespace foreshard
