// ZeRO 1 and 2: gradient buckets and their reduction (Z1-G-1, Z2-G-1 to Z2-G-4).

#include <algorithm>
#include <utility>

#include "schedules/planner/frameworks/zero12.h"

namespace foreshard::zero {

void Zero12::on_accumulated(Host& host, std::uint32_t parameter) {
  if (!stage2_ && !(overlap_ && boundary_)) return;
  setup_buckets(host);
  add_to_bucket(host, ParameterId(parameter));
}

void Zero12::setup_buckets(Host& host) {
  if (std::exchange(ready_, true) || !options_.contiguous_gradients) return;
  for (int i = 0; i < (overlap_ ? 2 : 1); ++i) {
    buffers_[i] = host.empty({options_.reduce_bucket_size}, dtype_, BufferCategory::kBucket);
  }
  index_ = 0;
}

/// Z2-G-1: a full bucket goes first; the gradient then moves into the bucket's buffer.
void Zero12::add_to_bucket(Host& host, ParameterId id) {
  SymTensor& grad = host.parameter(id)->grad;
  if (elements_ + grad->numel > options_.reduce_bucket_size) {
    reduce_bucket(host);
    if (options_.contiguous_gradients && overlap_) index_ = 1 - index_;
  }
  if (options_.contiguous_gradients) {
    if (grad->numel > options_.reduce_bucket_size) {
      oversized_ = true;
    } else {
      SymTensor view = host.view_as(buffers_[index_], grad->shape, elements_);
      host.launch(OpKind::kCopy, {grad}, {view});
      grad = std::move(view);
    }
  }
  elements_ += grad->numel;
  bucket_.push_back(id);
  emit({.kind = EventKind::kBucketAdd, .parameters = {id}, .numel = grad->numel});
}

void Zero12::reduce_bucket(Host& host) {
  cause_ = "reduce";
  if (!bucket_.empty()) {
    emit({.kind = EventKind::kReduceBucket, .parameters = bucket_, .numel = elements_, .number = index_});
  }
  if (!options_.contiguous_gradients) {
    average_apart(host);
  } else if (oversized_) {
    const SymTensor& grad = host.parameter(bucket_[0])->grad;
    average(host, flat_view(host, grad, 0, grad->numel));
  } else {
    average(host, flat_view(host, buffers_[index_], 0, elements_));
  }
  oversized_ = false;
  const StreamGuard guard(host, overlap_ ? reduce_stream_ : host.stream());
  for (const ParameterId id : bucket_) {
    if (places_.at(id).mine) {
      if (options_.contiguous_gradients) copy_to_partition(host, id);
    } else if (stage2_) {
      host.parameter(id)->grad.reset();
    }
  }
  bucket_.clear();
  elements_ = 0;
  cause_.clear();
}

/// Parts of the bucket by the rank that owns them; neighbours of one rank are one part.
std::vector<Zero12::Slice> Zero12::slices() const {
  std::vector<Slice> result;
  std::int64_t offset = 0;
  for (const ParameterId id : bucket_) {
    const Place& p = places_.at(id);
    const std::int64_t size = groups_[p.group].partition;
    for (const int owner : owners(id)) {
      const std::int64_t n = std::min((owner + 1) * size, p.first + p.numel) - std::max(owner * size, p.first);
      if (!result.empty() && result.back().owner == owner) {
        result.back().numel += n;
      } else {
        result.push_back({owner, offset, n});
      }
      offset += n;
    }
  }
  return result;
}

/// Z2-G-2, Z2-G-3.
void Zero12::average(Host& host, const SymTensor& tensor) {
  if (overlap_) {
    wait(host, reduce_stream_, host.stream());
    wait(host, host.stream(), reduce_stream_);
  }
  if (tensor->numel == 0) return;
  const StreamGuard guard(host, overlap_ ? reduce_stream_ : host.stream());
  if (overlap_) host.program().record_stream(tensor->storage->buffer, reduce_stream_);
  host.launch(OpKind::kMulInPlace, {tensor}, {tensor}, {1.0 / static_cast<double>(world_)});
  if (!options_.reduce_scatter) {
    const SymTensor sent = host.cast(tensor, communication_dtype(tensor->dtype), BufferCategory::kReduceTemporary);
    collective(host, CollectiveKind::kAllReduce, sent, sent, -1, ReduceOp::kSum);
    if (sent != tensor) host.launch(OpKind::kCopy, {sent}, {tensor});
    return;
  }
  const std::vector<Slice> all = slices();
  if (extras_.multi_rank_all_reduce) return reduce_slices(host, tensor, all, -1);
  std::vector<int> seen;
  for (const Slice& s : all) {
    if (std::find(seen.begin(), seen.end(), s.owner) != seen.end()) continue;
    seen.push_back(s.owner);
    std::vector<Slice> part;
    std::copy_if(all.begin(), all.end(), std::back_inserter(part), [&](const Slice& x) { return x.owner == s.owner; });
    reduce_slices(host, tensor, part, s.owner);
  }
}

/// Pieces of more than reduce_bucket_size elements, each reduced at once.
void Zero12::reduce_slices(Host& host, const SymTensor& tensor, const std::vector<Slice>& slices, int root) {
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
void Zero12::reduce_pieces(Host& host, const SymTensor& tensor, const std::vector<Slice>& pieces, int root) {
  TensorList parts;
  for (const Slice& s : pieces) parts.push_back(flat_view(host, tensor, s.offset, s.numel));
  const SymTensor flat = flatten(host, parts, BufferCategory::kReduceTemporary);
  const SymTensor sent = host.cast(flat, communication_dtype(flat->dtype), BufferCategory::kReduceTemporary);
  collective(host, root < 0 ? CollectiveKind::kAllReduce : CollectiveKind::kReduce, sent, sent, root, ReduceOp::kSum);
  if (overlap_) host.program().record_stream(sent->storage->buffer, reduce_stream_);
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].owner == rank_) host.launch(OpKind::kCopy, {flat_view(host, sent, offset, pieces[i].numel)}, {parts[i]});
    offset += pieces[i].numel;
  }
}

