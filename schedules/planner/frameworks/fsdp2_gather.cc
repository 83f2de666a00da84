#include "schedules/planner/frameworks/fsdp2_gather.h"

#include "schedules/planner/foreach.h"

#include <algorithm>
#include <array>

#include "schedules/planner/frameworks/fsdp2_error.h"
#include "schedules/planner/frameworks/fsdp2_host_time.h"

namespace foreshard::fsdp2 {
namespace {


Shape flat(std::int64_t n) { return Shape{n}; }

/// tensor.view(torch.uint8) of a flat tensor.
SymTensor as_bytes(Host& host, const SymTensor& t) {
  SymTensor bytes = host.view_as(t, flat(t->bytes()), t->offset * size_of(t->dtype));
  bytes->dtype = DType::kUInt8;
  return bytes;
}

}  // namespace

// ------------------------------------------------------------------------------------------------ unshard

void Gatherer::unshard(ParamGroup& group, bool async) {
  GroupRuntime& rt = group.runtime;
  Decision d;
  d.kind = DecisionKind::kUnshard;
  d.unit = group.unit;
  if (rt.pending) {
    d.status = DecisionStatus::kPending;
  } else if (group.sharded == ShardedState::kUnsharded) {
    d.status = DecisionStatus::kAlready;
  } else if (!group.switches.unshard_in_backward && group.training == TrainingState::kPreBackward) {
    d.status = DecisionStatus::kSkipped;
  } else {
    d.status = group.gather_mesh().shard == 1 ? DecisionStatus::kLocal : DecisionStatus::kIssue;
  }
  host_.decide(d);
  if (d.status != DecisionStatus::kIssue && d.status != DecisionStatus::kLocal) return;
  spend(host_, kGatherCost, group);
  if (rt.reshard_event) {
    gather_streams_wait(*group.comm, *rt.reshard_event);
    rt.reshard_event.reset();
  }
  if (d.status == DecisionStatus::kIssue) return issue(group, async);
  GatherResult result;
  result.local = true;
  result.unit = group.unit;
  result.event = host_.record_event();
  rt.pending = std::move(result);
}

void Gatherer::issue(ParamGroup& group, bool async) {
  CommContext& comm = *group.comm;
  const bool separate =
      !async && (group.training == TrainingState::kForward || group.training == TrainingState::kPreBackward);
  if (separate && !comm.initialised) {
    throw Fsdp2Error(Refusal::kAttributeError, host_.model().at(group.modules[0]).name,
                     "is prefetched before it belongs to a root that has run", "wrap the root module too");
  }
  const StreamIndex copy_in = separate ? comm.copy_in : host_.stream();
  const StreamIndex gather = separate ? comm.gather : host_.stream();
  const Mesh& mesh = group.gather_mesh();

  GatherResult result;
  result.unit = group.unit;
  result.async = async;
  Inputs inputs;
  std::int64_t bytes_per_rank = 0;
  DType dtype = DType::kFloat32;
  {
    StreamGuard guard(host_, copy_in);
    inputs = gather_inputs(group);
    dtype = inputs.tensors[0]->dtype;
    for (const SymTensor& t : inputs.tensors) {
      result.dtypes.push_back(t->dtype);
      result.numels.push_back(t->numel);
      bytes_per_rank += t->bytes();
      if (t->dtype != dtype) result.as_bytes = true;
    }
    if (result.as_bytes) {
      dtype = DType::kUInt8;
      for (SymTensor& t : inputs.tensors) t = as_bytes(host_, t);
    }
    const std::int64_t numel = bytes_per_rank / size_of(dtype);
    result.output = host_.empty(flat(numel * mesh.shard), dtype, BufferCategory::kGatherOutput, group.unit);
    std::vector<SymTensor> slots;
    std::int64_t offset = 0;
    for (const SymTensor& t : inputs.tensors) {
      slots.push_back(host_.rank_view(result.output, flat(t->numel), mesh.shard_group, bytes_per_rank, offset));
      offset += t->numel;
    }
    LaunchRequest copy;
    copy.op = OpKind::kForeachCopy;
    copy.inputs = inputs.tensors;
    copy.outputs = slots;
    host_.launch(copy);
  }
  host_.wait_stream(gather, copy_in);
  {
    StreamGuard guard(host_, gather);
    all_gather(group, result.output, bytes_per_rank, dtype, gather, async);
    result.event = host_.record_event();
  }
  group.runtime.pending = std::move(result);
  while (!inputs.tensors.empty()) inputs.tensors.pop_back();   // A list drops its last item first.
}

std::uint32_t Gatherer::all_gather(ParamGroup& group, const SymTensor& output, std::int64_t bytes_per_rank, DType dtype,
                                   StreamIndex stream, bool async) {
  const Mesh& mesh = group.gather_mesh();
  StreamIndex runs_on = stream;
  if (async) {
    CommContext& comm = *group.comm;
    if (!comm.internal) comm.internal = host_.program().add_stream("communicator", 0);
    runs_on = *comm.internal;
    host_.wait_stream(runs_on, stream);
  }
  const SymTensor slice = host_.rank_view(output, flat(bytes_per_rank / size_of(dtype)), mesh.shard_group, bytes_per_rank);
  Collective c;
  c.kind = CollectiveKind::kAllGather;
  c.dtype = dtype;
  c.stream = runs_on;
  c.phase = host_.phase();
  c.group = mesh.shard_group;
  c.input = host_.id_of(slice);
  c.output = host_.id_of(output);
  c.bytes = Bytes(output->bytes());
  c.unit = group.unit;
  Decision d;
  d.kind = DecisionKind::kCollective;
  d.unit = group.unit;
  d.flag = async;
  d.bytes = bytes_per_rank;
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const ShardedParameter& p = group.parameters[i];
    const ParameterTensors& t = group.runtime.parameters[i];
    const SymTensor& source = group.sharded == ShardedState::kSharded ? t.shard : t.post_forward;
    if (p.gather) d.bytes2 += source->numel * size_of(*p.gather);
  }
  d.collective = host_.collective(c);
  host_.decide(d);
  return d.collective;
}

