#include "schedules/planner/frameworks/fsdp2_reduce.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/integers.h"
#include "schedules/planner/foreach.h"
#include "schedules/planner/host/grad_dtype.h"

namespace foreshard::fsdp2 {

Division division_of(std::int64_t shard, std::int64_t replicate, DType reduce_dtype,
                     std::optional<double> factor, bool force_sum) {
  Division d;
  const bool overflow_risk = reduce_dtype != DType::kFloat32 && reduce_dtype != DType::kBFloat16;
  const std::int64_t world = shard * replicate;
  if (!overflow_risk && !force_sum) {
    if (!factor) {
      if (world > 1) d.scatter = d.all = ReduceOp::kAverage;
    } else if (*factor == static_cast<double>(shard)) {
      d.scatter = ReduceOp::kAverage;
    } else {
      d.scatter = ReduceOp::kPreMulSum;
      d.premul = 1 / *factor;
    }
    return d;
  }
  const double f = factor.value_or(static_cast<double>(world));
  if (!overflow_risk) {
    d.post = f;
    return d;
  }
  double pre = 1;
  while (std::fmod(f, pre) == 0 && f / pre > pre) pre *= 2;
  d.pre = pre;
  d.post = f / pre;
  return d;
}

DType Reducer::reduce_dtype(const ParamGroup& group, const Gradients& g) const {
  if (group.reduce_dtype) return *group.reduce_dtype;
  std::optional<DType> dtype;
  const auto add = [&](DType d) { dtype = dtype ? promoted(*dtype, d) : d; };
  for (std::size_t k = 0; k < g.parameters.size(); ++k) {
    add(group.parameters[g.parameters[k]].unsharded_grad_dtype().value_or(g.tensors[k]->dtype));
  }
  if (group.runtime.partial_output) add(group.runtime.partial_output->dtype);
  return *dtype;
}

SymTensor Reducer::prepare_partial(ParamGroup& group, const Gradients& g, DType dtype) {
  GroupRuntime& rt = group.runtime;
  if (!rt.partial_output && group.switches.all_reduce_grads) return {};
  std::vector<std::pair<std::size_t, std::int64_t>> layout;
  std::int64_t total = 0;
  for (const std::size_t i : g.parameters) {
    layout.emplace_back(i, group.parameters[i].padded_local_numel());
    total += layout.back().second;
  }
  if (layout == rt.partial_layout) {
    if (rt.partial_output)
      rt.partial_output =
          host_.cast(rt.partial_output, dtype, BufferCategory::kReduceOutput, group.unit);
    return rt.partial_output;
  }
  SymTensor repacked;
  if (rt.partial_output) {
    repacked = host_.empty(Shape{total}, dtype, BufferCategory::kReduceOutput, group.unit);
    host_.launch(OpKind::kFill, {}, {repacked}, {0.0});
    std::int64_t to = 0;
    for (const auto& [i, size] : layout) {
      std::int64_t from = 0;
      for (const auto& [old, old_size] : rt.partial_layout) {
        const std::int64_t n = group.parameters[i].local_numel();
        if (old == i && n > 0) {
          host_.launch(OpKind::kCopy, {host_.view_as(rt.partial_output, Shape{n}, from)},
                       {host_.view_as(repacked, Shape{n}, to)});
        }
        from += old_size;
      }
      to += size;
    }
  }
  rt.partial_layout = std::move(layout);
  rt.partial_output = repacked;
  return repacked;
}

void Reducer::move_chunks_first(ParamGroup& group, Gradients& g) {
  if (group.mesh->shard == 1) return;
  SymTensor previous;  // the loop variable of the caller keeps the gradient until the next one
  for (std::size_t k = 0; k < g.parameters.size(); ++k) {
    const ShardedParameter& p = group.parameters[g.parameters[k]];
    if (p.shard_dim == 0) continue;
    const SymTensor gradient = g.tensors[k];
    std::vector<SymTensor> chunks;
    Shape piece = gradient->shape;
    piece[p.shard_dim] /= group.mesh->shard;
    Shape whole = piece;
    whole[0] *= group.mesh->shard;
    const auto stride = gradient->stride[static_cast<std::size_t>(p.shard_dim)];
    for (std::int64_t r = 0; r < group.mesh->shard; ++r) {
      chunks.push_back(host_.view_as(
          gradient, piece, std::span<const std::int64_t>(gradient->stride.data(), piece.rank),
          gradient->offset + r * piece[p.shard_dim] * stride));
    }
    const SymTensor moved =
        host_.empty(whole, gradient->dtype, BufferCategory::kReduceTemporary, group.unit);
    const double dim = 0;
    LaunchRequest cat;
    cat.op = OpKind::kCat;
    cat.inputs = chunks;
    cat.outputs = std::span(&moved, 1);
    cat.attributes = std::span(&dim, 1);
    host_.launch(cat);
    g.tensors[k] = moved;
    previous = gradient;
  }
}

void Reducer::chunk_cat(std::span<const SymTensor> tensors, const LaunchView& rows,
                        std::int64_t kernels) {
  const double dim = 0;
  LaunchRequest cat;
  cat.op = OpKind::kChunkCat;
  cat.inputs = tensors;
  cat.output_views = std::span(&rows, 1);
  cat.attributes = std::span(&dim, 1);
  cat.kernels = kernels;
  host_.launch(cat);
}

/// _chunk_cat between dtypes that its kernel does not know: gradients that the ranks cannot share
/// evenly are padded, then each is copied.
void Reducer::copy_in_one_by_one(const ParamGroup& group, const Gradients& g,
                                 const LaunchView& rows) {
  std::vector<SymTensor> padded;
  for (const SymTensor& gradient : g.tensors) {
    padded.push_back(gradient);
    Shape whole = gradient->shape;
    whole[0] = ceil_div(whole[0], group.mesh->shard) * group.mesh->shard;
    if (whole == gradient->shape) continue;
    SymTensor& t = padded.back();
    t = host_.empty(whole, gradient->dtype, BufferCategory::kReduceTemporary, group.unit);
    host_.launch(OpKind::kFill, {}, {t}, {0.0});
    host_.launch(OpKind::kCopy, {gradient}, {host_.view_as(t, gradient->shape)});
  }
  chunk_cat(padded, rows, static_cast<std::int64_t>(padded.size()));
  for (SymTensor& t : padded) t.reset();
}

SymTensor Reducer::copy_in(ParamGroup& group, Gradients& g, DType dtype) {
  const std::int64_t world = group.mesh->shard;
  std::int64_t numel = 0;
  for (const std::size_t i : g.parameters) numel += group.parameters[i].padded_numel();
  const SymTensor input =
      host_.empty(Shape{numel}, dtype, BufferCategory::kReduceInput, group.unit);
  const LaunchView rows = LaunchView::of(input, Shape{world, numel / world});
  const DType from = g.tensors[0]->dtype;
  if (from == dtype || (from == DType::kBFloat16 && dtype == DType::kFloat32)) {
    part_bytes_.clear();
    for (const std::size_t i : g.parameters)
      part_bytes_.push_back(group.parameters[i].padded_numel() / world * size_of(dtype));
    const SymTensor table = host_.pointer_table(chunk_cat_table_bytes(part_bytes_));
    chunk_cat(g.tensors, rows, 1);
  } else {
    copy_in_one_by_one(group, g, rows);
  }
  while (!g.tensors.empty()) g.tensors.pop_back();  // A list drops its last item first.
  return input;
}

void Reducer::divide(const SymTensor& t, std::optional<double> by) {
  if (by && *by != 1) host_.launch(OpKind::kMulScalar, {t}, {t}, {1 / *by});
}

namespace {

/// `c` of the unit's gradients, on the current stream.
void issue(Host& host, Collective c, const ParamGroup& group, const SymTensor& input,
           const SymTensor& output) {
  c.stream = host.stream();
  c.phase = host.phase();
  c.input = host.id_of(input);
  c.output = host.id_of(output);
  c.bytes = Bytes(input->bytes());
  c.unit = group.unit;
  Decision d;
  d.kind = DecisionKind::kCollective;
  d.unit = group.unit;
  d.bytes = output->bytes();
  d.collective = host.collective(c);
  host.decide(d);
}

}  // namespace

SymTensor Reducer::reduce_scatter(ParamGroup& group, const SymTensor& input, DType dtype,
                                  const Division& division) {
  const std::int64_t world = group.mesh->shard;
  const SymTensor output =
      host_.empty(Shape{input->numel / world}, dtype, BufferCategory::kReduceOutput, group.unit);
  divide(input, division.pre);
  if (world == 1) {
    const std::optional<double> factor = group.switches.divide_factor;
    if (factor && *factor != 1) {
      const SymTensor divided =
          host_.empty(input->shape, dtype, BufferCategory::kReduceTemporary, group.unit);
      host_.launch(OpKind::kMulScalar, {input}, {divided}, {1 / *factor});
      host_.launch(OpKind::kCopy, {divided}, {output});
    } else {
      host_.launch(OpKind::kCopy, {input}, {output});
    }
    return output;
  }
  Collective c;
  c.kind = CollectiveKind::kReduceScatter;
  c.op = division.scatter;
  c.factor = division.premul;
  c.dtype = dtype;
  c.group = group.reduce_group();
  issue(host_, c, group, input, output);
  return output;
}

void Reducer::all_reduce(ParamGroup& group, const SymTensor& buffer, const Division& division) {
  Collective c;
  c.kind = CollectiveKind::kAllReduce;
  c.op = division.all;
  c.dtype = buffer->dtype;
  c.group = group.mesh->replicate_group;
  issue(host_, c, group, buffer, buffer);
}

Decision Reducer::announce(const ParamGroup& group, const Gradients& g, DType dtype,
                           const Division& division) {
  Decision reduced;
  reduced.kind = DecisionKind::kReduced;
  reduced.unit = group.unit;
  reduced.pre_divide = division.pre.value_or(0);
  reduced.post_divide = division.post.value_or(0);
  if (!host_.has_sink()) return reduced;
  Decision d;
  d.kind = DecisionKind::kReduceCopyIn;
  d.unit = group.unit;
  d.dtype = dtype;
  std::vector<std::uint32_t> indices;
  std::vector<DType> dtypes;
  for (std::size_t k = 0; k < g.parameters.size(); ++k) {
    const ShardedParameter& p = group.parameters[g.parameters[k]];
    indices.push_back(static_cast<std::uint32_t>(g.parameters[k]));
    dtypes.push_back(g.tensors[k]->dtype);
    d.bytes += g.tensors[k]->bytes();
    d.bytes2 += p.padded_numel() * size_of(dtype);
    if (group.runtime.parameters[g.parameters[k]].local->grad) reduced.flag = true;
    const auto sharded = p.sharded_grad_dtype();
    if (sharded && *sharded != dtype) reduced.bytes += p.padded_local_numel() * size_of(*sharded);
  }
  d.indices = indices;
  d.dtypes = dtypes;
  host_.decide(d);
  return reduced;
}

void Reducer::reduce_over_replicas(ParamGroup& group, const Division& division, Reduction& r) {
  if (!group.mesh->replicated) return;
  CommContext& comm = *group.comm;
  if (!group.switches.all_reduce_grads) {
    if (r.partial) {
      host_.launch(OpKind::kAddInPlace, {r.partial, r.output}, {r.partial});
    } else {
      r.partial = r.output;
    }
    r.pending = true;
    return;
  }
  if (r.partial) host_.launch(OpKind::kAddInPlace, {r.output, r.partial}, {r.output});
  r.stream = comm.all_reduce;
  host_.wait_stream(comm.all_reduce, comm.reduce);
  StreamGuard guard(host_, comm.all_reduce);
  all_reduce(group, r.output, division);
  r.held = HeldBuffer{r.output, host_.record_event()};
}

void Reducer::run_all_reduce_hook(ParamGroup& group, Reduction& r) {
  if (r.pending || !group.switches.all_reduce_hook) return;
  CommContext& comm = *group.comm;
  r.stream = comm.all_reduce;
  host_.wait_stream(comm.all_reduce, comm.reduce);
  Decision d;
  d.kind = DecisionKind::kAllReduceHook;
  d.unit = group.unit;
  d.bytes = r.output->bytes();
  host_.decide(d);
  r.held = HeldBuffer{r.output, host_.record_event(comm.all_reduce)};
}

void Reducer::reduce(ParamGroup& group, Gradients g) {
  GroupRuntime& rt = group.runtime;
  CommContext& comm = *group.comm;
  const StreamIndex current = host_.stream();
  const DType dtype = reduce_dtype(group, g);
  const Division division = division_of(group.mesh->shard, group.mesh->replicate, dtype,
                                        group.switches.divide_factor, group.switches.force_sum);
  Reduction r;
  r.stream = comm.reduce;
  if (group.mesh->replicated) {
    if (rt.partial_output) host_.wait_stream(comm.reduce, current);
    StreamGuard guard(host_, comm.reduce);
    r.partial = prepare_partial(group, g, dtype);
  }
  const std::vector<std::size_t>& parameters = g.parameters;
  Decision reduced = announce(group, g, dtype, division);

  move_chunks_first(group, g);
  const SymTensor input = copy_in(group, g, dtype);
  host_.wait_stream(comm.reduce, current);
  std::optional<EventId> scatter_event;
  {
    StreamGuard guard(host_, comm.reduce);
    r.output = reduce_scatter(group, input, dtype, division);
    scatter_event = host_.record_event();
    reduce_over_replicas(group, division, r);
  }
  run_all_reduce_hook(group, r);
  {
    StreamGuard guard(host_, r.stream);
    if (!r.pending) {
      divide(r.output, division.post);
      std::vector<SymTensor> gradients = sharded_gradients(group, r.output, parameters);
      r.output.reset();
      accumulate(group, parameters, std::move(gradients), r.stream);
    }
    rt.post_reduce_event = host_.record_event();
  }
  rt.partial_output = r.pending ? r.partial : SymTensor();
  reduced.flag2 = r.pending;
  if (r.pending) {
    reduced.flag = false;
    reduced.bytes = 0;
  }
  host_.decide(reduced);
  comm.set_last_post_reduce(r.stream, *rt.post_reduce_event);
  comm.reduce_inputs.push_back({{input, scatter_event}, current, &group});
  if (r.held) rt.all_reduce = std::move(r.held);
}

}  // namespace foreshard::fsdp2
