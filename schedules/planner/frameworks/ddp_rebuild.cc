// DDP's buckets: their memory, and the rebuild in the order in which gradients arrive (D-4, D-8).

#include <algorithm>

#include "schedules/planner/frameworks/ddp.h"

namespace foreshard::ddp {

void Ddp::make_buckets(Host& host, const std::vector<Indices>& assignment) {
  buckets_.resize(assignment.size());
  place_.assign(parameters_.size(), {});
  for (std::size_t b = 0; b < assignment.size(); ++b) {
    Bucket& bucket = buckets_[b];
    bucket.parameters = assignment[b];
    ShardUnit unit;
    unit.name = "bucket " + std::to_string(b) + (rebuilt_ ? "" : " (first)");
    std::int64_t numel = 0;
    unit.parameters.reserve(bucket.parameters.size());
    for (std::size_t k = 0; k < bucket.parameters.size(); ++k) {
      const std::size_t i = bucket.parameters[k];
      place_[i] = {b, k};
      unit.parameters.push_back(host.model().at(locals_[reduced_[i]].id).name);
      numel += parameters_[i]->numel;
    }
    unit.numel = unit.padded_numel = unit.shard_numel = Elements(numel);
    DType dtype = parameters_[bucket.parameters[0]]->dtype;
    if (rebuilt_ && options_.mixed_precision)
      dtype = options_.mixed_precision->param.value_or(dtype);
    unit.gather_dtype = dtype;
    unit.reduce_dtype =
        options_.mixed_precision ? options_.mixed_precision->reduce.value_or(dtype) : dtype;
    bucket.unit = host.program().add_unit(std::move(unit));
    bucket.numel = numel;
    bucket.dtype = dtype;
    if (!options_.lazy_bucket_allocation) make_storage(host, bucket);
  }
}

/// initialize_bucket_storage. With lazy allocation: when the first gradient comes.
void Ddp::make_storage(Host& host, Bucket& bucket) {
  bucket.buffer = host.empty({bucket.numel}, bucket.dtype, BufferCategory::kBucket, bucket.unit);
  make_views(host, bucket);
}

/// release_bucket_storage: gradients that are views of it keep the memory until they go.
void Ddp::release_storage() {
  for (Bucket& b : buckets_) {
    b.result.reset();
    b.views.clear();
    b.buffer.reset();
  }
}

/// initialize_bucket_views: with gradient_as_bucket_view, gradients that are there move into the
/// new bucket.
void Ddp::make_views(Host& host, Bucket& bucket) {
  bucket.views.clear();
  bucket.views.reserve(bucket.parameters.size());
  std::int64_t offset = 0;
  for (const std::size_t i : bucket.parameters) {
    const SymTensor& p = parameters_[i];
    bucket.views.push_back(host.view_as(bucket.buffer, p->shape, offset));
    offset += p->numel;
    if (!options_.gradient_as_bucket_view || !p->grad) continue;
    host.launch(OpKind::kCopy, {p->grad}, {bucket.views.back()});
    p->grad = bucket.views.back();
  }
}

/// Reducer::rebuild_buckets; with a small last bucket (D-5) the assignment runs over the reversed
/// order.
void Ddp::rebuild(Host& host) {
  if (options_.last_bucket_small) std::reverse(arrival_.begin(), arrival_.end());
  std::vector<Indices> assignment =
      assign_buckets(parameters_, rebuild_limits(options_), &arrival_).buckets;
  if (options_.last_bucket_small) std::reverse(assignment.begin(), assignment.end());
  sync_indices(host, static_cast<std::int64_t>(assignment.size()));
  rebuilt_ = true;
  arrival_.clear();
  for (Bucket& b : buckets_) b = {};  // Old buckets go before new ones are made.
  buckets_.clear();
  make_buckets(host, assignment);
  host.decide({.kind = DecisionKind::kBucketRebuilt,
               .number = static_cast<std::int32_t>(assignment.size())});
}

/// Reducer::sync_bucket_indices: rank 0's order and number of buckets, then their sizes, as int32;
/// the host reads both.
void Ddp::sync_indices(Host& host, std::int64_t count) {
  const auto send = [&](std::int64_t n) {
    SymTensor t = host.empty({n}, DType::kInt32, BufferCategory::kWorkspace);
    Copy up;
    up.bytes = Bytes(t->bytes());
    up.destination = host.id_of(t);
    up.blocks_host = true;
    host.copy(up);
    broadcast(host, t);
    Copy down;
    down.direction = CopyDirection::kDeviceToHost;
    down.bytes = Bytes(t->bytes());
    down.source = host.id_of(t);
    down.blocks_host = true;
    host.copy(down);
    return t;
  };
  const SymTensor indices = send(static_cast<std::int64_t>(parameters_.size()) + 1);
  send(count);
}

/// _verify_param_shape_across_processes (utils.cpp): numbers of parameters are gathered and each
/// read by the host; then rank 0's sizes and strides, int64, are compared with the own ones.
void Ddp::verify_parameters(Host& host) {
  const auto device_tensor = [&](std::int64_t n) {
    SymTensor t = host.empty({n}, DType::kInt64, BufferCategory::kWorkspace);
    Copy up;
    up.bytes = Bytes(t->bytes());
    up.destination = host.id_of(t);
    up.blocks_host = true;
    host.copy(up);
    return t;
  };
  const auto read = [&](const SymTensor& t) {
    Copy down;
    down.direction = CopyDirection::kDeviceToHost;
    down.bytes = Bytes(t->bytes());
    down.source = host.id_of(t);
    down.blocks_host = true;
    host.copy(down);
  };
  const SymTensor count = device_tensor(1);
  const SymTensor counts = host.empty({world_}, DType::kInt64, BufferCategory::kWorkspace);
  const EventId gathered = collective(host, CollectiveKind::kAllGather, count, counts);
  host.wait_event(host.stream(), gathered);
  read(counts);
  std::int64_t numbers = 0;
  for (const SymTensor& p : parameters_) numbers += 2 * p->shape.rank;
  if (numbers == 0) return;
  const SymTensor metadata = device_tensor(numbers);
  broadcast(host, metadata);
  read(metadata);
}

}  // namespace foreshard::ddp
