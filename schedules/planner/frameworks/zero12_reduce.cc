// ZeRO 1 and 2: gradient buckets and their reduction (Z1-G-1, Z2-G-1 to Z2-G-4).

#include <algorithm>
#include <utility>

#include "schedules/planner/frameworks/zero12.h"
#include "schedules/planner/frameworks/zero_host_time.h"

namespace foreshard::zero {

void Zero12::begin_micro_batch(Host& host, std::int64_t index, bool sync) {
  Zero::begin_micro_batch(host, index, sync);
  if (index == 0) wide_gradients_.clear();  // clear_backward_seen_flag after a window's epilogue.
}

/// grad_handling_hook: buckets are made at the first gradient even where nothing is reduced in
/// backward (stage 1).
void Zero12::on_accumulated(Host& host, std::uint32_t parameter) {
  const ParameterId id(parameter);
  spend(host, kGradient12Us);
  if (!stage2_ && !overlap_ && !wide() && !options_.contiguous_gradients) return;
  setup_buckets(host);
  if (!stage2_ && wide()) accumulate_wide(host, id);
  if (stage2_ || (overlap_ && boundary_)) add_to_bucket(host, id);
}

void Zero12::accumulate_wide(Host& host, ParameterId id) {
  SymTensor& grad = host.parameter(id)->grad;
  if (!grad) return;
  SymTensor& sum = wide_gradients_[id];
  const SymTensor cast = host.cast(grad, grad_accum_dtype(), BufferCategory::kUnshardedGradient);
  if (sum) {
    host.launch(OpKind::kAddInPlace, {sum, cast}, {sum});
  } else {
    sum = cast;
  }
  grad.reset();
}

/// The gradient that is reduced: grad_accum in stage 1 with a wider accumulation dtype.
SymTensor& Zero12::gradient(Host& host, ParameterId id) {
  return !stage2_ && wide() ? wide_gradients_[id] : host.parameter(id)->grad;
}

void Zero12::setup_buckets(Host& host) {
  if (std::exchange(ready_, true) || !options_.contiguous_gradients) return;
  const DType dtype = !stage2_ && wide() ? grad_accum_dtype() : dtype_;
  for (int i = 0; i < (overlap_ ? 2 : 1); ++i) {
    buffers_[i] = host.empty({options_.reduce_bucket_size}, dtype, BufferCategory::kBucket);
  }
  index_ = 0;
}

/// Z2-G-1: a full bucket goes first; the gradient then moves into the bucket's buffer.
void Zero12::add_to_bucket(Host& host, ParameterId id) {
  SymTensor& grad = gradient(host, id);
  if (elements_ + grad->numel > options_.reduce_bucket_size) {
    reduce_bucket(host);
    if (options_.contiguous_gradients && overlap_) index_ = 1 - index_;
  }
  if (options_.contiguous_gradients) {
    if (grad->numel > options_.reduce_bucket_size) {
      oversized_ = true;
      if (offload_optimizer_) {  // An own storage, whatever else the gradient shares.
        const SymTensor clone =
            host.empty(grad->shape, grad->dtype, BufferCategory::kUnshardedGradient);
        host.launch(OpKind::kCopy, {grad}, {clone});
        grad = clone;
      }
    } else {
      if (reuse_events_[index_]) wait_event(host, host.stream(), *reuse_events_[index_]);
      SymTensor view = host.view_as(buffers_[index_], grad->shape, elements_);
      host.launch(OpKind::kCopy, {grad}, {view});
      grad = std::move(view);
    }
  }
  if (offload_optimizer_) ready_event_ = host.record_event();
  elements_ += grad->numel;
  bucket_.push_back(id);
  if (observed()) emit({.kind = EventKind::kBucketAdd, .parameters = {id}, .numel = grad->numel});
}

void Zero12::reduce_bucket(Host& host) {
  cause_ = "reduce";
  spend(host, kBucket12.of(bucket_.size()));
  if (!bucket_.empty()) {
    emit({.kind = EventKind::kReduceBucket,
          .parameters = bucket_,
          .numel = elements_,
          .number = index_});
  }
  if (!options_.contiguous_gradients) {
    average_apart(host);
  } else if (oversized_) {
    const SymTensor grad = gradient(host, bucket_[0]);
    average(host, flat_view(host, grad, 0, grad->numel));
  } else if (buffers_[index_]) {
    average(host, flat_view(host, buffers_[index_], 0, elements_));
  }
  const StreamGuard guard(host, overlap_ ? reduce_stream_ : host.stream());
  for (const ParameterId id : bucket_) {
    offload_guest(host, id);
    const bool mine = places_.at(id).mine;
    if (options_.contiguous_gradients && mine) {
      copy_to_partition(host, id);
    } else if (stage2_ && !mine) {
      if (overlap_ && !options_.contiguous_gradients) {
        previous_.push_back(id);  // Dropped when the next reduction has waited for this one.
      } else {
        host.parameter(id)->grad.reset();
      }
    }
  }
  if (offload_optimizer_ && elements_ > 0 && !oversized_)
    reuse_events_[index_] = host.record_event();
  ready_event_.reset();
  oversized_ = false;
  bucket_.clear();
  elements_ = 0;
  cause_.clear();
}

/// Where a reduced gradient of the own partition is added in fp32 (compact gradients of stage 2).
SymTensor Zero12::compact_slice(Host& host, ParameterId id) {
  const Place& p = places_.at(id);
  FlatGroup& g = groups_[p.group];
  if (!compact() || !p.mine) return {};
  if (!g.compact) {
    g.compact = host.empty({g.partition}, DType::kFloat32, BufferCategory::kShardedGradient);
    host.launch(OpKind::kFill, {}, {g.compact}, {0.0});
  }
  const Overlap o = overlap_of(id);
  return flat_view(host, g.compact, o.destination, o.numel);
}

/// Parts of the bucket by the rank that owns them; neighbours of one rank are one part.
std::vector<Zero12::Slice> Zero12::slices(Host& host) {
  std::vector<Slice> result;
  std::int64_t offset = 0;
  for (const ParameterId id : bucket_) {
    const Place& p = places_.at(id);
    const std::int64_t size = groups_[p.group].partition;
    for (const int owner : owners(id)) {
      const std::int64_t n =
          std::min((owner + 1) * size, p.first + p.numel) - std::max(owner * size, p.first);
      SymTensor output = owner == rank_ ? compact_slice(host, id) : SymTensor();
      if (!output && !result.empty() && result.back().owner == owner) {
        result.back().numel += n;
      } else {
        result.push_back({owner, offset, n, std::move(output)});
      }
      offset += n;
    }
  }
  return result;
}

/// Z2-G-2, Z2-G-3.
void Zero12::average(Host& host, const SymTensor& tensor) {
  if (offload_optimizer_) {
    const StreamIndex stream = overlap_ ? reduce_stream_ : host.stream();
    if (ready_event_) wait_event(host, stream, *ready_event_);
    if (overlap_) wait(host, host.stream(), stream);
  } else if (overlap_) {
    wait(host, reduce_stream_, host.stream());
    wait(host, host.stream(), reduce_stream_);
  }
  if (tensor->numel == 0) return;
  const StreamGuard guard(host, overlap_ ? reduce_stream_ : host.stream());
  if (overlap_) host.program().record_stream(tensor->storage->buffer, reduce_stream_);
  if (!options_.reduce_scatter) return average_whole(host, tensor);
  const std::vector<Slice> all = slices(host);
  host.launch(OpKind::kMulInPlace, {tensor}, {tensor}, {1.0 / static_cast<double>(world_)});
  if (options_.multi_rank_all_reduce) return reduce_slices(host, tensor, all, -1);
  std::vector<int> seen;
  for (const Slice& s : all) {
    if (std::find(seen.begin(), seen.end(), s.owner) != seen.end()) continue;
    seen.push_back(s.owner);
    std::vector<Slice> part;
    std::copy_if(all.begin(), all.end(), std::back_inserter(part),
                 [&](const Slice& x) { return x.owner == s.owner; });
    reduce_slices(host, tensor, part, s.owner);
  }
}

/// gradient_reduction_w_predivide: the whole bucket all-reduced in place, then divided.
void Zero12::average_whole(Host& host, const SymTensor& tensor) {
  const SymTensor sent = host.cast(tensor, communication_dtype(), BufferCategory::kReduceTemporary);
  collective(host, CollectiveKind::kAllReduce, sent, sent, -1, ReduceOp::kSum);
  if (world_ > 1)
    host.launch(OpKind::kMulInPlace, {sent}, {sent}, {1.0 / static_cast<double>(world_)});
  if (sent != tensor) host.launch(OpKind::kCopy, {sent}, {tensor});
  std::int64_t offset = 0;
  for (const ParameterId id : bucket_) {
    if (const SymTensor output = compact_slice(host, id)) {
      const Overlap o = overlap_of(id);
      const SymTensor part = flat_view(host, sent, offset + o.source, o.numel);
      host.launch(OpKind::kAddInPlace,
                  {output, host.cast(part, DType::kFloat32, BufferCategory::kReduceTemporary)},
                  {output});
    }
    offset += places_.at(id).numel;
  }
}

/// Pieces of more than reduce_bucket_size elements, each reduced at once.
void Zero12::reduce_slices(Host& host, const SymTensor& tensor, const std::vector<Slice>& slices,
                           int root) {
  std::vector<Slice> pieces;
  std::int64_t numel = 0;
  for (const Slice& s : slices) {
    pieces.push_back(s);
    numel += s.numel;
    if (numel <= options_.reduce_bucket_size) continue;
    reduce_pieces(host, tensor, pieces, root);
    pieces.clear();
    numel = 0;
  }
  if (!pieces.empty()) reduce_pieces(host, tensor, pieces, root);
}

/// The pieces are flattened once more, reduced, and this rank's come back.
void Zero12::reduce_pieces(Host& host, const SymTensor& tensor, const std::vector<Slice>& pieces,
                           int root) {
  if (overlap_ && root >= 0) sync_device(host, cause_);
  TensorList parts;
  for (const Slice& s : pieces) parts.push_back(flat_view(host, tensor, s.offset, s.numel));
  const SymTensor flat = flatten(host, parts, BufferCategory::kReduceTemporary);
  const SymTensor sent = host.cast(flat, communication_dtype(), BufferCategory::kReduceTemporary);
  collective(host, root < 0 ? CollectiveKind::kAllReduce : CollectiveKind::kReduce, sent, sent,
             root, ReduceOp::kSum);
  if (sent != flat && (root < 0 || root == rank_)) host.launch(OpKind::kCopy, {sent}, {flat});
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].owner == rank_) {
      const SymTensor part = flat_view(host, sent, offset, pieces[i].numel);
      if (const SymTensor& output = pieces[i].output) {
        host.launch(OpKind::kAddInPlace,
                    {output, host.cast(part, DType::kFloat32, BufferCategory::kReduceTemporary)},
                    {output});
      }
      host.launch(OpKind::kCopy, {part}, {parts[i]});
    }
    offset += pieces[i].numel;
  }
}

