#include "schedules/planner/frameworks/fsdp2_gather.h"

#include <algorithm>

#include "schedules/planner/frameworks/fsdp2_error.h"
#include "schedules/planner/frameworks/fsdp2_host_time.h"

namespace foreshard::fsdp2 {

SymTensor as_bytes(Host& host, const SymTensor& t) {
  SymTensor bytes = host.view_as(t, Shape{t->bytes()}, t->offset * size_of(t->dtype));
  bytes->dtype = DType::kUInt8;
  return bytes;
}

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
  const bool separate = !async && (group.training == TrainingState::kForward ||
                                   group.training == TrainingState::kPreBackward);
  if (separate && !comm.initialised) {
    throw Fsdp2Error(Refusal::kAttributeError, host_.model().at(group.modules[0]).name,
                     "is prefetched before it belongs to a root that has run",
                     "wrap the root module too");
  }
  const StreamIndex copy_in = separate ? comm.copy_in : host_.stream();
  const StreamIndex gather = separate ? comm.gather : host_.stream();

  GatherResult result;
  result.unit = group.unit;
  result.async = async;
  {
    StreamGuard guard(host_, copy_in);
    copy_in_parts(group, result);
  }
  host_.wait_stream(gather, copy_in);
  {
    StreamGuard guard(host_, gather);
    all_gather(group, result.output, result.output->bytes() / group.gather_mesh().shard,
               result.output->dtype, gather, async);
    result.event = host_.record_event();
  }
  group.runtime.pending = std::move(result);
  inputs_.flat.reset();
  while (!inputs_.tensors.empty()) inputs_.tensors.pop_back();  // A list drops its last item first.
}

StreamIndex communicator_stream(Host& host, CommContext& comm) {
  if (!comm.internal) comm.internal = host.program().add_stream("communicator", 0);
  return *comm.internal;
}

std::uint32_t Gatherer::all_gather(ParamGroup& group, const SymTensor& output,
                                   std::int64_t bytes_per_rank, DType dtype, StreamIndex stream,
                                   bool async) {
  const Mesh& mesh = group.gather_mesh();
  StreamIndex runs_on = stream;
  if (async) {
    runs_on = communicator_stream(host_, *group.comm);
    host_.wait_stream(runs_on, stream);
  }
  const LaunchView slice = LaunchView::of_rank(output, Shape{bytes_per_rank / size_of(dtype)},
                                               mesh.shard_group, bytes_per_rank, 0);
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
  if (p.float8 && group.sharded == ShardedState::kShardedPostForward) {
    throw Fsdp2Error(Refusal::kNotImplementedError, p.name,
                     "was resharded to a smaller group and cannot be gathered in 8 bits from it",
                     "reshard_after_forward true or false");
  }
  if (p.offload && group.sharded == ShardedState::kSharded) {
    SymTensor on_device =
        host_.empty(source->shape, source->dtype, BufferCategory::kGatherInput, group.unit);
    Copy copy;
    copy.direction = CopyDirection::kHostToDevice;
    copy.pageable = source->storage->space == MemorySpace::kHostPageable;
    copy.stream = host_.stream();
    copy.phase = host_.phase();
    copy.bytes = Bytes(source->bytes());
    copy.source = host_.id_of(source);
    copy.destination = host_.id_of(on_device);
    host_.copy(copy);
    source = std::move(on_device);
  }
  if (p.float8) return float8_input(group, i, source);
  return host_.cast(source, p.compute_dtype(), BufferCategory::kGatherInput, group.unit);
}

/// Claims the output and copies this rank's parts to their places in it.
void Gatherer::copy_in_parts(ParamGroup& group, GatherResult& result) {
  const Mesh& mesh = group.gather_mesh();
  make_inputs(group);
  const std::vector<GatherPart>& parts = group.runtime.gather_parts;
  DType dtype = parts[0].dtype;
  std::int64_t bytes_per_rank = 0;
  for (const GatherPart& p : parts) {
    bytes_per_rank += p.bytes();
    if (p.dtype != dtype) result.as_bytes = true;
  }
  if (result.as_bytes) {
    dtype = DType::kUInt8;
    for (SymTensor& t : inputs_.tensors) t = as_bytes(host_, t);
  }
  result.output = host_.empty(Shape{bytes_per_rank / size_of(dtype) * mesh.shard}, dtype,
                              BufferCategory::kGatherOutput, group.unit);
  inputs_.slots.clear();
  std::int64_t offset = 0;
  for (const GatherPart& p : parts) {
    const std::int64_t part = result.as_bytes ? p.bytes() : p.numel;
    inputs_.slots.push_back(LaunchView::of_rank(result.output, Shape{part}, mesh.shard_group,
                                                bytes_per_rank, offset));
    offset += part;
  }
  LaunchRequest copy;
  copy.op = OpKind::kForeachCopy;
  copy.inputs = inputs_.tensors;
  if (inputs_.tensors.empty()) copy.input_views = inputs_.casts;
  copy.output_views = inputs_.slots;
  host_.launch(copy);
}

/// Each parameter's part, flat: its shard, what is made of that, or its place in one copy of
/// several shards in the dtype that is gathered.
void Gatherer::make_inputs(ParamGroup& group) {
  inputs_.tensors.clear();
  inputs_.sources.clear();
  inputs_.casts.clear();
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const ShardedParameter& p = group.parameters[i];
    if (!p.gather || p.offload || p.float8) {
      inputs_.tensors.resize(group.parameters.size());
      inputs_.tensors[i] = single_input(group, i);
      continue;
    }
    const ParameterTensors& t = group.runtime.parameters[i];
    inputs_.sources.push_back(group.sharded == ShardedState::kSharded ? t.shard : t.post_forward);
    // One flat buffer in the dtype of the first; PyTorch takes that dtype for all of them.
    if (inputs_.sources.size() == 1) inputs_.dtype = *p.gather;
  }
  if (!inputs_.sources.empty()) cast_together(group);
  std::vector<GatherPart>& parts = group.runtime.gather_parts;
  parts.clear();
  parts.reserve(group.parameters.size());
  for (const SymTensor& t : inputs_.tensors) parts.push_back({t->dtype, t->numel});
  if (!parts.empty()) return;
  for (const LaunchView& v : inputs_.casts) parts.push_back({v.dtype, v.shape[0]});
}

/// Where some parameters are not cast, the copies of the others are tensors among those.
void Gatherer::cast_together(ParamGroup& group) {
  std::int64_t numel = 0;
  for (const SymTensor& s : inputs_.sources) numel += s->numel;
  inputs_.flat = host_.empty(Shape{numel}, inputs_.dtype, BufferCategory::kGatherInput, group.unit);
  std::int64_t offset = 0;
  for (const SymTensor& s : inputs_.sources) {
    inputs_.casts.push_back(LaunchView::of(inputs_.flat, Shape{s->numel}, offset));
    offset += s->numel;
  }
  LaunchRequest copy;
  copy.op = OpKind::kForeachCopy;
  copy.inputs = inputs_.sources;
  std::vector<SymTensor> among;
  if (inputs_.tensors.empty()) {
    copy.output_views = inputs_.casts;
  } else {
    auto next = inputs_.casts.begin();
    for (SymTensor& t : inputs_.tensors) {
      if (t) continue;
      t = host_.view_as(inputs_.flat, next->shape, next->offset);
      among.push_back(t);
      ++next;
    }
    copy.outputs = among;
  }
  host_.launch(copy);
  inputs_.sources.clear();
}

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
