// ZeRO 3: all-gathers of parameters (Z3-AG-2, Z3-AG-3, Z3-X).

#include <algorithm>
#include <utility>

#include "schedules/planner/frameworks/zero3.h"
#include "schedules/planner/frameworks/zero_host_time.h"

namespace foreshard::zero {
namespace {

constexpr std::size_t kMostFetchEvents = 2;

}  // namespace

/// Its lists keep their memory.
void destroy(GatherHandle* h) {
  h->parameters.clear();
  h->parts.clear();
  h->flat.reset();
  h->bytes.reset();
  h->scales.reset();
  h->complete = false;
  h->pool->give_back(h);
}

/// Parameters with a secondary part come from the secondary group, the others from the job.
void Zero3::start_gather(Host& host, const std::vector<ParameterId>& wanted, const char* cause) {
  std::vector<ParameterId> ids;
  std::copy_if(wanted.begin(), wanted.end(), std::back_inserter(ids),
               [&](ParameterId id) { return parameters_.at(id).status == Status::kPartitioned; });
  if (ids.empty()) return;
  std::sort(ids.begin(), ids.end(),
            [&](ParameterId a, ParameterId b) { return position_.at(a) < position_.at(b); });
  std::int64_t numel = 0;
  for (const ParameterId id : ids) numel += parameters_.at(id).numel;
  available_ += numel;
  if (observed())
    emit({.kind = EventKind::kGather, .parameters = ids, .numel = numel, .cause = cause});
  const StreamGuard guard(host, gather_stream_);
  spend(host, kGather.of(ids.size()));
  cause_ = cause;
  std::vector<ParameterId> here;
  if (options_.hpz_partition_size > 1) {
    const auto has_secondary = [&](ParameterId id) {
      return static_cast<bool>(parameters_.at(id).secondary);
    };
    std::copy_if(ids.begin(), ids.end(), std::back_inserter(here), has_secondary);
    std::erase_if(ids, has_secondary);
  }
  if (!here.empty()) start_gather_of(host, here, true);
  if (!ids.empty()) start_gather_of(host, ids, false);
  cause_.clear();
}

SymTensor Zero3::new_data(Host& host, PartitionedParameter& p) {
  SymTensor whole = host.empty({world_ * p.partition}, dtype_, BufferCategory::kUnshardedParameter);
  host.set_data(p.full, host.view_as(whole, p.full->shape));
  return whole;
}

/// One rank gathers nothing.
void Zero3::start_gather_of(Host& host, const std::vector<ParameterId>& ids, bool secondary) {
  const Ref<GatherHandle> handle(handles_.take());
  handle->pool = &handles_;
  handle->parameters = ids;
  handle->ranks = secondary ? options_.hpz_partition_size : world_;
  const GroupId group = secondary ? secondary_group_ : group_;
  TensorList parts;
  parts.reserve(ids.size());
  for (const ParameterId id : ids) {
    PartitionedParameter& p = parameters_.at(id);
    p.status = Status::kInFlight;
    p.handle = handle;
    handle->parts.push_back(world_ * p.partition / handle->ranks);
    parts.push_back(secondary ? p.secondary : p.shard);
  }
  if (world_ == 1) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      PartitionedParameter& p = parameters_.at(ids[i]);
      const SymTensor data = to_device(host, parts[i], BufferCategory::kUnshardedParameter, false);
      host.set_data(p.full, host.view_as(data, p.full->shape, data->offset));
    }
    return;
  }
  if (options_.quantised_weights) {
    gather_quantised(host, *handle, parts, group);
  } else {
    gather_parts(host, *handle, parts, group);
  }
}

/// Z3-AG-2: one parameter straight into its own memory, several through one flat buffer.
void Zero3::gather_parts(Host& host, GatherHandle& handle, const TensorList& parts, GroupId group) {
  if (parts.size() == 1) {
    const SymTensor whole = new_data(host, parameters_.at(handle.parameters[0]));
    const SymTensor part = to_device(host, parts[0], BufferCategory::kGatherInput, true);
    collective_in(host, group, CollectiveKind::kAllGather, part, whole);
    return;
  }
  std::int64_t total = 0;
  for (const std::int64_t n : handle.parts) total += n;
  handle.flat = host.empty({handle.ranks * total}, dtype_, BufferCategory::kGatherOutput);
  const SymTensor own = flat_view(host, handle.flat, rank_ % handle.ranks * total, total);
  {
    TensorList here;
    for (const SymTensor& part : parts)
      here.push_back(to_device(host, part, BufferCategory::kGatherInput, true));
    const TensorList out{own};
    launch_lists(host, OpKind::kCat, {&here}, {&out}, {0.0});
  }
  collective_in(host, group, CollectiveKind::kAllGather, own, handle.flat);
}

