// ZeRO 1 and 2: the optimizer step (Z12-O-1).

#include <algorithm>

#include "schedules/planner/clip.h"
#include "schedules/planner/frameworks/zero12.h"
#include "schedules/planner/frameworks/zero_host_time.h"
#include "schedules/planner/optimizer.h"

namespace foreshard::zero {

TensorList Zero12::own_slices(Host& host, std::size_t group, std::int64_t& covered) {
  const FlatGroup& g = groups_[group];
  TensorList slices;
  covered = 0;
  for (const ParameterId id : g.order) {
    if (!places_.at(id).mine) continue;
    const Overlap o = overlap_of(id);
    covered += o.numel;
    if (g.compact) {
      slices.push_back(flat_view(host, g.compact, o.destination, o.numel));
      continue;
    }
    SymTensor& kept = averaged_[id];
    if (!kept) {  // Unused in this step.
      kept = host.empty(host.parameter(id)->shape, grad_accum_dtype(),
                        BufferCategory::kShardedGradient);
      host.launch(OpKind::kFill, {}, {kept}, {0.0});
    }
    slices.push_back(flat_view(host, kept, o.source, o.numel));
  }
  return slices;
}

/// Overflow check (not in fp32), then one norm for each group.
void Zero12::before_optimizer(Host& host) {
  spend(host, kStep12Us);
  wait_for_copies(host);
  if (compact()) {
    for (FlatGroup& g : groups_) {
      if (g.compact) continue;
      g.compact = host.empty({g.partition}, DType::kFloat32, BufferCategory::kShardedGradient);
      host.launch(OpKind::kFill, {}, {g.compact}, {0.0});
    }
  }
  std::vector<TensorList> parts(groups_.size());
  std::int64_t covered = 0;
  if (!offload_optimizer_) {
    for (std::size_t i = 0; i < groups_.size(); ++i) parts[i] = own_slices(host, i, covered);
  }
  if (dtype_ != DType::kFloat32) {
    const SymTensor flag = host.empty({1}, DType::kUInt8, BufferCategory::kWorkspace);
    TensorList all;
    for (const TensorList& p : parts) all.insert(all.end(), p.begin(), p.end());
    check_finite(host, all, flag, false);
    reduce_overflow(host, flag);
  }
  norms_.clear();
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (!offload_optimizer_) {
      norms_.push_back(global_norm(host, parts[i], DType::kFloat32));
      mask_invalid(host, norms_.back(), true);
      continue;
    }
    TensorList own;
    for (const ParameterId id : groups_[i].order) {
      if (places_.at(id).mine && parameter_norms_.count(id) != 0)
        own.push_back(parameter_norms_.at(id));
    }
    norms_.push_back(offloaded_norm(host, own));
  }
}

/// The own partition's gradient in fp32; the slices go.
SymTensor Zero12::flat_gradient(Host& host, std::size_t group) {
  FlatGroup& g = groups_[group];
  if (g.compact) return std::exchange(g.compact, SymTensor());
  SymTensor flat;
  {
    std::int64_t covered = 0;
    const TensorList slices = own_slices(host, group, covered);
    flat = flatten(host, slices, BufferCategory::kShardedGradient, g.partition - covered);
  }
  SymTensor gradient = host.cast(flat, DType::kFloat32, BufferCategory::kShardedGradient);
  std::erase_if(averaged_,
                [&](const auto& entry) { return places_.at(entry.first).group == group; });
  return gradient;
}

void Zero12::update(Host& host, Optimizer* optimizer) {
  SymTensor norm = combined_norm(host, norms_);
  read_whether_invalid(host, norm);
  if (loss_scale_ != 1) host.launch(OpKind::kMulInPlace, {norm}, {norm}, {1 / loss_scale_});
  observe_norm(host, norm);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    FlatGroup& g = groups_[i];
    const LocalParameter& master = masters_[i];
    SymTensor gradient = offload_optimizer_ ? g.host_gradient : flat_gradient(host, i);
    if (config_.clip) read_whether_invalid(host, norm);
    unscale_and_clip(host, gradient, norm, false);
    emit({.kind = EventKind::kSubGroupStep, .number = static_cast<int>(i)});
    master.local->grad = gradient;
    if (optimizer != nullptr) optimizer->step(host, {&master, 1}, i);
    master.local->grad.reset();
    gradient.reset();
    const SymTensor own = flat_view(host, g.flat, rank_ * g.partition, g.partition);
    if (offload_optimizer_) {
      host.launch(OpKind::kCopy, {master.local}, {g.host_half});
      copy_across(host, g.host_half, own, false);
      g.compact.reset();
    } else {
      host.launch(OpKind::kCopy, {master.local}, {own});
    }
  }
  norms_.clear();
  parameter_norms_.clear();
  partition_gradients_.reset();
}

void Zero12::after_optimizer(Host& host) {
  cause_ = "updated_params";
  for (const FlatGroup& g : groups_) {
    if (world_ == 1) break;
    collective(host, CollectiveKind::kAllGather,
               flat_view(host, g.flat, rank_ * g.partition, g.partition), g.flat);
  }
  cause_.clear();
  read_timers(host, 2 * static_cast<std::int64_t>(groups_.size()) + 1);
  end_engine_step(host);
}

}  // namespace foreshard::zero
