#include "schedules/planner/frameworks/zero12.h"

#include <algorithm>

#include "schedules/planner/clip.h"

namespace foreshard::zero {

Zero12::Zero12(const ParallelConfig& config, Extras extras)
    : Zero(config, std::move(extras)), stage2_(config.framework == FrameworkKind::kZero2),
      overlap_(config.zero.overlap_comm.value_or(false)) {}

// ---------------------------------------------------------------------------------------------- construction

void Zero12::initialize(Host& host) {
  if (overlap_) reduce_stream_ = host.program().add_stream("reduce", 0);
  make_parameters(host, 1);
  make_groups(host);
  for (FlatGroup& g : groups_) make_flat(host, g);
  for (const ParameterId id : trainable_) {
    accumulators_.push_back(host.grad_accumulator(host.parameter(id)));
    host.register_accumulate_hook(accumulators_.back(), id.value);
  }
}

void Zero12::make_groups(Host& host) {
  std::vector<std::vector<ParameterId>> lists(extras_.two_parameter_groups ? 2 : 1);
  for (const ParameterId id : trainable_) {
    const bool vector = extras_.two_parameter_groups && host.model().at(id).shape.size() <= 1;
    lists[vector ? 1 : 0].push_back(id);
  }
  for (std::vector<ParameterId>& list : lists) {
    FlatGroup g;
    g.registered = list;
    if (options_.round_robin_gradients) {
      for (std::size_t r = 0; r < static_cast<std::size_t>(world_); ++r) {
        for (std::size_t i = r; i < list.size(); i += static_cast<std::size_t>(world_)) g.order.push_back(list[i]);
      }
    } else {
      g.order = list;
    }
    for (const ParameterId id : g.order) {
      g.first.push_back(g.numel);
      g.numel += host.model().at(id).numel();
    }
    const std::int64_t alignment = 2 * world_;
    g.partition = (g.numel + alignment - 1) / alignment * alignment / world_;
    for (std::size_t i = 0; i < g.order.size(); ++i) {
      Place p{groups_.size(), g.first[i], host.model().at(g.order[i]).numel(), false};
      const std::int64_t begin = rank_ * g.partition, end = begin + g.partition;
      p.mine = p.first < end && p.first + p.numel > begin;
      places_.emplace(g.order[i], p);
    }
    groups_.push_back(std::move(g));
  }
}

/// The parameters become views of one flat buffer; the fp32 copy of this rank's partition is what the optimizer sees.
void Zero12::make_flat(Host& host, FlatGroup& g) {
  RankProgram& program = host.program().program();
  g.flat = host.empty({g.partition * world_}, dtype_, BufferCategory::kParameter);
  for (std::size_t i = 0; i < g.order.size(); ++i) {
    const ParameterId id = g.order[i];
    const Shape shape = host.parameter(id)->shape;
    SymTensor view = host.view_as(g.flat, shape, g.first[i]);
    host.launch(OpKind::kCopy, {host.parameter(id)}, {view});
    host.set_requires_grad(view, true);
    program.parameters[id.value].local = host.id_of(view);
    host.set_parameter(id, std::move(view));
  }
  if (g.flat->numel > g.numel) {
    host.launch(OpKind::kFill, {}, {flat_view(host, g.flat, g.numel, g.flat->numel - g.numel)}, {0.0});
  }
  const SymTensor own = flat_view(host, g.flat, rank_ * g.partition, g.partition);
  SymTensor master = host.empty({g.partition}, DType::kFloat32, BufferCategory::kShardedParameter);
  host.launch(OpKind::kCopy, {own}, {master});
  masters_.push_back({g.order.empty() ? ParameterId() : g.order[0], std::move(master), g.partition});
}

std::vector<int> Zero12::owners(ParameterId id) const {
  const Place& p = places_.at(id);
  std::vector<int> ranks;
  const std::int64_t size = groups_[p.group].partition;
  for (std::int64_t r = p.first / size; r * size < p.first + p.numel; ++r) ranks.push_back(static_cast<int>(r));
  return ranks;
}

std::int64_t Zero12::own_first_offset(std::size_t group) const {
  const FlatGroup& g = groups_[group];
  for (std::size_t i = 0; i < g.order.size(); ++i) {
    if (places_.at(g.order[i]).mine) return std::max<std::int64_t>(0, rank_ * g.partition - g.first[i]);
  }
  return 0;
}

// ---------------------------------------------------------------------------------------------- step

TensorList Zero12::own_slices(Host& host, std::size_t group, std::int64_t& covered) {
  const FlatGroup& g = groups_[group];
  const std::int64_t begin = rank_ * g.partition, end = begin + g.partition;
  TensorList slices;
  covered = 0;
  for (std::size_t i = 0; i < g.order.size(); ++i) {
    const Place& p = places_.at(g.order[i]);
    if (!p.mine) continue;
    const std::int64_t from = std::max(begin, p.first), to = std::min(end, p.first + p.numel);
    const auto found = averaged_.find(g.order[i]);
    covered += to - from;
    if (found != averaged_.end()) {
      slices.push_back(flat_view(host, found->second, from - p.first, to - from));
    } else {
      slices.push_back(host.empty({to - from}, dtype_, BufferCategory::kShardedGradient));
      host.launch(OpKind::kFill, {}, {slices.back()}, {0.0});
    }
  }
  return slices;
}

/// Z12-O-1: overflow check, one norm per group, then an fp32 gradient of the own partition for each group.
void Zero12::before_optimizer(Host& host) {
  if (dtype_ != DType::kFloat32) {
    cause_ = "overflow";
    const SymTensor flag = host.empty({1}, DType::kUInt8, BufferCategory::kWorkspace);
    host.launch(OpKind::kFill, {}, {flag}, {0.0});
    collective(host, CollectiveKind::kAllReduce, flag, flag, -1, ReduceOp::kMax);
    cause_.clear();
  }
  TensorList norms;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    std::int64_t covered = 0;
    norms.push_back(global_norm(host, own_slices(host, i, covered), DType::kFloat32));
  }
  SymTensor norm = norms[0];
  if (norms.size() > 1) norm = vector_norm(host, stack_scalars(host, norms));
  observe_norm(host, norm);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    std::int64_t covered = 0;
    SymTensor flat;
    {
      const TensorList slices = own_slices(host, i, covered);
      flat = flatten(host, slices, BufferCategory::kShardedGradient, groups_[i].partition - covered);
    }
    SymTensor gradient = host.cast(flat, DType::kFloat32, BufferCategory::kShardedGradient);
    flat.reset();
    std::erase_if(averaged_, [&](const auto& entry) { return places_.at(entry.first).group == i; });
    const TensorList scaled{gradient};
    if (config_.clip) scale_gradients(host, scaled, norm, config_.max_norm);
    masters_[i].local->grad = std::move(gradient);
    emit({.kind = EventKind::kSubGroupStep, .number = static_cast<int>(i)});
  }
  partition_gradients_.reset();
}

void Zero12::after_optimizer(Host& host) {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    masters_[i].local->grad.reset();
    const FlatGroup& g = groups_[i];
    host.launch(OpKind::kCopy, {masters_[i].local}, {flat_view(host, g.flat, rank_ * g.partition, g.partition)});
  }
  cause_ = "updated_params";
  for (const FlatGroup& g : groups_) {
    if (world_ == 1) break;
    collective(host, CollectiveKind::kAllGather, flat_view(host, g.flat, rank_ * g.partition, g.partition), g.flat);
  }
  cause_.clear();
  throughput_timer(host);
}

std::unique_ptr<Framework> make_zero12(const ParallelConfig& config, Extras extras) {
  return std::make_unique<Zero12>(config, std::move(extras));
}

}  // namespace foreshard::zero
