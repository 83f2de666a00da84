// ZeRO 3: when parameters are gathered and released (Z3-P-4, Z3-AG-*, Z3-R-*).

#include <algorithm>
#include <utility>

#include "schedules/planner/frameworks/zero3.h"

namespace foreshard::zero {
namespace {

constexpr std::size_t kMostFetchEvents = 2;

}  // namespace

std::vector<ParameterId> Zero3::parameters_of(const Model& model, ModuleId m, bool recurse) const {
  std::set<ParameterId> found;
  const auto visit = [&](const auto& self, ModuleId at) -> void {
    for (const OwnedParameter& p : model.at(at).parameters) found.insert(p.id);
    if (!recurse) return;
    for (const ChildModule& c : model.at(at).children) self(self, c.id);
  };
  visit(visit, m);
  std::vector<ParameterId> ids(found.begin(), found.end());
  std::sort(ids.begin(), ids.end(), [&](ParameterId a, ParameterId b) { return position_.at(a) < position_.at(b); });
  return ids;
}

void Zero3::emit_released(EventKind kind, std::vector<ParameterId> ids, ModuleId m, bool forward) {
  if (ids.empty()) return;
  std::sort(ids.begin(), ids.end(), [&](ParameterId a, ParameterId b) { return position_.at(a) < position_.at(b); });
  emit({.kind = kind, .parameters = std::move(ids), .module = m, .forward = forward});
}

// ---------------------------------------------------------------------------------------------- trace

/// A list that all ranks must share: its length and its values are broadcast and read by the host.
void Zero3::compare_integers(Host& host, std::int64_t count) {
  for (const std::int64_t n : {std::int64_t{1}, count}) {
    if (n == 0) {                          // An empty broadcast does nothing.
      emit({.kind = EventKind::kCollective, .number = 0, .collective = CollectiveKind::kBroadcast, .group_size = world_,
            .dtype = DType::kInt64, .stream = stream_name(host.stream())});
      continue;
    }
    const SymTensor t = host.empty({n}, DType::kInt64, BufferCategory::kWorkspace);
    host.launch(OpKind::kFill, {}, {t}, {0.0});
    collective(host, CollectiveKind::kBroadcast, t, t, 0);
    Copy down;
    down.direction = CopyDirection::kDeviceToHost;
    down.bytes = Bytes(t->bytes());
    down.source = host.id_of(t);
    down.blocks_host = true;
    host.copy(down);
  }
}

/// At each forward of the model: the first one records, later ones follow the record.
void Zero3::reset_step(Host& host) {
  std::vector<ParameterId> released;
  for (auto& [id, p] : parameters_) {
    if (p.status != Status::kInFlight) continue;
    finish_gather(host, *p.handle);
    if (release(host, id)) released.push_back(id);
  }
  emit_released(EventKind::kReleaseAll, std::move(released));
  if (trace_ != Trace::kComplete) {
    compare_integers(host, static_cast<std::int64_t>(module_order_.size()));
    if (trace_ == Trace::kRecord) {
      parameter_order_.clear();
      for (std::size_t s = 0; s < module_order_.size(); ++s) {
        for (const ParameterId id : parameters_of(host.model(), module_order_[s], is_leaf(module_order_[s]))) {
          parameter_order_.push_back({id, static_cast<std::int64_t>(s)});
        }
      }
      compare_integers(host, static_cast<std::int64_t>(parameter_order_.size()));
      compare_integers(host, static_cast<std::int64_t>(parameter_order_.size()));
      trace_ = Trace::kComplete;
    } else {
      trace_ = Trace::kRecord;
    }
  }
  queue_.assign(parameter_order_.begin(), parameter_order_.end());
  fetched_for_.clear();
  trace_step_ = available_ = 0;
  emit({.kind = EventKind::kTrace, .cause = trace_ == Trace::kComplete ? "complete" : "record"});
}

void Zero3::check_trace(Host& host, ModuleId m) {
  if (trace_ == Trace::kRecord) module_order_.push_back(m);
  if (trace_ != Trace::kComplete) return;
  const auto step = static_cast<std::size_t>(trace_step_);
  if (step < module_order_.size() && module_order_[step] == m) return;
  emit({.kind = EventKind::kTraceInvalidated});
  trace_ = Trace::kInvalid;
  module_order_.clear();
  parameter_order_.clear();
  queue_.clear();
  fetched_for_.clear();
  std::vector<ParameterId> released;
  for (auto& [id, p] : parameters_) {
    if (p.status != Status::kInFlight) continue;
    finish_gather(host, *p.handle);
    if (release(host, id)) released.push_back(id);
  }
  emit_released(EventKind::kReleaseAll, std::move(released));
}

// ---------------------------------------------------------------------------------------------- module hooks

void Zero3::pre_forward(Host& host, ModuleId m, std::span<SymTensor> inputs) {
  check_trace(host, m);
  fetch(host, m, true);
  for (SymTensor& t : inputs) {
    if (t && host.requires_grad(t) && host.grad_enabled()) host.apply_function({&t, 1}, m.value * 2);
  }
}

void Zero3::post_forward(Host& host, ModuleId m, std::span<SymTensor>, std::span<SymTensor> outputs) {
  release_module(host, m, true);
  for (SymTensor& t : outputs) {
    if (t && host.requires_grad(t) && host.grad_enabled()) host.apply_function({&t, 1}, m.value * 2 + 1);
  }
}

void Zero3::on_function_backward(Host& host, std::uint32_t payload) {
  const ModuleId m(payload / 2);
  if (payload % 2 == 0) return release_module(host, m, false);
  check_trace(host, m);
  if (std::find(active_backward_.begin(), active_backward_.end(), m) == active_backward_.end()) active_backward_.push_back(m);
  fetch(host, m, false);
}

// ---------------------------------------------------------------------------------------------- gathering

/// Z3-AG-1: what the module needs, then (along a complete trace) what comes next.
void Zero3::fetch(Host& host, ModuleId m, bool forward) {
  const NoGradGuard no_grad(host);
  const std::vector<ParameterId> ids = parameters_of(host.model(), m, is_leaf(m));
  if (!ids.empty()) emit({.kind = EventKind::kFetch, .module = m, .forward = forward});
  start_gather(host, ids, "fetch");
  for (const ParameterId id : ids) {
    parameters_.at(id).active.insert(m);
    wait_for(host, id);
  }
  wait(host, host.stream(), gather_stream_);
  if (trace_ == Trace::kComplete) prefetch(host, ids);
  ++trace_step_;
}

void Zero3::prefetch(Host& host, const std::vector<ParameterId>& fetched) {
  std::set<ParameterId> expected;
  for (const ParameterId id : fetched) {
    const auto at = fetched_for_.find(id);
    if (at == fetched_for_.end() || at->second < trace_step_) expected.insert(id);
  }
  for (std::size_t n = expected.size(); n > 0 && !queue_.empty(); --n) {
    fetched_for_[queue_.front().id] = queue_.front().step;
    queue_.pop_front();
  }
  const std::int64_t most = std::min(options_.max_live_parameters - available_, options_.prefetch_bucket_size);
  std::vector<ParameterId> next;
  std::int64_t numel = 0;
  while (options_.prefetch_bucket_size > 0 && !queue_.empty() && numel < most) {
    const Use use = queue_.front();
    queue_.pop_front();
    const auto [at, fresh] = fetched_for_.emplace(use.id, use.step);
    if (!fresh) at->second = std::max(at->second, use.step);
    const PartitionedParameter& p = parameters_.at(use.id);
    if (p.status != Status::kPartitioned || std::find(next.begin(), next.end(), use.id) != next.end()) continue;
    next.push_back(use.id);
    numel += p.numel;
  }
  start_gather(host, std::move(next), "prefetch");
}

/// Z3-AG-2: one parameter straight into its own memory, several through one flat buffer.
void Zero3::start_gather(Host& host, std::vector<ParameterId> ids, const char* cause) {
  std::erase_if(ids, [&](ParameterId id) { return parameters_.at(id).status != Status::kPartitioned; });
  if (ids.empty()) return;
  std::sort(ids.begin(), ids.end(), [&](ParameterId a, ParameterId b) { return position_.at(a) < position_.at(b); });
  std::int64_t numel = 0, parts = 0;
  for (const ParameterId id : ids) {
    numel += parameters_.at(id).numel;
    parts += parameters_.at(id).partition;
  }
  available_ += numel;
  emit({.kind = EventKind::kGather, .parameters = ids, .numel = numel, .cause = cause});
  const StreamGuard guard(host, gather_stream_);
  cause_ = cause;
  auto handle = std::make_shared<GatherHandle>();
  handle->parameters = ids;
  for (const ParameterId id : ids) {
    parameters_.at(id).status = Status::kInFlight;
    parameters_.at(id).handle = handle;
  }
  if (ids.size() == 1 || world_ == 1) {
    for (const ParameterId id : ids) {
      PartitionedParameter& p = parameters_.at(id);
      host.allocate_storage(p.full);
      const SymTensor whole = flat_view(host, p.full, 0, world_ * p.partition);
      if (world_ == 1) {
        host.launch(OpKind::kCopy, {p.shard}, {whole});
      } else {
        collective(host, CollectiveKind::kAllGather, p.shard, whole);
      }
    }
  } else {
    handle->flat = host.empty({world_ * parts}, dtype_, BufferCategory::kGatherOutput);
    const SymTensor own = flat_view(host, handle->flat, rank_ * parts, parts);
    TensorList shards;
    for (const ParameterId id : ids) shards.push_back(parameters_.at(id).shard);
    const TensorList out{own};
    launch_lists(host, OpKind::kCat, {&shards}, {&out}, {0.0});
    collective(host, CollectiveKind::kAllGather, own, handle->flat);
  }
  cause_.clear();
}

/// On the all-gather stream: the pieces of every parameter are put together in new memory.
void Zero3::finish_gather(Host& host, GatherHandle& handle) {
  if (std::exchange(handle.complete, true)) return;
  const StreamGuard guard(host, gather_stream_);
  const std::int64_t parts = handle.flat ? handle.flat->numel / world_ : 0;
  std::int64_t offset = 0;
  for (const ParameterId id : handle.parameters) {
    PartitionedParameter& p = parameters_.at(id);
    p.status = Status::kAvailable;
    if (!handle.flat) continue;
    host.allocate_storage(p.full);
    const std::array<std::int64_t, 2> strides{parts, 1};
    const SymTensor pieces = host.view_as(handle.flat, {world_, p.partition}, strides, offset);
    host.launch(OpKind::kCopy, {pieces}, {host.view_as(p.full, {world_, p.partition})});
    offset += p.partition;
  }
  handle.flat.reset();
}

/// Z3-AG-3: one event per parameter; with three outstanding the host waits for the oldest.
void Zero3::wait_for(Host& host, ParameterId id) {
  PartitionedParameter& p = parameters_.at(id);
  if (!p.handle) return;
  if (fetch_events_.size() > kMostFetchEvents) {
    host.program().sync_event(fetch_events_.front());
    fetch_events_.pop_front();
    emit({.kind = EventKind::kHostSync, .on = "event"});
  }
  if (world_ == 1 && !p.handle->complete) {   // Nothing to gather: the host waits for the copy.
    host.program().sync_stream(gather_stream_);
    emit({.kind = EventKind::kHostSync, .on = stream_name(gather_stream_)});
  }
  finish_gather(host, *p.handle);
  p.handle.reset();
  fetch_events_.push_back(host.record_event(gather_stream_));
}

// ---------------------------------------------------------------------------------------------- releasing

/// Z3-R-2.
bool Zero3::release(Host& host, ParameterId id) {
  PartitionedParameter& p = parameters_.at(id);
  if (p.status != Status::kAvailable || !p.active.empty()) return false;
  p.handle.reset();
  if (host.stream() != p.full->storage->pool) host.program().record_stream(p.full->storage->buffer, host.stream());
  host.free_storage(p.full);
  p.status = Status::kPartitioned;
  available_ -= p.numel;
  return true;
}

void Zero3::release_module(Host& host, ModuleId m, bool forward) {
  const std::vector<ParameterId> ids = parameters_of(host.model(), m, is_leaf(m));
  const std::set<ParameterId> all(ids.begin(), ids.end());
  const std::set<ParameterId>& may = trace_ == Trace::kComplete ? releasable(host, m) : all;
  if (!forward) std::erase(active_backward_, m);
  std::vector<ParameterId> released;
  for (const ParameterId id : ids) {
    parameters_.at(id).active.erase(m);
    if (may.count(id) != 0 && release(host, id)) released.push_back(id);
  }
  emit_released(EventKind::kRelease, std::move(released), m, forward);
}

/// Z3-R-1. Decided once for each place of the trace, as DeepSpeed caches it.
const std::set<ParameterId>& Zero3::releasable(Host& host, ModuleId m) {
  const auto [entry, fresh] = releasable_.try_emplace({m, trace_step_});
  std::set<ParameterId>& result = entry->second;
  if (!fresh) return result;
  const bool recurse = is_leaf(m);
  for (const ParameterId id : parameters_of(host.model(), m, recurse)) {
    const auto at = fetched_for_.find(id);
    const bool later = at != fetched_for_.end() && at->second > trace_step_;
    if (!parameters_.at(id).persistent && !later) result.insert(id);
  }
  std::int64_t traversed = 0;
  for (auto s = static_cast<std::size_t>(trace_step_); s < module_order_.size(); ++s) {
    if (traversed >= options_.max_reuse_distance) break;
    for (const ParameterId id : parameters_of(host.model(), module_order_[s], recurse)) {
      result.erase(id);
      traversed += parameters_.at(id).numel;
    }
  }
  return result;
}

/// Modules whose inputs take no gradient have no post-backward hook.
void Zero3::release_leftovers(Host& host) {
  std::vector<ParameterId> released;
  while (!active_backward_.empty()) {
    const ModuleId m = active_backward_.back();
    active_backward_.pop_back();
    for (const ParameterId id : parameters_of(host.model(), m, is_leaf(m))) {
      PartitionedParameter& p = parameters_.at(id);
      p.active.erase(m);
      if (!p.persistent && release(host, id)) released.push_back(id);
    }
  }
  emit_released(EventKind::kReleaseAll, std::move(released));
}

void Zero3::release_all(Host& host) {
  std::vector<ParameterId> released;
  for (const ParameterId id : ids_) {
    PartitionedParameter& p = parameters_.at(id);
    if (p.status == Status::kInFlight) finish_gather(host, *p.handle);
    p.active.clear();
    if (release(host, id)) released.push_back(id);
  }
  emit_released(EventKind::kReleaseAll, std::move(released));
}

}  // namespace foreshard::zero
