#include "schedules/planner/frameworks/zero3.h"

#include <algorithm>
#include <utility>

#include "core/integers.h"

namespace foreshard::zero {
namespace {

/// A module of more elements is never taken for fine-grained (Z3_MAX_LEAF_SIZE).
constexpr std::int64_t kLargestLeaf = 1'000'000'000;

}  // namespace

Zero3::Zero3(const ParallelConfig& config, Extras extras)
    : Zero(config, std::move(extras)), overlap_(config.zero.overlap_comm.value_or(true)) {}

void Zero3::initialize(Host& host) {
  if (config_.float8 != Float8Kind::kNone)
    throw InputError(Issue{"--float8", "",
                           "8-bit products are not planned under ZeRO-3, whose linear function is "
                           "DeepSpeed's own",
                           "fsdp2, fsdp1, ddp, zero1 and zero2 take them"});
  if (overlap_) {
    gather_stream_ = host.program().add_stream("all_gather", 0);
    reduce_stream_ = host.program().add_stream("reduce", 0);
  }
  host.set_function_linear(
      true);  // torch.nn.functional.linear is replaced (memory_efficient_linear).
  if (options_.partitioned_construction) {
    make_parameters(host, [&](ParameterId id) {
      if (parameters_.empty()) describe_parameters(host);
      partition(host, id);
    });
  } else {
    make_parameters(host);
    describe_parameters(host);
    for (const ParameterId id : ids_) broadcast(host, id);
    for (const ParameterId id : ids_) partition(host, id);
  }
  if (options_.hpz_partition_size > 1)
    secondary_group_ = host.add_group("secondary", options_.hpz_partition_size, 1);
  if (reduces_quantised()) {
    node_group_ = host.add_group("node", options_.gpus_per_node, 1);
    across_nodes_group_ =
        host.add_group("across_nodes", world_ / options_.gpus_per_node, options_.gpus_per_node);
  }
  find_leaves(host.model());
  watch_modules(host, ModuleId(0));
  make_sub_groups();
  move_parts(host);
  make_masters(host);
  make_gradients(host);
  publish(host);
  read_timers(host, 1);  // Of the optimizer's construction.
  gather_once(host);
}

// ----------------------------------------------------------------------------------------------
// parameters

/// Z3-P-1, Z3-P-2.
void Zero3::describe_parameters(Host& host) {
  std::int64_t persistent = 0;
  parameters_.resize(host.model().parameters.size());
  position_.resize(host.model().parameters.size());
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    PartitionedParameter p;
    p.numel = host.model().at(ids_[i]).numel();
    p.partition = ceil_div(p.numel, world_);
    p.trainable = host.model().at(ids_[i]).trainable;
    if (p.numel <= options_.param_persistence_threshold &&
        persistent + p.numel <= options_.model_persistence_threshold) {
      p.persistent = true;
      persistent += p.numel;
    }
    position_.at(ids_[i]) = i;
    parameters_.at(ids_[i]) = std::move(p);
  }
}

/// zero.Init of one parameter: broadcast, cut and dropped.
void Zero3::partition(Host& host, ParameterId id) {
  PartitionedParameter& p = parameters_.at(id);
  broadcast(host, id);
  const SymTensor whole = host.parameter(id);
  p.full = whole;
  p.nothing = host.unallocated(whole->shape, dtype_, 0, BufferCategory::kUnshardedParameter);
  if (options_.hpz_partition_size > 1) make_secondary(host, p);
  p.shard = offload_parameters_
                ? host_tensor(host, p.partition, dtype_, BufferCategory::kShardedParameter,
                              options_.pin_memory)
                : host.empty({p.partition}, dtype_, BufferCategory::kShardedParameter);
  const std::int64_t begin = std::min(rank_ * p.partition, p.numel),
                     n = std::min(p.partition, p.numel - begin);
  if (n < p.partition) {  // torch.empty in DeepSpeed: any values.
    host.launch(OpKind::kFill, {}, {flat_view(host, p.shard, n, p.partition - n)}, {0.0});
  }
  if (n > 0) {
    const SymTensor from = flat_view(host, whole, begin, n), to = flat_view(host, p.shard, 0, n);
    if (offload_parameters_) {
      copy_across(host, from, to, true);
    } else {
      host.launch(OpKind::kCopy, {from}, {to});
    }
  }
  host.set_data(p.full, p.nothing);
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
  for (std::size_t i = 0; i < sub_groups_.size(); ++i) {
    std::int64_t position = 0;
    for (const ParameterId id : sub_groups_[i]) {
      parameters_.at(id).sub_group = i;
      parameters_.at(id).position = position;
      position += parameters_.at(id).partition;
    }
  }
}

