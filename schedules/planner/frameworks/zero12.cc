#include "schedules/planner/frameworks/zero12.h"

#include <algorithm>

#include "core/integers.h"

namespace foreshard::zero {

Zero12::Zero12(const ParallelConfig& config, Extras extras)
    : Zero(config, std::move(extras)),
      stage2_(config.framework == FrameworkKind::kZero2),
      overlap_(config.zero.overlap_comm.value_or(false)) {
  if (offload_optimizer_) options_.contiguous_gradients = true;  // DeepSpeed insists.
}

// ----------------------------------------------------------------------------------------------
// construction

void Zero12::initialize(Host& host) {
  if (overlap_) reduce_stream_ = host.program().add_stream("reduce", 0);
  make_parameters(host);
  for (const ParameterId id : ids_) broadcast(host, id);
  make_groups(host.model());
  guests_ = guests_of(host.model(), rank_);
  for (FlatGroup& g : groups_) make_flat(host, g);
  if (offload_optimizer_) {
    std::int64_t largest = 0;
    for (const ParameterId id : trainable_)
      largest = std::max(largest, host.model().at(id).numel());
    host_staging_ =
        host_tensor(host, largest, dtype_, BufferCategory::kShardedGradient, options_.pin_memory);
    device_staging_ = host.empty({largest}, dtype_, BufferCategory::kBucket);
    host.launch(OpKind::kFill, {}, {device_staging_}, {0.0});
  }
  for (const ParameterId id : trainable_) {
    accumulators_.push_back(host.grad_accumulator(host.parameter(id)));
    host.register_accumulate_hook(accumulators_.back(), id.value);
  }
  for (FlatGroup& g : groups_) {  // initialize_optimizer_states
    if (offload_optimizer_) {
      g.host_gradient = host_tensor(host, g.partition, DType::kFloat32,
                                    BufferCategory::kShardedGradient, options_.pin_memory);
      host.launch(OpKind::kFill, {}, {g.host_gradient}, {0.0});
    } else {
      host.launch(OpKind::kFill, {},
                  {host.empty({g.partition}, DType::kFloat32, BufferCategory::kShardedGradient)},
                  {0.0});
    }
  }
}

/// Order and places of the trainable parameters in the flat buffers.
std::vector<FlatGroup> Zero12::flat_groups(const Model& model) const {
  std::vector<FlatGroup> groups;
  std::vector<std::vector<ParameterId>> lists(extras_.two_parameter_groups ? 2 : 1);
  for (const ParameterId id : parameter_order(model)) {
    if (!model.at(id).trainable) continue;
    const bool vector = extras_.two_parameter_groups && model.at(id).shape.size() <= 1;
    lists[vector ? 1 : 0].push_back(id);
  }
  for (std::vector<ParameterId>& list : lists) {
    FlatGroup g;
    g.registered = list;
    if (options_.round_robin_gradients) {
      for (std::size_t r = 0; r < static_cast<std::size_t>(world_); ++r) {
        for (std::size_t i = r; i < list.size(); i += static_cast<std::size_t>(world_))
          g.order.push_back(list[i]);
      }
    } else {
      g.order = list;
    }
    for (const ParameterId id : g.order) {
      g.first.push_back(g.numel);
      g.numel += model.at(id).numel();
    }
    const std::int64_t alignment = 2 * world_;
    g.partition = round_up(g.numel, alignment) / world_;
    groups.push_back(std::move(g));
  }
  return groups;
}

void Zero12::make_groups(const Model& model) {
  groups_ = flat_groups(model);
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    const FlatGroup& g = groups_[group];
    for (std::size_t i = 0; i < g.order.size(); ++i) {
      Place p{group, g.first[i], model.at(g.order[i]).numel(), false};
      const std::int64_t begin = rank_ * g.partition, end = begin + g.partition;
      p.mine = p.first < end && p.first + p.numel > begin;
      places_.emplace(g.order[i], p);
    }
  }
}

/// The parameters are copied into one buffer beside them.
void Zero12::flatten_on_device(Host& host, FlatGroup& g) {
  g.flat = host.empty({g.partition * world_}, dtype_, BufferCategory::kParameter);
  for (std::size_t i = 0; i < g.order.size(); ++i) {
    const SymTensor& parameter = host.parameter(g.order[i]);
    host.launch(OpKind::kCopy, {parameter}, {host.view_as(g.flat, parameter->shape, g.first[i])});
  }
  if (g.flat->numel > g.numel) {
    host.launch(OpKind::kFill, {}, {flat_view(host, g.flat, g.numel, g.flat->numel - g.numel)},
                {0.0});
  }
}

/// The parameters become views of one flat buffer; the fp32 copy of this rank's partition is what
/// the optimizer sees.
void Zero12::make_flat(Host& host, FlatGroup& g) {
  RankProgram& program = host.program().program();
  flatten_on_device(host, g);
  for (std::size_t i = 0; i < g.order.size(); ++i) {
    const ParameterId id = g.order[i];
    SymTensor view = host.view_as(g.flat, host.parameter(id)->shape, g.first[i]);
    host.set_requires_grad(view, true);
    program.parameters[id.value].local = host.id_of(view);
    host.set_parameter(id, std::move(view));
  }
  const SymTensor own = flat_view(host, g.flat, rank_ * g.partition, g.partition);
  SymTensor clone = host.empty({g.partition}, dtype_, BufferCategory::kShardedParameter);
  host.launch(OpKind::kCopy, {own}, {clone});
  SymTensor master;
  if (offload_optimizer_) {
    master = widen_to_host(host, clone, BufferCategory::kShardedParameter, options_.pin_memory);
    g.host_half = host_tensor(host, g.partition, dtype_, BufferCategory::kShardedParameter,
                              options_.pin_memory);
    host.launch(OpKind::kFill, {}, {g.host_half}, {0.0});
  } else {
    master = host.cast(clone, DType::kFloat32, BufferCategory::kShardedParameter);
  }
  masters_.push_back(
      {g.order.empty() ? ParameterId() : g.order[0], std::move(master), g.partition});
}

std::vector<int> Zero12::owners(ParameterId id) const {
  const Place& p = places_.at(id);
  std::vector<int> ranks;
  const std::int64_t size = groups_[p.group].partition;
  for (std::int64_t r = p.first / size; r * size < p.first + p.numel; ++r)
    ranks.push_back(static_cast<int>(r));
  return ranks;
}

Zero12::Overlap Zero12::overlap_of(ParameterId id, std::int64_t rank) const {
  const Place& p = places_.at(id);
  const std::int64_t size = groups_[p.group].partition, begin = rank * size;
  const std::int64_t from = std::max(begin, p.first),
                     to = std::min(begin + size, p.first + p.numel);
  return {from - p.first, from - begin, to - from};
}

std::int64_t Zero12::own_first_offset(std::size_t group) const {
  const FlatGroup& g = groups_[group];
  for (std::size_t i = 0; i < g.order.size(); ++i) {
    if (places_.at(g.order[i]).mine)
      return std::max<std::int64_t>(0, rank_ * g.partition - g.first[i]);
  }
  return 0;
}

std::unique_ptr<Framework> make_zero12(const ParallelConfig& config, Extras extras) {
  return std::make_unique<Zero12>(config, std::move(extras));
}

}  // namespace foreshard::zero
