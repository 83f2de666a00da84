#include "schedules/planner/frameworks/zero3.h"

#include <algorithm>

#include "schedules/planner/clip.h"

namespace foreshard::zero {

Zero3::Zero3(const ParallelConfig& config, Extras extras)
    : Zero(config, std::move(extras)), overlap_(config.zero.overlap_comm.value_or(true)) {}

// ---------------------------------------------------------------------------------------------- construction

void Zero3::initialize(Host& host) {
  if (overlap_) {
    gather_stream_ = host.program().add_stream("all_gather", 0);
    reduce_stream_ = host.program().add_stream("reduce", 0);
  }
  make_parameters(host, 2);
  partition(host);
  make_sub_groups();
  watch_modules(host, ModuleId(0));
  for (const std::vector<ParameterId>& g : sub_groups_) {
    TensorList shards;
    for (const ParameterId id : g) shards.push_back(parameters_.at(id).shard);
    const SymTensor flat = flatten(host, shards, BufferCategory::kShardedParameter);
    SymTensor master = host.cast(flat, DType::kFloat32, BufferCategory::kShardedParameter);
    if (master == flat) master = host.detach(flat);
    masters_.push_back({g.empty() ? ParameterId() : g[0], std::move(master), flat->numel});
  }
  if (options_.contiguous_gradients) {
    const DType sent = communication_dtype(dtype_);
    bucket_buffer_ = host.empty({options_.reduce_bucket_size}, sent, BufferCategory::kBucket);
  }
  for (const std::vector<ParameterId>& g : sub_groups_) {
    for (const ParameterId id : g) {        // DS-INIT: the optimizer gathers each parameter once and drops it.
      const PartitionedParameter& p = parameters_.at(id);
      const SymTensor whole = host.empty({world_ * p.partition}, dtype_, BufferCategory::kGatherOutput);
      collective(host, CollectiveKind::kAllGather, p.shard, whole);
      sync_device(host, "");
    }
  }
}

/// Z3-P-1, Z3-P-2: this rank's parts in one buffer, the last rank's padded with zeros; a static buffer of gradients.
void Zero3::partition(Host& host) {
  std::int64_t total = 0, trainable = 0, persistent = 0;
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    PartitionedParameter p;
    p.numel = host.model().at(ids_[i]).numel();
    p.partition = (p.numel + world_ - 1) / world_;
    p.trainable = host.model().at(ids_[i]).trainable;
    if (p.numel <= options_.param_persistence_threshold && persistent + p.numel <= options_.model_persistence_threshold) {
      p.persistent = true;
      persistent += p.numel;
    }
    total += p.partition;
    trainable += p.trainable ? p.partition : 0;
    position_[ids_[i]] = i;
    parameters_.emplace(ids_[i], std::move(p));
  }
  const SymTensor parts = host.empty({total}, dtype_, BufferCategory::kShardedParameter);
  const SymTensor gradients = host.empty({trainable}, dtype_, BufferCategory::kShardedGradient);
  std::int64_t offset = 0, gradient_offset = 0;
  for (const ParameterId id : ids_) {
    PartitionedParameter& p = parameters_.at(id);
    const SymTensor whole = host.parameter(id);
    p.shard = flat_view(host, parts, offset, p.partition);
    const std::int64_t begin = std::min(rank_ * p.partition, p.numel), n = std::min(p.partition, p.numel - begin);
    if (n > 0) host.launch(OpKind::kCopy, {flat_view(host, whole, begin, n)}, {flat_view(host, parts, offset, n)});
    if (n < p.partition) {
      host.launch(OpKind::kFill, {}, {flat_view(host, parts, offset + n, p.partition - n)}, {0.0});
    }
    offset += p.partition;
    if (p.trainable) {
      p.gradient = flat_view(host, gradients, gradient_offset, p.partition);
      gradient_offset += p.partition;
    }
    const StreamGuard guard(host, gather_stream_);
    p.full = host.unallocated(whole->shape, dtype_, world_ * p.partition * size_of(dtype_), BufferCategory::kUnshardedParameter);
    host.set_requires_grad(p.full, p.trainable);
    ParameterView& view = host.program().program().parameters[id.value];
    view.local = n > 0 ? host.id_of(flat_view(host, p.shard, 0, n)) : TensorId();
    view.first_element = begin;
    view.elements = n;
    view.shard_dim = 0;
    host.set_parameter(id, p.full);
    if (!p.trainable) continue;
    accumulators_.push_back(host.grad_accumulator(p.full));
    host.register_accumulate_hook(accumulators_.back(), id.value);
  }
}

