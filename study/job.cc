#include "study/job.h"

#include <fmt/format.h>

#include <cmath>

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

std::string network_text(const HardwareProfile& h) {
  if (h.network.kind == NetworkKind::kNone || !h.network.nics.known() ||
      !h.network.nic_rate.known())
    return "";
  return fmt::format(", {} x {:.0f} Gb/s {}", h.network.nics.count(),
                     h.network.nic_rate.value * 8 / 1e9, name_of(h.network.kind));
}

}  // namespace

CostParameters Job::cost_parameters() const {
  CostParameters out;
  out.attention.kernel = attention_kernel;
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

std::string describe_precision(const ParallelConfig& c) {
  const DType param = c.precision.param.value_or(c.model_dtype);
  const DType reduce = c.precision.reduce.value_or(param);
  std::string out = short_dtype(param);
  if (reduce != param) out += ", " + short_dtype(reduce) + " reduce";
  out += ", " + checkpointing(c);
  if (c.compile) out += ", compiled";
  if (c.offload == OffloadKind::kParameters) out += ", parameters in host memory";
  if (c.offload == OffloadKind::kOptimizer) out += ", optimizer in host memory";
  if (c.offload == OffloadKind::kBoth) out += ", parameters and optimizer in host memory";
  return out;
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

std::string describe_machines(const HardwareProfile& h, std::int64_t gpus) {
  const std::int64_t per_node = std::max<std::int64_t>(1, h.gpus_per_node());
  const std::int64_t nodes = (gpus + per_node - 1) / per_node;
  return fmt::format("{} x {} ({} node{}{})", gpus, h.gpu.title, nodes, nodes == 1 ? "" : "s",
                     nodes == 1 ? "" : network_text(h));
}

}  // namespace foreshard