/// contiguous_gradients off: gradients stay apart and are flattened for the all-reduce.
void Zero12::average_apart(Host& host) {
  if (bucket_.empty()) return;
  if (overlap_) {
    sync_device(host, cause_);
    for (const ParameterId id : std::exchange(previous_, {})) host.parameter(id)->grad.reset();
  }
  const StreamGuard guard(host, overlap_ ? reduce_stream_ : host.stream());
  TensorList parts;
  for (const ParameterId id : bucket_) {
    const SymTensor& grad = gradient(host, id);
    parts.push_back(flat_view(host, grad, 0, grad->numel));
  }
  const SymTensor flat = flatten(host, parts, BufferCategory::kReduceTemporary);
  const SymTensor sent = host.cast(flat, communication_dtype(), BufferCategory::kReduceTemporary);
  host.launch(OpKind::kMulInPlace, {sent}, {sent}, {1.0 / static_cast<double>(world_)});
  collective(host, CollectiveKind::kAllReduce, sent, sent, -1, ReduceOp::kSum);
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const SymTensor reduced = flat_view(host, sent, offset, parts[i]->numel);
    if (const SymTensor output = compact_slice(host, bucket_[i])) {
      const Overlap o = overlap_of(bucket_[i]);
      const SymTensor own = flat_view(host, reduced, o.source, o.numel);
      host.launch(OpKind::kAddInPlace,
                  {output, host.cast(own, DType::kFloat32, BufferCategory::kReduceTemporary)},
                  {output});
    }
    host.launch(OpKind::kCopy, {reduced}, {parts[i]});
    offset += parts[i]->numel;
  }
}