SymTensor Gatherer::single_input(ParamGroup& group, std::size_t i) {
  const ShardedParameter& p = group.parameters[i];
  const ParameterTensors& t = group.runtime.parameters[i];
  SymTensor source = group.sharded == ShardedState::kSharded ? t.shard : t.post_forward;
  if (p.offload && group.sharded == ShardedState::kSharded) {
    SymTensor on_device = host_.empty(source->shape, source->dtype, BufferCategory::kGatherInput, group.unit);
    Copy copy;
    copy.direction = CopyDirection::kHostToDevice;
    copy.stream = host_.stream();
    copy.phase = host_.phase();
    copy.bytes = Bytes(source->bytes());
    copy.source = host_.id_of(source);
    copy.destination = host_.id_of(on_device);
    host_.copy(copy);
    source = std::move(on_device);
  }
  return host_.cast(source, p.compute_dtype(), BufferCategory::kGatherInput, group.unit);
}

Gatherer::Inputs Gatherer::gather_inputs(ParamGroup& group) {
  Inputs inputs;
  inputs.tensors.resize(group.parameters.size());
  std::vector<std::size_t> cast;
  std::vector<SymTensor> sources;
  std::int64_t cast_numel = 0;
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const ShardedParameter& p = group.parameters[i];
    if (!p.gather || p.offload) {
      inputs.tensors[i] = single_input(group, i);
      continue;
    }
    const ParameterTensors& t = group.runtime.parameters[i];
    cast.push_back(i);
    sources.push_back(group.sharded == ShardedState::kSharded ? t.shard : t.post_forward);
    cast_numel += sources.back()->numel;
  }
  if (cast.empty()) return inputs;
  // One flat buffer in the dtype of the first; PyTorch takes that dtype for all of them.
  const DType dtype = *group.parameters[cast[0]].gather;
  inputs.flat = host_.empty(flat(cast_numel), dtype, BufferCategory::kGatherInput, group.unit);
  std::int64_t offset = 0;
  std::vector<SymTensor> slots;
  for (std::size_t k = 0; k < cast.size(); ++k) {
    slots.push_back(host_.view_as(inputs.flat, flat(sources[k]->numel), offset));
    offset += sources[k]->numel;
    inputs.tensors[cast[k]] = slots.back();
  }
  LaunchRequest copy;
  copy.op = OpKind::kForeachCopy;
  copy.inputs = sources;
  copy.outputs = slots;
  host_.launch(copy);
  return inputs;
}