void Zero3::make_sub_groups() {
  std::vector<std::vector<ParameterId>> lists(extras_.two_parameter_groups ? 2 : 1);
  for (const ParameterId id : trainable_) {
    const bool vector = extras_.two_parameter_groups && parameters_.at(id).full->shape.rank <= 1;
    lists[vector ? 1 : 0].push_back(id);
  }
  for (const std::vector<ParameterId>& list : lists) {
    std::vector<ParameterId> group;
    std::int64_t numel = 0;
    for (const ParameterId id : list) {
      group.push_back(id);
      numel += parameters_.at(id).partition;
      if (numel < options_.sub_group_size && id != list.back()) continue;
      sub_groups_.push_back(std::move(group));
      group.clear();
      numel = 0;
    }
  }
}

/// Every module that runs has hooks, below a leaf module none (Z3-P-3).
void Zero3::watch_modules(Host& host, ModuleId m) {
  const Module& module = host.model().at(m);
  if (module.has_forward) host.watch(m);
  const auto& classes = extras_.leaf_classes;
  if (std::find(classes.begin(), classes.end(), module.class_name) != classes.end()) {
    leaves_.insert(m);
    return;
  }
  for (const ChildModule& c : module.children) watch_modules(host, c.id);
}

/// Z3-P-2: one all-gather each, then the host waits for the device.
void Zero3::gather_persistent(Host& host) {
  bool any = false;
  for (const ParameterId id : ids_) {
    PartitionedParameter& p = parameters_.at(id);
    if (!p.persistent) continue;
    any = true;
    {
      const StreamGuard guard(host, gather_stream_);
      host.allocate_storage(p.full);
    }
    const SymTensor whole = flat_view(host, p.full, 0, world_ * p.partition);
    if (world_ > 1) {
      collective(host, CollectiveKind::kAllGather, p.shard, whole);
    } else {
      host.launch(OpKind::kCopy, {p.shard}, {whole});
    }
    p.status = Status::kAvailable;
  }
  if (any) sync_device(host, cause_);
}

// ---------------------------------------------------------------------------------------------- step

void Zero3::before_model(Host& host, bool training) {
  Zero::before_model(host, training);
  reset_step(host);
}

/// Z3-O-1: everything is released, one fp64 norm per sub-group, then an fp32 gradient for each sub-group.
void Zero3::before_optimizer(Host& host) {
  std::vector<Carry>& carries = host.program().program().carries;
  carries.clear();                         // Persistent parameters live across the end of a step.
  for (const ParameterId id : ids_) {
    const PartitionedParameter& p = parameters_.at(id);
    if (p.persistent) carries.push_back({p.full->storage->buffer, BufferId()});
  }
  release_all(host);
  if (dtype_ == DType::kFloat16) {
    wait(host, host.stream(), reduce_stream_);
    cause_ = "overflow";
    const SymTensor flag = host.empty({1}, DType::kUInt8, BufferCategory::kWorkspace);
    host.launch(OpKind::kFill, {}, {flag}, {0.0});
    collective(host, CollectiveKind::kAllReduce, flag, flag, -1, ReduceOp::kMax);
    cause_.clear();
  }
  TensorList norms;
  std::vector<TensorList> parts(sub_groups_.size());
  for (std::size_t i = 0; i < sub_groups_.size(); ++i) {
    for (const ParameterId id : sub_groups_[i]) parts[i].push_back(parameters_.at(id).gradient);
    norms.push_back(global_norm(host, parts[i], DType::kFloat64));
  }
  const SymTensor norm = norms.size() == 1 ? norms[0] : vector_norm(host, stack_scalars(host, norms));
  observe_norm(host, norm);
  for (std::size_t i = 0; i < sub_groups_.size(); ++i) {
    SymTensor flat = flatten(host, parts[i], BufferCategory::kShardedGradient);
    SymTensor gradient = host.cast(flat, DType::kFloat32, BufferCategory::kShardedGradient);
    flat.reset();
    const TensorList scaled{gradient};
    if (config_.clip) scale_gradients(host, scaled, norm, config_.max_norm);
    masters_[i].local->grad = std::move(gradient);
    emit({.kind = EventKind::kSubGroupStep, .number = static_cast<int>(i)});
  }
}

void Zero3::after_optimizer(Host& host) {
  for (std::size_t i = 0; i < sub_groups_.size(); ++i) {
    masters_[i].local->grad.reset();
    std::int64_t offset = 0;
    for (const ParameterId id : sub_groups_[i]) {
      PartitionedParameter& p = parameters_.at(id);
      host.launch(OpKind::kCopy, {flat_view(host, masters_[i].local, offset, p.partition)}, {p.shard});
      offset += p.partition;
    }
  }
  cause_ = "persistent";
  gather_persistent(host);
  cause_.clear();
  auto carry = host.program().program().carries.begin();
  for (const ParameterId id : ids_) {
    const PartitionedParameter& p = parameters_.at(id);
    if (p.persistent) (carry++)->now = p.full->storage->buffer;
  }
  if (step_ == 0) host.program().program().carries.clear();   // Nothing was gathered before the first step.
  throughput_timer(host);
}

std::unique_ptr<Framework> make_zero3(const ParallelConfig& config, Extras extras) {
  return std::make_unique<Zero3>(config, std::move(extras));
}

}  // namespace foreshard::zero
