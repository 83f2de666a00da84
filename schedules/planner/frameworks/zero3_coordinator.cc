// ZeRO 3: when parameters are gathered and released (Z3-P-4, Z3-AG-*, Z3-R-*).

#include <algorithm>
#include <utility>

#include "schedules/planner/frameworks/zero3.h"
#include "schedules/planner/frameworks/zero_host_time.h"

namespace foreshard::zero {
const std::vector<ParameterId>& Zero3::find_parameters(const Model& model, ModuleId m,
                                                       bool recurse) {
  auto& known = parameters_of_[recurse ? 1 : 0];
  known.resize(model.modules.size());
  std::vector<ParameterId>& ids = known[m.value].emplace();
  const auto visit = [&](const auto& self, ModuleId at) -> void {
    for (const OwnedParameter& p : model.at(at).parameters) ids.push_back(p.id);
    if (!recurse) return;
    for (const ChildModule& c : model.at(at).children) self(self, c.id);
  };
  visit(visit, m);
  std::sort(ids.begin(), ids.end(),
            [&](ParameterId a, ParameterId b) { return position_.at(a) < position_.at(b); });
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

void Zero3::emit_released(EventKind kind, std::vector<ParameterId> ids, ModuleId m, bool forward) {
  if (ids.empty() || !observed()) return;
  std::sort(ids.begin(), ids.end(),
            [&](ParameterId a, ParameterId b) { return position_.at(a) < position_.at(b); });
  emit({.kind = kind, .parameters = std::move(ids), .module = m, .forward = forward});
}

// ----------------------------------------------------------------------------------------------
// trace

/// A list that all ranks must share: its length and its values are broadcast and read by the host.
void Zero3::compare_integers(Host& host, std::int64_t count) {
  for (const std::int64_t n : {std::int64_t{1}, count}) {
    if (n == 0) {  // An empty broadcast does nothing.
      emit({.kind = EventKind::kCollective,
            .number = 0,
            .collective = CollectiveKind::kBroadcast,
            .group_size = world_,
            .dtype = DType::kInt64,
            .stream = stream_name(host.stream())});
      continue;
    }
    const SymTensor t = host.empty({n}, DType::kInt64, BufferCategory::kWorkspace);
    host.launch(OpKind::kFill, {}, {t}, {0.0});
    collective(host, CollectiveKind::kBroadcast, t, t, 0);
    host.read_back(t);
  }
}

/// What is in flight arrives and is dropped.
void Zero3::clean_in_flight(Host& host) {
  std::vector<ParameterId> released;
  for (std::uint32_t i = 0; i < parameters_.size(); ++i) {
    const ParameterId id(i);
    const PartitionedParameter& p = parameters_.at(id);
    if (p.status != Status::kInFlight) continue;
    finish_gather(host, *p.handle);
    if (release(host, id)) released.push_back(id);
  }
  emit_released(EventKind::kReleaseAll, std::move(released));
}

/// At each forward of the model: the first one records, later ones follow the record.
void Zero3::reset_step(Host& host) {
  clean_in_flight(host);
  if (trace_ != Trace::kComplete) {
    compare_integers(host, static_cast<std::int64_t>(module_order_.size()));
    if (trace_ == Trace::kRecord) {
      parameter_order_.clear();
      for (std::size_t s = 0; s < module_order_.size(); ++s) {
        for (const ParameterId id :
             parameters_of(host.model(), module_order_[s], is_leaf(module_order_[s]))) {
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
  fetched_for_.assign(parameters_.size(), kNever);
  trace_step_ = available_ = 0;
  emit({.kind = EventKind::kTrace, .cause = trace_ == Trace::kComplete ? "complete" : "record"});
}

void Zero3::check_trace(Host& host, ModuleId m) {
  if (trace_ == Trace::kComplete) {
    const auto step = static_cast<std::size_t>(trace_step_);
    if (step < module_order_.size() && module_order_[step] == m) return;
    emit({.kind = EventKind::kTraceInvalidated});
    trace_ = Trace::kInvalid;
    module_order_.clear();
    parameter_order_.clear();
    queue_.clear();
    fetched_for_.assign(parameters_.size(), kNever);
    clean_in_flight(host);
  }
  if (trace_ == Trace::kRecord) module_order_.push_back(m);
}

// ----------------------------------------------------------------------------------------------
// module hooks

namespace {

/// What a pass-through function of a module is for.
enum Hook : std::uint32_t { kPostBackward, kPreBackward, kLeafGradients, kHooks };

}  // namespace

void Zero3::pre_forward(Host& host, ModuleId m, std::span<SymTensor> inputs) {
  check_trace(host, m);
  fetch(host, m, true);
  spend(host, kApply.of(inputs.size()));
  grads_remaining_.resize(host.model().modules.size());
  int& remaining = grads_remaining_[m.value];
  remaining = 0;
  const bool leaf = is_leaf(m);
  std::vector<SymTensor> with_gradient;  // Of a leaf.
  for (SymTensor& t : inputs) {
    if (!host.requires_grad(t)) continue;
    ++remaining;
    if (host.grad_enabled()) host.apply_function({&t, 1}, m.value * kHooks + kPostBackward);
    if (leaf) with_gradient.push_back(t);
  }
  // register_full_backward_hook of a leaf: one function over all inputs.
  if (!host.grad_enabled() || with_gradient.empty()) return;
  host.apply_function(with_gradient, m.value * kHooks + kLeafGradients);
  std::size_t k = 0;
  for (SymTensor& t : inputs)
    if (host.requires_grad(t)) t = with_gradient[k++];
}

void Zero3::post_forward(Host& host, ModuleId m, std::span<SymTensor> inputs,
                         std::span<SymTensor> outputs) {
  release_module(host, m, true);
  spend(host, kApply.of(outputs.size()));
  const bool any = std::any_of(inputs.begin(), inputs.end(),
                               [&](const SymTensor& t) { return host.requires_grad(t); });
  for (SymTensor& t : outputs) {
    if (!host.requires_grad(t) || !host.grad_enabled()) continue;
    host.apply_function({&t, 1}, m.value * kHooks + kPreBackward);
    // Without an input that takes a gradient the hook fires when the output's gradient comes.
    if (is_leaf(m) && !any) host.apply_function({&t, 1}, m.value * kHooks + kLeafGradients);
  }
}

void Zero3::on_function_backward(Host& host, std::uint32_t payload) {
  const ModuleId m(payload / kHooks);
  switch (payload % kHooks) {
    case kPostBackward:
      if (--grads_remaining_[m.value] == 0) release_module(host, m, false);
      return;
    case kLeafGradients:
      return reduce_leaf(host, m);
    default:
      break;
  }
  check_trace(host, m);
  if (std::find(active_backward_.begin(), active_backward_.end(), m) == active_backward_.end())
    active_backward_.push_back(m);
  fetch(host, m, false);
}

// ----------------------------------------------------------------------------------------------
// fetching

namespace {

void add_user(PartitionedParameter& p, ModuleId m) {
  if (std::find(p.active.begin(), p.active.end(), m) == p.active.end()) p.active.push_back(m);
}

}  // namespace

/// Z3-AG-1: what the module needs, then (along a complete trace) what comes next.
void Zero3::fetch(Host& host, ModuleId m, bool forward) {
  const NoGradGuard no_grad(host);
  const std::vector<ParameterId>& ids = parameters_of(host.model(), m, is_leaf(m));
  spend(host, forward ? kBeforeForward.of(ids.size()) : kBeforeBackward.of(ids.size()));
  if (!ids.empty() && observed())
    emit({.kind = EventKind::kFetch, .module = m, .forward = forward});
  if (!ids.empty()) start_gather(host, ids, "fetch");
  const bool recomputing = forward && host.in_backward() && !active_backward_.empty();
  for (const ParameterId id : ids) {
    PartitionedParameter& p = parameters_.at(id);
    add_user(p, m);
    if (recomputing && !p.trainable) {  // No hook of its own will release it.
      recompute_[active_backward_.back()].insert(id);
      add_user(p, active_backward_.back());
    }
    wait_for(host, id, fast_leaves_ && is_leaf(m));
  }
  wait(host, host.stream(), gather_stream_);
  if (trace_ == Trace::kComplete) prefetch(host, ids);
  ++trace_step_;
}

void Zero3::prefetch(Host& host, const std::vector<ParameterId>& fetched) {
  auto expected = std::count_if(fetched.begin(), fetched.end(),
                                [&](ParameterId id) { return fetched_for_.at(id) < trace_step_; });
  for (; expected > 0 && !queue_.empty(); --expected) {
    fetched_for_.at(queue_.front().id) = queue_.front().step;
    queue_.pop_front();
  }
  const std::int64_t most =
      std::min(options_.max_live_parameters - available_, options_.prefetch_bucket_size);
  std::vector<ParameterId> next;
  std::int64_t numel = 0;
  while (options_.prefetch_bucket_size > 0 && !queue_.empty() && numel < most) {
    const Use use = queue_.front();
    queue_.pop_front();
    fetched_for_.at(use.id) = std::max(fetched_for_.at(use.id), use.step);
    const PartitionedParameter& p = parameters_.at(use.id);
    if (p.status != Status::kPartitioned ||
        std::find(next.begin(), next.end(), use.id) != next.end())
      continue;
    next.push_back(use.id);
    numel += p.numel;
  }
  start_gather(host, next, "prefetch");
}

// ----------------------------------------------------------------------------------------------
// releasing

/// Z3-R-2: the parameter forgets its data; `record`: the device may still read it.
bool Zero3::release(Host& host, ParameterId id, bool record) {
  PartitionedParameter& p = parameters_.at(id);
  if (p.status != Status::kAvailable || !p.active.empty()) return false;
  p.handle.reset();
  spend(host, kReleaseUs);
  if (options_.hpz_partition_size > 1 && !p.secondary) make_secondary(host, p);
  const SymStorage& s = *p.full->storage;
  if (record && s.buffer.valid() && host.stream() != s.pool)
    host.program().record_stream(s.buffer, host.stream());
  host.set_data(p.full, p.nothing);
  p.status = Status::kPartitioned;
  available_ -= p.numel;
  return true;
}

void Zero3::release_module(Host& host, ModuleId m, bool forward) {
  const std::vector<ParameterId>& own = parameters_of(host.model(), m, is_leaf(m));
  spend(host, forward ? kAfterForward.of(own.size()) : kAfterBackward.of(own.size()));
  const bool decided = !own.empty() && trace_ == Trace::kComplete;
  const std::vector<ParameterId>& may = decided ? releasable(host, m) : own;
  std::vector<ParameterId>& ids = releasing_;
  ids = own;
  std::set<ParameterId> fetched;  // By a recomputation.
  if (!forward) {
    if (const auto at = recompute_.find(m); at != recompute_.end()) {
      fetched = std::move(at->second);
      recompute_.erase(at);
      ids.insert(ids.end(), fetched.begin(), fetched.end());
    }
    std::erase(active_backward_, m);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  std::vector<ParameterId> released;
  const bool record = !fast_leaves_ || !is_leaf(m);
  for (const ParameterId id : ids) {
    PartitionedParameter& p = parameters_.at(id);
    std::erase(p.active, m);
    const bool may_go = std::find(may.begin(), may.end(), id) != may.end() ||
                        (fetched.count(id) != 0 && !p.persistent);
    if (may_go && release(host, id, record) && observed()) released.push_back(id);
  }
  emit_released(EventKind::kRelease, std::move(released), m, forward);
}

/// Z3-R-1. Decided once for each place of the trace, as DeepSpeed caches it.
const std::vector<ParameterId>& Zero3::releasable(Host& host, ModuleId m) {
  const auto [entry, fresh] = releasable_.try_emplace({m, trace_step_});
  std::vector<ParameterId>& result = entry->second;
  if (!fresh) return result;
  const bool recurse = is_leaf(m);
  for (const ParameterId id : parameters_of(host.model(), m, recurse)) {
    const bool later = fetched_for_.at(id) > trace_step_;
    if (!parameters_.at(id).persistent && !later) result.push_back(id);
  }
  std::int64_t traversed = 0;
  for (auto s = static_cast<std::size_t>(trace_step_); s < module_order_.size(); ++s) {
    if (result.empty() || traversed >= options_.max_reuse_distance) break;
    for (const ParameterId id : parameters_of(host.model(), module_order_[s], recurse)) {
      std::erase(result, id);
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
    const std::vector<ParameterId>& own = parameters_of(host.model(), m, is_leaf(m));
    std::set<ParameterId> ids(own.begin(), own.end());
    ids.merge(recompute_[m]);
    recompute_.erase(m);
    for (const ParameterId id : ids) {
      PartitionedParameter& p = parameters_.at(id);
      std::erase(p.active, m);
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