// ----------------------------------------------------------------------------------------------
// modules

/// Z3-P-3: modules named by class, or whose parameters per module are few
/// (stage3_module_granularity_threshold).
void Zero3::find_leaves(const Model& model) {
  const auto is_named = [&](ModuleId m) {
    const auto& classes = options_.leaf_classes;
    return std::find(classes.begin(), classes.end(), model.at(m).class_name) != classes.end();
  };
  std::map<ModuleId, std::int64_t> granularity, size;
  const auto measure = [&](const auto& self, ModuleId m) -> std::pair<std::int64_t, std::int64_t> {
    const Module& module = model.at(m);
    const std::int64_t total = [&] {
      std::int64_t n = 0;
      for (const ParameterId id : parameters_of(model, m, true)) n += parameters_.at(id).numel;
      return n;
    }();
    granularity[m] = INT64_MAX;
    size[m] = total;
    if (total == 0) return {0, 0};
    std::int64_t layers = 0, numel = 0;
    for (const OwnedParameter& p : module.parameters) numel += parameters_.at(p.id).numel;
    if (module.children.empty()) return {1, numel};
    for (const ChildModule& c : module.children) {
      const auto [l, n] = self(self, c.id);
      layers += l;
      numel += n;
    }
    if (!module.has_forward) return {layers, numel};  // ModuleList and the like.
    ++layers;
    if (numel <= kLargestLeaf) granularity[m] = numel / layers;
    return {layers, numel};
  };
  const std::int64_t threshold = options_.module_granularity_threshold;
  if (threshold > 0) {
    measure(measure, ModuleId(0));
    fast_leaves_ = true;
  }
  const auto visit = [&](const auto& self, ModuleId m) -> void {
    if (is_named(m) || (threshold > 0 && size[m] > 0 && granularity[m] <= threshold)) {
      leaves_.insert(m);
      for (const ParameterId id : parameters_of(model, m, true)) {
        if (parameters_.at(id).trainable) leaf_of_[id] = m;
      }
      return;
    }
    for (const ChildModule& c : model.at(m).children) self(self, c.id);
  };
  visit(visit, ModuleId(0));
}

/// Every module that runs has hooks, below a leaf module none.
void Zero3::watch_modules(Host& host, ModuleId m) {
  if (host.model().at(m).has_forward) host.watch(m);
  if (is_leaf(m)) return;
  for (const ChildModule& c : host.model().at(m).children) watch_modules(host, c.id);
}

// ----------------------------------------------------------------------------------------------
// optimizer

/// The parts of trainable parameters side by side: on the device through host memory (defragment),
/// or in page-locked memory.
void Zero3::move_parts(Host& host) {
  std::int64_t total = 0;
  for (const ParameterId id : trainable_) total += parameters_.at(id).partition;
  const SymTensor staging =
      host_tensor(host, total, dtype_, BufferCategory::kShardedParameter, offload_parameters_);
  std::int64_t offset = 0;
  for (const auto& group : sub_groups_) {
    for (const ParameterId id : group) {
      PartitionedParameter& p = parameters_.at(id);
      const SymTensor place = flat_view(host, staging, offset, p.partition);
      if (offload_parameters_) {
        host.launch(OpKind::kCopy, {p.shard}, {place});
        p.shard = place;
      } else {
        copy_across(host, p.shard, place, true);
        p.shard.reset();
      }
      offset += p.partition;
    }
  }
  SymTensor flat = staging;
  if (!offload_parameters_) {
    flat = host.empty({total}, dtype_, BufferCategory::kShardedParameter);
    copy_across(host, staging, flat, true);
  }
  offset = 0;
  for (const auto& group : sub_groups_) {
    std::int64_t numel = 0;
    for (const ParameterId id : group) {
      PartitionedParameter& p = parameters_.at(id);
      p.shard = flat_view(host, flat, offset + numel, p.partition);
      numel += p.partition;
    }
    sub_group_parts_.push_back(flat_view(host, flat, offset, numel));
    offset += numel;
  }
}

/// subgroup_to_device: with a ratio below 1 the first sub-groups stay on the device.
bool Zero3::steps_on_cpu(std::size_t sub_group) const {
  const auto on_device = static_cast<std::size_t>((1 - options_.offload_ratio) *
                                                  static_cast<double>(sub_groups_.size()));
  return offload_optimizer_ && sub_group >= on_device;
}

