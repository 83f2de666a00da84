// ZeRO 3: gradient buckets and reduce-scatter (Z3-G-1 to Z3-G-3).

#include <algorithm>
#include <utility>

#include "schedules/planner/frameworks/zero3.h"
#include "schedules/planner/frameworks/zero_host_time.h"

namespace foreshard::zero {
namespace {

constexpr std::size_t kMostReduceEvents = 2;

}  // namespace

void Zero3::on_accumulated(Host& host, std::uint32_t parameter) {
  add_to_bucket(host, ParameterId(parameter));
}

/// The gradients of a leaf module, when those of its inputs are there.
void Zero3::reduce_leaf(Host& host, ModuleId m) {
  for (const auto& group : sub_groups_) {
    for (const ParameterId id : group) {
      const auto leaf = leaf_of_.find(id);
      if (leaf == leaf_of_.end() || leaf->second != m) continue;
      PartitionedParameter& p = parameters_.at(id);
      if (!p.full->grad) {  // torch.zeros_like(parameter), or of what stands for a released one.
        const bool here = p.status == Status::kAvailable;
        p.full->grad = host.empty(here ? p.full->shape : Shape{fast_leaves_ ? 1 : 0}, dtype_,
                                  BufferCategory::kUnshardedGradient);
        host.launch(OpKind::kFill, {}, {p.full->grad}, {0.0});
      }
      add_to_bucket(host, id);
    }
  }
}

/// reduce_independent_p_g_buckets_and_remove_grads, __add_grad_to_ipg_bucket.
void Zero3::add_to_bucket(Host& host, ParameterId id) {
  PartitionedParameter& p = parameters_.at(id);
  spend(host, kGradient3Us);
  SymTensor& grad = p.full->grad;
  if (elements_ + p.numel > options_.reduce_bucket_size && elements_ > 0) reduce_bucket(host);
  if (observed()) emit({.kind = EventKind::kBucketAdd, .parameters = {id}, .numel = p.numel});
  wait(host, reduce_stream_, host.stream());
  const std::int64_t numel = grad->numel;
  if (options_.contiguous_gradients && elements_ + numel <= options_.reduce_bucket_size) {
    const StreamGuard guard(host, reduce_stream_);
    SymTensor view = host.view_as(bucket_buffer_, grad->shape, elements_);
    if (numel > 0) host.launch(OpKind::kCopy, {grad}, {view});
    if (overlap_) host.program().record_stream(grad->storage->buffer, reduce_stream_);
    grad = std::move(view);
  }
  elements_ += numel;
  bucket_.push_back(id);
}

void Zero3::reduce_bucket(Host& host) {
  if (bucket_.empty()) return;
  if (observed())
    emit({.kind = EventKind::kReduceBucket, .parameters = bucket_, .numel = elements_});
  for (const ParameterId id : bucket_) {
    const PartitionedParameter& p = parameters_.at(id);
    if (p.full->grad->numel == p.numel) continue;
    throw ZeroError("RuntimeError",
                    std::to_string(p.full->grad->numel) + " != " + std::to_string(p.numel) +
                        " Cannot reduce scatter gradients whose size is not same as the params");
  }
  if (reduce_events_.size() > kMostReduceEvents) {
    sync_event(host, reduce_events_.front(), "reduce");
    reduce_events_.pop_front();
  }
  const StreamGuard guard(host, reduce_stream_);
  // reduce_scatter_coalesced cuts each gradient into W pieces; what is exchanged in int4 it leaves.
  const auto cut = reduces_quantised()
                       ? std::count_if(bucket_.begin(), bucket_.end(),
                                       [&](ParameterId id) { return !exchanged_quantised(id); })
                       : std::ssize(bucket_);
  spend(host, kBucket3.of(bucket_.size()) +
                  kRankPieceUs * static_cast<double>(world_) * static_cast<double>(cut));
  cause_ = "reduce";
  if (options_.contiguous_gradients && elements_ <= options_.reduce_bucket_size &&
      !options_.reduce_scatter) {
    all_reduce_bucket(host);
  } else {
    std::vector<ParameterId> sorted = bucket_;
    std::sort(sorted.begin(), sorted.end(),
              [&](ParameterId a, ParameterId b) { return position_.at(a) < position_.at(b); });
    if (reduces_quantised()) {
      reduce_scatter_quantised(host, sorted);
    } else {
      reduce_scatter(host, sorted);
    }
  }
  cause_.clear();
  for (const ParameterId id : bucket_) {
    SymTensor& grad = parameters_.at(id).full->grad;
    // partition_grads records every gradient; for a view of the bucket, which stays, that is
    // nothing.
    if (overlap_ && grad && !(bucket_buffer_ && grad->storage == bucket_buffer_->storage))
      host.program().record_stream(grad->storage->buffer, reduce_stream_);
    grad.reset();
  }
  bucket_.clear();
  elements_ = 0;
  reduce_events_.push_back(host.record_event(reduce_stream_));
}

/// Z3-G-2: gradients in W rows, padded, side by side in one tensor.
SymTensor Zero3::scattered(Host& host, const std::vector<ParameterId>& ids) {
  const DType sent = communication_dtype();
  TensorList rows;
  std::int64_t parts = 0;
  for (const ParameterId id : ids) {
    const PartitionedParameter& p = parameters_.at(id);
    const SymTensor grad = host.cast(p.full->grad, sent, BufferCategory::kReduceTemporary);
    parts += p.partition;
    if (p.numel == world_ * p.partition) {
      rows.push_back(host.view_as(grad, {world_, p.partition}, grad->offset));
      continue;
    }
    const SymTensor padded =
        host.empty({world_ * p.partition}, sent, BufferCategory::kReduceTemporary);
    host.launch(OpKind::kCopy, {flat_view(host, grad, 0, p.numel)},
                {flat_view(host, padded, 0, p.numel)});
    host.launch(OpKind::kFill, {}, {flat_view(host, padded, p.numel, padded->numel - p.numel)},
                {0.0});
    rows.push_back(host.view_as(padded, {world_, p.partition}));
  }
  SymTensor flat = rows[0];
  if (rows.size() > 1) {
    const TensorList out{host.empty({world_, parts}, sent, BufferCategory::kReduceInput)};
    launch_lists(host, OpKind::kCat, {&rows}, {&out}, {1.0});
    flat = out[0];
  }
  rows.clear();
  flat = flat_view(host, flat, 0, world_ * parts);
  host.launch(OpKind::kMulInPlace, {flat}, {flat}, {1.0 / static_cast<double>(world_)});
  const SymTensor own = flat_view(host, flat, rank_ * parts, parts);
  collective(host, CollectiveKind::kReduceScatter, flat, own, -1, ReduceOp::kSum);
  return own;
}

void Zero3::reduce_scatter(Host& host, const std::vector<ParameterId>& ids) {
  const SymTensor own = scattered(host, ids);
  std::int64_t offset = 0;
  for (const ParameterId id : ids) {
    const PartitionedParameter& p = parameters_.at(id);
    const std::int64_t n = std::clamp<std::int64_t>(p.numel - rank_ * p.partition, 0, p.partition);
    if (n > 0) keep_partition(host, id, flat_view(host, own, offset, n));
    offset += p.partition;
  }
}

/// reduce_scatter off: the bucket is all-reduced and each rank takes its parts.
void Zero3::all_reduce_bucket(Host& host) {
  const SymTensor bucket = flat_view(host, bucket_buffer_, 0, elements_);
  host.launch(OpKind::kMulInPlace, {bucket}, {bucket}, {1.0 / static_cast<double>(world_)});
  collective(host, CollectiveKind::kAllReduce, bucket, bucket, -1, ReduceOp::kSum);
  SymTensor reduced = bucket;
  if (world_ != 1) {  // A product with the predivide factor (1), out of place.
    reduced = host.empty({elements_}, bucket->dtype, BufferCategory::kReduceTemporary);
    host.launch(OpKind::kMulScalar, {bucket}, {reduced}, {1.0});
  }
  if (communication_dtype() != grad_accum_dtype()) {
    reduced = host.cast(reduced, grad_accum_dtype(), BufferCategory::kReduceTemporary);
  }
  std::int64_t offset = 0;
  for (const ParameterId id : bucket_) {
    const PartitionedParameter& p = parameters_.at(id);
    const std::int64_t begin = std::min(rank_ * p.partition, p.numel),
                       n = std::min(p.partition, p.numel - begin);
    if (n > 0) keep_partition(host, id, flat_view(host, reduced, offset + begin, n));
    offset += p.numel;
  }
}

/// The first micro-batch fills the static buffer of gradients, later ones add to it.
void Zero3::keep_partition(Host& host, ParameterId id, const SymTensor& part) {
  const SymTensor kept = flat_view(host, parameters_.at(id).gradient, 0, part->numel);
  const SymTensor wide = host.cast(part, grad_accum_dtype(), BufferCategory::kReduceTemporary);
  if (offload_optimizer_) return offload_partition(host, id, wide, kept);
  if (micro_ == 0) {
    host.launch(OpKind::kCopy, {wide}, {kept});
  } else {
    host.launch(OpKind::kAddInPlace, {kept, wide}, {kept});
  }
}

/// The buffer is in host memory: sums are made on the device and go down; at the boundary the norm
/// and an fp32 copy.
void Zero3::offload_partition(Host& host, ParameterId id, const SymTensor& part,
                              const SymTensor& kept) {
  SymTensor sum = part;
  if (micro_ == 0) {
    copy_across(host, part, kept, false);
    sum = to_device(host, kept, BufferCategory::kReduceTemporary,
                    false);  // Up again at once, used or not.
  } else {
    sum = to_device(host, kept, BufferCategory::kReduceTemporary, false);
    host.launch(OpKind::kAddInPlace, {sum, part}, {sum});
    copy_across(host, sum, kept, false);
  }
  if (!boundary_) return;
  parameter_norms_[id] = wide_norm(host, sum);
  const PartitionedParameter& p = parameters_.at(id);
  const SymTensor place =
      flat_view(host, offloaded_gradients_[p.sub_group], p.position, part->numel);
  const SymTensor wide = host.cast(sum, DType::kFloat32, BufferCategory::kReduceTemporary);
  if (in_host_memory(place)) return copy_across(host, wide, place, false);
  host.launch(OpKind::kCopy, {wide}, {place});
}

/// Z3-G-3.
void Zero3::end_micro_batch(Host& host) {
  host.set_phase(Phase::kBackward);
  spend(host, kEngineBackwardUs);
  reduce_bucket(host);
  host.program().sync_stream(reduce_stream_);
  emit({.kind = EventKind::kHostSync, .on = stream_name(reduce_stream_)});
  release_leftovers(host);
  if (!boundary_) end_engine_step(host);
}

}  // namespace foreshard::zero