// ------------------------------------------------------------------------------------------------ copy-out

void Gatherer::wait(ParamGroup& group) {
  GroupRuntime& rt = group.runtime;
  if (!rt.pending) return;
  spend(host_, kCopyOutCost, group);
  const bool forward = group.training == TrainingState::kForward;
  const bool frees_clone = group.sharded == ShardedState::kShardedPostForward;
  if (forward) release_for_reuse(*group.comm);
  if (rt.pending->local) {
    copy_local(group);
  } else {
    copy_out(group, *rt.pending);
  }
  make_unsharded(group);
  to_unsharded(group);
  const EventId copied = host_.record_event();

  GatherResult result = std::move(*rt.pending);
  rt.pending.reset();
  if (host_.has_sink()) {
    Decision d;
    d.kind = DecisionKind::kCopyOut;
    d.unit = group.unit;
    d.flag = frees_clone;
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const std::int64_t bytes = rt.parameters[i].gathered->bytes();
      d.bytes += bytes;
      if (group.parameters[i].shard_dim != 0 && !result.local) d.bytes2 += bytes;
    }
    host_.decide(d);
  }
  if (!result.async && forward && !result.local) {
    group.comm->retained.emplace(std::move(result), copied);
    return;
  }
  gather_streams_wait(*group.comm, copied);
  free_output(result, false);
}

void Gatherer::make_gathered(ParamGroup& group, std::size_t i, std::int64_t numel, DType dtype) {
  SymTensor& gathered = group.runtime.parameters[i].gathered;
  if (!gathered) {
    gathered = host_.unallocated(flat(numel), dtype, numel * size_of(dtype), BufferCategory::kUnshardedParameter, group.unit);
  }
  host_.allocate_storage(gathered);
}

void Gatherer::copy_out(ParamGroup& group, const GatherResult& result) {
  GroupRuntime& rt = group.runtime;
  if (result.event) host_.wait_event(host_.stream(), *result.event);
  if (result.async) host_.wait_stream(host_.stream(), *group.comm->internal);
  const std::int64_t world = group.gather_mesh().shard;
  std::vector<SymTensor> outputs;
  std::vector<std::pair<std::size_t, SymTensor>> other_dims;
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const std::int64_t numel = result.numels[i];
    make_gathered(group, i, numel * world, result.dtypes[i]);
    SymTensor target = rt.parameters[i].gathered;
    if (group.parameters[i].shard_dim != 0) {
      target = host_.empty(target->shape, target->dtype, BufferCategory::kForwardTemporary, group.unit);
      other_dims.emplace_back(i, target);
    }
    if (result.as_bytes) {
      outputs.push_back(host_.view_as(as_bytes(host_, target), Shape{world, numel * size_of(result.dtypes[i])}));
    } else {
      outputs.push_back(host_.view_as(target, Shape{world, numel}));
    }
  }
  const std::int64_t columns = result.output->numel / world;
  const SymTensor whole = host_.view_as(result.output, Shape{world, columns});
  {
    std::vector<std::int64_t> parts;
    for (const SymTensor& t : outputs) parts.push_back(t->bytes() / world);
    const SymTensor table = host_.pointer_table(split_copy_table_bytes(parts, world));
    LaunchRequest split;
    split.op = OpKind::kSplitCopy;
    split.inputs = std::span(&whole, 1);
    split.outputs = outputs;
    host_.launch(split);
  }
  for (const auto& [i, from] : other_dims) reassemble(group, i, from, world);
}