/// _create_fp32_partitions, initialize_optimizer_states: a conversion, then a clone of it.
void Zero3::make_masters(Host& host) {
  std::int64_t largest = 0;
  for (std::size_t i = 0; i < sub_groups_.size(); ++i) {
    const SymTensor& parts = sub_group_parts_[i];
    largest = std::max(largest, parts->numel);
    SymTensor master;
    if (steps_on_cpu(i)) {
      if (in_host_memory(parts)) {
        master = host_tensor(host, parts->numel, DType::kFloat32, BufferCategory::kShardedParameter,
                             false);
        host.launch(OpKind::kCopy, {parts}, {master});
      } else {
        master = widen_to_host(host, parts, BufferCategory::kShardedParameter, false);
      }
    } else {
      const SymTensor here = to_device(host, parts, BufferCategory::kShardedParameter, true);
      const SymTensor wide = host.cast(here, DType::kFloat32, BufferCategory::kShardedParameter);
      master = host.empty({parts->numel}, DType::kFloat32, BufferCategory::kShardedParameter);
      host.launch(OpKind::kCopy, {wide}, {master});
    }
    masters_.push_back({sub_groups_[i].empty() ? ParameterId() : sub_groups_[i][0],
                        std::move(master), parts->numel});
  }
  if (!offload_optimizer_) {
    host.launch(OpKind::kFill, {},
                {host.empty({largest}, DType::kFloat32, BufferCategory::kShardedGradient)}, {0.0});
    return;
  }
  make_offloaded_gradients(host);
}

/// Zeros in host memory, which sub-groups on the device take up.
void Zero3::make_offloaded_gradients(Host& host) {
  for (std::size_t i = 0; i < sub_groups_.size(); ++i) {
    SymTensor zeros = host_tensor(host, sub_group_parts_[i]->numel, DType::kFloat32,
                                  BufferCategory::kShardedGradient, options_.pin_memory);
    host.launch(OpKind::kFill, {}, {zeros}, {0.0});
    if (!steps_on_cpu(i)) zeros = to_device(host, zeros, BufferCategory::kShardedGradient, true);
    offloaded_gradients_.push_back(std::move(zeros));
  }
}

void Zero3::make_gradients(Host& host) {
  if (options_.contiguous_gradients) {
    bucket_buffer_ =
        host.empty({options_.reduce_bucket_size}, communication_dtype(), BufferCategory::kBucket);
  }
  std::int64_t total = 0, offset = 0;
  for (const ParameterId id : trainable_) total += parameters_.at(id).partition;
  gradients_ = offload_optimizer_
                   ? host_tensor(host, total, grad_accum_dtype(), BufferCategory::kShardedGradient,
                                 options_.pin_memory)
                   : host.empty({total}, grad_accum_dtype(), BufferCategory::kShardedGradient);
  host.launch(OpKind::kFill, {}, {gradients_}, {0.0});
  for (const auto& group : sub_groups_) {
    for (const ParameterId id : group) {
      PartitionedParameter& p = parameters_.at(id);
      p.gradient = flat_view(host, gradients_, offset, p.partition);
      offset += p.partition;
    }
  }
}

void Zero3::publish(Host& host) {
  for (const ParameterId id : ids_) {
    const PartitionedParameter& p = parameters_.at(id);
    const std::int64_t begin = std::min(rank_ * p.partition, p.numel),
                       n = std::min(p.partition, p.numel - begin);
    ParameterView& view = host.program().program().parameters[id.value];
    view.local = n > 0 ? host.id_of(flat_view(host, p.shard, 0, n)) : TensorId();
    view.first_element = begin;
    view.elements = n;
    view.shard_dim = 0;
  }
}

/// DS-INIT: the optimizer gathers each trainable parameter for its hook and drops it.
void Zero3::gather_once(Host& host) {
  for (const auto& group : sub_groups_) {
    for (const ParameterId id : group) {
      PartitionedParameter& p = parameters_.at(id);
      {
        const SymTensor whole =
            host.empty({world_ * p.partition}, dtype_, BufferCategory::kGatherOutput);
        collective(host, CollectiveKind::kAllGather,
                   to_device(host, p.shard, BufferCategory::kGatherInput, true), whole);
        sync_device(host, "");
      }
      if (leaf_of_.count(id) != 0) continue;
      accumulators_.push_back(host.grad_accumulator(p.full));
      host.register_accumulate_hook(accumulators_.back(), id.value);
    }
  }
}

std::unique_ptr<Framework> make_zero3(const ParallelConfig& config, Extras extras) {
  return std::make_unique<Zero3>(config, std::move(extras));
}

}  // namespace foreshard::zero
