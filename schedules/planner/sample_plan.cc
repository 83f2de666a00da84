#include "schedules/planner/sample_plan.h"

#include "models/ops/op_flops.h"
#include "schedules/planner/planner.h"

namespace foreshard {

Schedule sample_plan(const Model& model, std::int64_t micro_batch, std::int64_t sequence) {
  ParallelConfig config;
  config.framework = FrameworkKind::kUnsharded;
  config.micro_batch = micro_batch;
  config.sequence = sequence;
  config.clip = false;
  config.model_dtype = DType::kBFloat16;
  config.optimizer = OptimizerKind::kNone;
  Model in_16_bit = model;
  in_16_bit.set_dtype(config.model_dtype);
  for (ModelArgument& argument : in_16_bit.arguments) {
    if (!argument.tokens) argument.dtype = config.model_dtype;
  }
  return plan(in_16_bit, config, {});
}

Flops counted_flops(const Launch& l) {
  const bool attention = kernel_class_of(l.op) == KernelClass::kAttention;
  return attention && l.dims[5] > 0 ? l.flops * 2 : l.flops;
}

}  // namespace foreshard