void Gatherer::reassemble(ParamGroup& group, std::size_t i, const SymTensor& from, std::int64_t world) {
  const ShardedParameter& p = group.parameters[i];
  if (group.sharded == ShardedState::kShardedPostForward) {
    throw Fsdp2Error(Refusal::kIndexError, p.name,
                     "is sharded along dimension " + std::to_string(p.shard_dim) + " and resharded to a smaller group after "
                     "forward, which cannot be put together again in backward",
                     "use reshard_after_forward true or false, or shard dimension 0");
  }
  const Shape piece{std::span<const std::int64_t>(p.padded_shape)};
  std::vector<SymTensor> pieces;
  for (std::int64_t r = 0; r < world; ++r) pieces.push_back(host_.view_as(from, piece, r * piece.numel()));
  Shape whole = piece;
  whole[p.shard_dim] *= world;
  const SymTensor target = host_.view_as(group.runtime.parameters[i].gathered, whole);
  const double dim = p.shard_dim;
  LaunchRequest cat;
  cat.op = OpKind::kCat;
  cat.inputs = pieces;
  cat.outputs = std::span(&target, 1);
  cat.attributes = std::span(&dim, 1);
  host_.launch(cat);
}

void Gatherer::copy_local(ParamGroup& group) {
  SymTensor input;   // lives until the next parameter's input exists, as the loop variable does
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    input = single_input(group, i);
    make_gathered(group, i, input->numel, input->dtype);
    host_.launch(OpKind::kCopy, {input}, {group.runtime.parameters[i].gathered});
  }
}

void Gatherer::make_unsharded(ParamGroup& group) {
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    ParameterTensors& t = group.runtime.parameters[i];
    if (t.unsharded) continue;
    const ShardedParameter& p = group.parameters[i];
    t.unsharded = host_.view_as(t.gathered, Shape{std::span<const std::int64_t>(p.shape)});
    t.unsharded->requires_grad = p.trainable;
    const auto dtype = p.unsharded_grad_dtype();
    t.unsharded->grad_dtype = dtype ? static_cast<std::int8_t>(*dtype) : -1;
  }
}

// ------------------------------------------------------------------------------------------------ transitions

void Gatherer::bind(ParamGroup& group) {
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const ParameterTensors& t = group.runtime.parameters[i];
    host_.set_parameter(group.parameters[i].id, group.sharded == ShardedState::kUnsharded ? t.unsharded : SymTensor());
  }
}

void Gatherer::to_unsharded(ParamGroup& group) {
  if (group.sharded == ShardedState::kUnsharded) return;
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    ParameterTensors& t = group.runtime.parameters[i];
    t.unsharded->requires_grad = group.parameters[i].trainable;
    if (group.sharded == ShardedState::kShardedPostForward) t.post_forward.reset();
  }
  group.sharded = ShardedState::kUnsharded;
  bind(group);
}

void Gatherer::to_sharded(ParamGroup& group) {
  if (group.sharded == ShardedState::kSharded) return;
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    ParameterTensors& t = group.runtime.parameters[i];
    if (t.gathered && !group.parameters[i].keep_unsharded_storage) host_.free_storage(t.gathered);
  }
  group.sharded = ShardedState::kSharded;
  bind(group);
}

