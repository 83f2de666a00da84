// After an all-gather: the gathered buffer is copied out into the parameters, which change state
// (F2-AG-6 .. F2-AG-9, F2-F-3).

#include "schedules/planner/foreach.h"
#include "schedules/planner/frameworks/fsdp2_error.h"
#include "schedules/planner/frameworks/fsdp2_gather.h"
#include "schedules/planner/frameworks/fsdp2_host_time.h"
#include "schedules/planner/host/grad_dtype.h"

namespace foreshard::fsdp2 {
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
    gathered = host_.unallocated(Shape{numel}, dtype, numel * size_of(dtype),
                                 BufferCategory::kUnshardedParameter, group.unit);
  }
  host_.allocate_storage(gathered);
}

/// A gather that was issued for another mesh than the group's present one: in backward from what a
/// forward had resharded to fewer ranks, used by no backward and resharded since (F2-B-2, F2-F-3).
void Gatherer::check_mesh(const ParamGroup& group, const GatherResult& result) const {
  std::int64_t row = 0;
  for (const GatherPart& p : group.runtime.gather_parts)
    row += result.as_bytes ? p.bytes() : p.numel;
  if (row * group.gather_mesh().shard == result.output->numel) return;
  throw Fsdp2Error(Refusal::kRuntimeError, host_.program().program().units[group.unit.value].name,
                   "was gathered in backward from fewer ranks than hold its shards now, and cannot "
                   "be split among them",
                   "use reshard_after_forward true or false");
}

void Gatherer::copy_out(ParamGroup& group, const GatherResult& result) {
  check_mesh(group, result);
  GroupRuntime& rt = group.runtime;
  if (result.event) host_.wait_event(host_.stream(), *result.event);
  if (result.async) host_.wait_stream(host_.stream(), *group.comm->internal);
  const std::int64_t world = group.gather_mesh().shard;
  std::vector<LaunchView>& outputs = copied_out_;
  outputs.clear();
  std::vector<std::pair<std::size_t, SymTensor>> other_dims;
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const GatherPart& part = rt.gather_parts[i];
    make_gathered(group, i, part.numel * world, part.dtype);
    const SymTensor* target = &rt.parameters[i].gathered;
    if (group.parameters[i].shard_dim != 0) {
      other_dims.emplace_back(i, host_.empty((*target)->shape, (*target)->dtype,
                                             BufferCategory::kForwardTemporary, group.unit));
      target = &other_dims.back().second;
    }
    LaunchView rows = LaunchView::of(*target, Shape{world, part.numel});
    if (result.as_bytes) {
      rows.dtype = DType::kUInt8;
      rows.shape[1] = part.bytes();
    }
    outputs.push_back(rows);
  }
  const std::int64_t columns = result.output->numel / world;
  const LaunchView whole = LaunchView::of(result.output, Shape{world, columns});
  {
    part_bytes_.clear();
    for (const GatherPart& p : rt.gather_parts) part_bytes_.push_back(p.bytes());
    const SymTensor table = host_.pointer_table(split_copy_table_bytes(part_bytes_, world));
    LaunchRequest split;
    split.op = OpKind::kSplitCopy;
    split.input_views = std::span(&whole, 1);
    split.output_views = outputs;
    host_.launch(split);
  }
  for (const auto& [i, from] : other_dims) reassemble(group, i, from, world);
}

void Gatherer::reassemble(ParamGroup& group, std::size_t i, const SymTensor& from,
                          std::int64_t world) {
  const ShardedParameter& p = group.parameters[i];
  if (group.sharded == ShardedState::kShardedPostForward) {
    throw Fsdp2Error(Refusal::kIndexError, p.name,
                     "is sharded along dimension " + std::to_string(p.shard_dim) +
                         " and resharded to a smaller group after "
                         "forward, which cannot be put together again in backward",
                     "use reshard_after_forward true or false, or shard dimension 0");
  }
  const Shape& piece = p.padded_shape;
  std::vector<SymTensor> pieces;
  for (std::int64_t r = 0; r < world; ++r)
    pieces.push_back(host_.view_as(from, piece, r * piece.numel()));
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
  SymTensor input;  // lives until the next parameter's input exists, as the loop variable does
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    input = single_input(group, i);
    make_gathered(group, i, input->numel, input->dtype);
    host_.launch(OpKind::kCopy, {input}, {group.runtime.parameters[i].gathered});
  }
}

void Gatherer::make_unsharded(ParamGroup& group) {
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    ParameterTensors& t = group.runtime.parameters[i];
    if (t.unsharded) {
      if (t.next_scale) t.unsharded->scale = std::move(t.next_scale);
      continue;
    }
    const ShardedParameter& p = group.parameters[i];
    t.unsharded = host_.view_as(t.gathered, p.shape);
    // Float8TrainingTensor says the compute dtype; its data are 8-bit.
    if (p.float8) t.unsharded->dtype = p.compute_dtype();
    t.unsharded->scale = std::move(t.next_scale);
    t.unsharded->requires_grad = p.trainable;
    const auto dtype = p.unsharded_grad_dtype();
    t.unsharded->grad_dtype = dtype ? static_cast<std::int8_t>(*dtype) : kAnyGradDtype;
  }
}

void Gatherer::bind(ParamGroup& group) {
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const ParameterTensors& t = group.runtime.parameters[i];
    host_.set_parameter(group.parameters[i].id,
                        group.sharded == ShardedState::kUnsharded ? t.unsharded : SymTensor());
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
                       std::to_string(t.gathered->numel) +
                           " gathered elements cannot be divided by " + std::to_string(mesh.shard) +
                           " ranks after forward");
    }
    const std::int64_t numel = t.gathered->numel / mesh.shard;
    const ShardedParameter& p = group.parameters[i];
    // The kept part is seen as rows of dimension 0, whatever dimension the shards are cut along.
    if (p.shard_dim != 0 &&
        rows_of(p.shape[0], mesh.shard, mesh.shard_rank) * (p.numel() / p.shape[0]) > numel) {
      throw Fsdp2Error(Refusal::kRuntimeError, p.name,
                       "is sharded along dimension " + std::to_string(p.shard_dim) +
                           " and cannot be resharded to " + std::to_string(mesh.shard) +
                           " ranks after forward",
                       "use reshard_after_forward true or false, or shard dimension 0");
    }
    t.post_forward =
        host_.empty(Shape{numel}, t.gathered->dtype, BufferCategory::kPostForwardShard, group.unit);
    const SymTensor part = host_.rank_view(t.gathered, Shape{numel}, mesh.shard_group,
                                           numel * size_of(t.gathered->dtype));
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
    d.status =
        before == ShardedState::kUnsharded ? DecisionStatus::kKept : DecisionStatus::kAlready;
  } else if (group.sharded == ShardedState::kShardedPostForward) {
    d.status = DecisionStatus::kPostForward;
    for (const ParameterTensors& t : group.runtime.parameters) d.bytes += t.post_forward->bytes();
  } else {
    d.status = before == ShardedState::kShardedPostForward ? DecisionStatus::kFromPostForward
                                                           : DecisionStatus::kFree;
  }
  host_.decide(d);
}

}  // namespace foreshard::fsdp2