/// Z2-G-4: whole gradients of the parameters that touch the own partition, in one buffer.
void Zero12::copy_to_partition(Host& host, ParameterId id) {
  if (offload_optimizer_) return offload_gradient(host, id);
  SymTensor& grad = gradient(host, id);
  if (compact()) {  // The fp32 buffer has it already.
    if (!stage2_) grad.reset();
    return;
  }
  if (!partition_gradients_) {
    std::int64_t total = 0;
    for (const auto& [parameter, p] : places_) total += p.mine ? p.numel : 0;
    partition_gradients_ = host.empty({total}, dtype_, BufferCategory::kShardedGradient);
    partition_offset_ = 0;
  }
  SymTensor view = host.view_as(partition_gradients_, grad->shape, partition_offset_);
  host.launch(OpKind::kCopy, {grad}, {view});
  partition_offset_ += grad->numel;
  grad = std::move(view);
}

/// Own gradients are kept over micro-batches; those of the model are dropped.
void Zero12::keep_gradients(Host& host) {
  for (const ParameterId id : trainable_) {
    SymTensor& grad = gradient(host, id);
    if (!offload_optimizer_ && !compact() && grad && places_.at(id).mine) {
      SymTensor& kept = averaged_[id];
      if (kept) {
        host.launch(OpKind::kAddInPlace, {kept, grad}, {kept});
      } else {
        kept = grad;
      }
    }
    host.parameter(id)->grad.reset();
  }
}

void Zero12::end_micro_batch(Host& host) {
  spend(host, kEngineBackwardUs);
  if (!stage2_ && !boundary_) return end_engine_step(host);
  host.set_phase(Phase::kBackward);
  if (!overlap_) {
    for (const FlatGroup& g : groups_) {
      for (const ParameterId id : g.registered) {
        if (stage2_ || !gradient(host, id)) continue;
        add_to_bucket(host, id);
      }
    }
  }
  reduce_bucket(host);
  if (overlap_) {
    sync_device(host, "");
    for (const ParameterId id : std::exchange(previous_, {})) host.parameter(id)->grad.reset();
  }
  keep_gradients(host);
  for (int i = 0; i < 2; ++i) {
    buffers_[i].reset();
    reuse_events_[i].reset();
  }
  partition_gradients_.reset();
  ready_ = false;
  if (!boundary_) end_engine_step(host);
}

}  // namespace foreshard::zero