void Gatherer::to_post_forward(ParamGroup& group) {
  const Mesh& mesh = *group.post_forward_mesh;
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    ParameterTensors& t = group.runtime.parameters[i];
    if (t.gathered->numel % mesh.shard != 0) {
      throw Fsdp2Error(Refusal::kAssertionError, group.parameters[i].name,
                       std::to_string(t.gathered->numel) + " gathered elements cannot be divided by " + std::to_string(mesh.shard) +
                           " ranks after forward");
    }
    const std::int64_t numel = t.gathered->numel / mesh.shard;
    const ShardedParameter& p = group.parameters[i];
    // The kept part is seen as rows of dimension 0, whatever dimension the shards are cut along.
    if (p.shard_dim != 0 && rows_of(p.shape[0], mesh.shard, mesh.shard_rank) * (p.numel() / p.shape[0]) > numel) {
      throw Fsdp2Error(Refusal::kRuntimeError, p.name,
                       "is sharded along dimension " + std::to_string(p.shard_dim) + " and cannot be resharded to " +
                           std::to_string(mesh.shard) + " ranks after forward",
                       "use reshard_after_forward true or false, or shard dimension 0");
    }
    t.post_forward = host_.empty(flat(numel), t.gathered->dtype, BufferCategory::kPostForwardShard, group.unit);
    const SymTensor part =
        host_.rank_view(t.gathered, flat(numel), mesh.shard_group, numel * size_of(t.gathered->dtype));
    host_.launch(OpKind::kCopy, {part}, {t.post_forward});
    if (!group.parameters[i].keep_unsharded_storage) host_.free_storage(t.gathered);
  }
  group.sharded = ShardedState::kShardedPostForward;
  bind(group);
}

void Gatherer::reshard(ParamGroup& group) {
  const ShardedState before = group.sharded;
  const bool forward = group.training == TrainingState::kForward;
  if (!forward) {
    to_sharded(group);
  } else if (group.uses_smaller_mesh()) {
    if (before != ShardedState::kShardedPostForward) to_post_forward(group);
    group.runtime.reshard_event = host_.record_event();
  } else if (group.post_forward_mesh != nullptr) {
    to_sharded(group);
  }
  Decision d;
  d.kind = DecisionKind::kReshard;
  d.unit = group.unit;
  if (before == group.sharded) {
    d.status = before == ShardedState::kUnsharded ? DecisionStatus::kKept : DecisionStatus::kAlready;
  } else if (group.sharded == ShardedState::kShardedPostForward) {
    d.status = DecisionStatus::kPostForward;
    for (const ParameterTensors& t : group.runtime.parameters) d.bytes += t.post_forward->bytes();
  } else {
    d.status = before == ShardedState::kShardedPostForward ? DecisionStatus::kFromPostForward : DecisionStatus::kFree;
  }
  host_.decide(d);
}

// ------------------------------------------------------------------------------------------------ letting go

void Gatherer::gather_streams_wait(CommContext& comm, EventId event) {
  if (!comm.initialised) return;
  host_.wait_event(comm.copy_in, event);
  host_.wait_event(comm.gather, event);
}

void Gatherer::free_output(GatherResult& result, bool mistargeted) {
  if (result.local) return;
  Decision d;
  d.kind = DecisionKind::kFreeGatherOutput;
  d.unit = result.unit;
  d.flag = mistargeted;
  d.bytes = result.output->bytes();
  result.output.reset();
  host_.decide(d);
}

void Gatherer::release_for_reuse(CommContext& comm) {
  if (!comm.retained) return;
  gather_streams_wait(comm, comm.retained->second);
  free_output(comm.retained->first, false);
  comm.retained.reset();
}

void Gatherer::release_on_current_stream(CommContext& comm) {
  if (!comm.retained) return;
  host_.wait_event(host_.stream(), comm.retained->second);
  free_output(comm.retained->first, false);
  comm.retained.reset();
}

void Gatherer::drop_mistargeted(ParamGroup& group) {
  std::optional<GatherResult>& pending = group.runtime.pending;
  if (!pending) return;
  if (pending->event) host_.wait_event(host_.stream(), *pending->event);
  if (pending->async) host_.wait_stream(host_.stream(), *group.comm->internal);
  free_output(*pending, true);
  pending.reset();
}

}  // namespace foreshard::fsdp2
