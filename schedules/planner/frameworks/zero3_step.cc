// ZeRO 3: the optimizer step, sub-group by sub-group (Z3-O-1).

#include <limits>
#include <utility>

#include "schedules/planner/clip.h"
#include "schedules/planner/frameworks/zero3.h"
#include "schedules/planner/frameworks/zero_host_time.h"
#include "schedules/planner/optimizer.h"

namespace foreshard::zero {

void Zero3::before_model(Host& host, bool training) {
  Zero::before_model(host, training);
  reset_step(host);
}

/// Everything is released; overflow check (fp16), then one fp64 norm for each sub-group (fp32 where
/// it is offloaded).
void Zero3::before_optimizer(Host& host) {
  carried_.clear();
  for (const ParameterId id : ids_) {
    const PartitionedParameter& p = parameters_.at(id);
    if (p.persistent && p.status == Status::kAvailable && p.full->storage != p.shard->storage) {
      carried_.emplace_back(id, p.full->storage->buffer);
    }
  }
  bucket_.clear();
  elements_ = 0;
  spend(host, kStep3.of(ids_.size()));
  release_all(host);
  if (dtype_ == DType::kFloat16) {
    SymTensor flag;
    {
      const StreamGuard guard(host, reduce_stream_);
      flag = host.empty({1}, DType::kUInt8, BufferCategory::kWorkspace);
      // isinf and isnan: a mask of one byte an element each, and its any().
      for (int i = 0; i < 2; ++i) {
        const SymTensor mask =
            in_host_memory(gradients_)
                ? host_tensor(host, gradients_->numel, DType::kBool, BufferCategory::kWorkspace,
                              false)
                : host.empty({gradients_->numel}, DType::kBool, BufferCategory::kWorkspace);
        host.launch(OpKind::kCompare, {gradients_}, {mask},
                    {4.0, std::numeric_limits<double>::infinity()});
      }
      host.launch(OpKind::kFill, {}, {flag}, {0.0});
    }
    wait(host, host.stream(), reduce_stream_);
    reduce_overflow(host, flag);
  }
  norms_.clear();
  for (const auto& group : sub_groups_) {
    TensorList parts;
    for (const ParameterId id : group) {
      if (!offload_optimizer_) {
        parts.push_back(parameters_.at(id).gradient);
      } else if (parameter_norms_.count(id) != 0) {
        parts.push_back(parameter_norms_.at(id));
      }
    }
    norms_.push_back(offload_optimizer_ ? offloaded_norm(host, parts)
                                        : global_norm(host, parts, DType::kFloat64));
    if (!offload_optimizer_) mask_invalid(host, norms_.back(), false);
  }
}

/// An fp32 gradient of the sub-group, its update, the 16-bit parts from the fp32 ones; then the
/// next sub-group.
void Zero3::update(Host& host, Optimizer* optimizer) {
  SymTensor norm = combined_norm(host, norms_);
  read_whether_invalid(host, norm);
  if (loss_scale_ != 1) host.launch(OpKind::kMulInPlace, {norm}, {norm}, {1 / loss_scale_});
  observe_norm(host, norm);
  for (std::size_t i = 0; i < sub_groups_.size(); ++i) {
    const LocalParameter& master = masters_[i];
    const SymTensor& parts = sub_group_parts_[i];
    if (offload_optimizer_) {
      master.local->grad = offloaded_gradients_[i];
    } else {
      TensorList list;
      for (const ParameterId id : sub_groups_[i]) list.push_back(parameters_.at(id).gradient);
      const SymTensor flat = flatten(host, list, BufferCategory::kShardedGradient);
      master.local->grad = host.cast(flat, DType::kFloat32, BufferCategory::kShardedGradient);
    }
    unscale_and_clip(host, master.local->grad, norm, true);
    emit({.kind = EventKind::kSubGroupStep, .number = static_cast<int>(i)});
    if (optimizer != nullptr) optimizer->step(host, {&master, 1}, i);
    copy_back(host, master.local, parts);
    master.local->grad.reset();
  }
  norms_.clear();
  parameter_norms_.clear();
}

/// parts.copy_(master) from wherever to wherever: the conversion is made where the fp32 values are.
void Zero3::copy_back(Host& host, const SymTensor& master, const SymTensor& parts) {
  if (in_host_memory(master) == in_host_memory(parts)) {
    host.launch(OpKind::kCopy, {master}, {parts});
    return;
  }
  if (dtype_ == DType::kFloat32) return copy_across(host, master, parts, true);
  SymTensor half;
  if (in_host_memory(master)) {
    half = host_tensor(host, master->numel, dtype_, BufferCategory::kShardedParameter, false);
    host.launch(OpKind::kCopy, {master}, {half});
  } else {
    half = host.cast(master, dtype_, BufferCategory::kShardedParameter);
  }
  copy_across(host, half, parts, true);
}

void Zero3::after_optimizer(Host& host) {
  cause_ = "persistent";
  gather_persistent(host);
  cause_.clear();
  for (const ParameterId id : trainable_) parameters_.at(id).secondary.reset();
  std::vector<Carry>& carries = host.program().program().carries;
  carries.clear();  // Persistent parameters live across the end of a step.
  for (const auto& [id, before] : carried_) {
    const PartitionedParameter& p = parameters_.at(id);
    if (step_ > 0 && p.status == Status::kAvailable)
      carries.push_back({before, p.full->storage->buffer});
  }
  read_timers(host, 1);
  end_engine_step(host);
}

}  // namespace foreshard::zero