/// On the all-gather stream: the pieces of every parameter are put together in new memory.
void Zero3::finish_gather(Host& host, GatherHandle& handle) {
  if (std::exchange(handle.complete, true)) return;
  const StreamGuard guard(host, gather_stream_);
  if (handle.bytes) finish_quantised(host, handle);
  const std::int64_t row = handle.flat ? handle.flat->numel / handle.ranks : 0;
  if (handle.flat) {
    spend(host, (kPutTogether.each_us + kPieceUs * static_cast<double>(handle.ranks)) *
                    static_cast<double>(handle.parameters.size()));
  }
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < handle.parameters.size(); ++i) {
    PartitionedParameter& p = parameters_.at(handle.parameters[i]);
    p.status = Status::kAvailable;
    if (!handle.flat) continue;
    const SymTensor whole = new_data(host, p);
    const std::array<std::int64_t, 2> strides{row, 1};
    const Shape shape{handle.ranks, handle.parts[i]};
    host.launch(OpKind::kCopy, {host.view_as(handle.flat, shape, strides, offset)},
                {host.view_as(whole, shape)});
    offset += handle.parts[i];
  }
  handle.flat.reset();
}

/// Z3-AG-3: one event per parameter; with three outstanding the host waits for the oldest.
void Zero3::wait_for(Host& host, ParameterId id, bool fast) {
  PartitionedParameter& p = parameters_.at(id);
  if (!p.handle) return;
  spend(host, kWaitUs);
  if (fetch_events_.size() > kMostFetchEvents) {
    sync_event(host, fetch_events_.front());
    fetch_events_.pop_front();
  }
  if (world_ == 1 && !p.handle->complete) {  // Nothing to gather: the host waits for the copy.
    host.program().sync_stream(gather_stream_);
    emit({.kind = EventKind::kHostSync, .on = stream_name(gather_stream_)});
  }
  finish_gather(host, *p.handle);
  p.handle.reset();
  if (!fast) fetch_events_.push_back(host.record_event(gather_stream_));
}

/// _partition_param_sec: this rank's part of the secondary group, copied out of the whole before it
/// goes; the host waits.
void Zero3::make_secondary(Host& host, PartitionedParameter& p) {
  const std::int64_t part = world_ * p.partition / options_.hpz_partition_size;
  const std::int64_t begin = std::min(rank_ % options_.hpz_partition_size * part, p.numel),
                     n = std::min(part, p.numel - begin);
  p.secondary =
      offload_parameters_
          ? host_tensor(host, part, dtype_, BufferCategory::kShardedParameter, options_.pin_memory)
          : host.empty({part}, dtype_, BufferCategory::kShardedParameter);
  host.launch(OpKind::kFill, {}, {p.secondary}, {0.0});
  if (n > 0) {
    const SymTensor from = flat_view(host, p.full, begin, n),
                    to = flat_view(host, p.secondary, 0, n);
    if (offload_parameters_) {
      copy_across(host, from, to, true);
    } else {
      host.launch(OpKind::kCopy, {from}, {to});
    }
  }
  host.program().sync_stream(host.stream());
  emit({.kind = EventKind::kHostSync, .on = stream_name(host.stream())});
}

/// Z3-P-2: one all-gather each on the compute stream, then the host waits for the device. One rank
/// gathers nothing where there are several, and waits for the stream.
void Zero3::gather_persistent(Host& host) {
  std::vector<ParameterId> ids;
  for (const ParameterId id : ids_) {
    const PartitionedParameter& p = parameters_.at(id);
    if (p.persistent && p.status == Status::kPartitioned) ids.push_back(id);
  }
  if (ids.empty()) return;
  spend(host, kPersistent.of(ids.size()));
  const bool alone = world_ == 1 && ids.size() > 1;
  for (const ParameterId id : ids) {
    PartitionedParameter& p = parameters_.at(id);
    if (alone) {
      const SymTensor data = to_device(host, p.shard, BufferCategory::kUnshardedParameter, false);
      host.set_data(p.full, host.view_as(data, p.full->shape, data->offset));
    } else {
      const SymTensor part = to_device(host, p.shard, BufferCategory::kGatherInput, true);
      collective(host, CollectiveKind::kAllGather, part, new_data(host, p));
    }
    p.status = Status::kAvailable;
  }
  if (!alone) return sync_device(host, cause_);
  host.program().sync_stream(host.stream());
  emit({.kind = EventKind::kHostSync, .on = stream_name(host.stream())});
}

}  // namespace foreshard::zero