/// contiguous_gradients off: gradients stay apart and are flattened for the all-reduce.
void Zero12::average_apart(Host& host) {
  if (bucket_.empty()) return;
  if (overlap_) sync_device(host, cause_);
  const StreamGuard guard(host, overlap_ ? reduce_stream_ : host.stream());
  TensorList parts;
  for (const ParameterId id : bucket_) {
    const SymTensor& grad = host.parameter(id)->grad;
    parts.push_back(flat_view(host, grad, 0, grad->numel));
  }
  const SymTensor flat = flatten(host, parts, BufferCategory::kReduceTemporary);
  const SymTensor sent = host.cast(flat, communication_dtype(flat->dtype), BufferCategory::kReduceTemporary);
  host.launch(OpKind::kMulInPlace, {sent}, {sent}, {1.0 / static_cast<double>(world_)});
  collective(host, CollectiveKind::kAllReduce, sent, sent, -1, ReduceOp::kSum);
  std::int64_t offset = 0;
  for (const SymTensor& p : parts) {
    host.launch(OpKind::kCopy, {flat_view(host, sent, offset, p->numel)}, {p});
    offset += p->numel;
  }
}

/// Z2-G-4: whole gradients of the parameters that touch the own partition, in one buffer.
void Zero12::copy_to_partition(Host& host, ParameterId id) {
  if (!partition_gradients_) {
    std::int64_t total = 0;
    for (const auto& [parameter, p] : places_) total += p.mine ? p.numel : 0;
    partition_gradients_ = host.empty({total}, dtype_, BufferCategory::kShardedGradient);
    partition_offset_ = 0;
  }
  SymTensor& grad = host.parameter(id)->grad;
  SymTensor view = host.view_as(partition_gradients_, grad->shape, partition_offset_);
  host.launch(OpKind::kCopy, {grad}, {view});
  partition_offset_ += grad->numel;
  grad = std::move(view);
}

/// Own gradients are kept over micro-batches; those of the model are dropped.
void Zero12::keep_gradients(Host& host) {
  for (const ParameterId id : trainable_) {
    SymTensor& grad = host.parameter(id)->grad;
    if (grad && places_.at(id).mine) {
      SymTensor& kept = averaged_[id];
      if (kept) {
        host.launch(OpKind::kAddInPlace, {kept, grad}, {kept});
      } else {
        kept = grad;
      }
    }
    grad.reset();
  }
}

void Zero12::end_micro_batch(Host& host) {
  if (!stage2_ && !boundary_) return throughput_timer(host);
  host.set_phase(Phase::kBackward);
  if (!overlap_) {
    for (const FlatGroup& g : groups_) {
      for (const ParameterId id : g.registered) {
        if (stage2_ || !host.parameter(id)->grad) continue;
        setup_buckets(host);
        add_to_bucket(host, id);
      }
    }
  }
  reduce_bucket(host);
  if (overlap_) sync_device(host, "");
  keep_gradients(host);
  for (SymTensor& b : buffers_) b.reset();
  partition_gradients_.reset();
  ready_ = false;
  if (!boundary_) throughput_timer(host);
}

}  // namespace foreshard::zero
