// DDP's reducer in backward (D-6, D-7, D-9): gradients go into their buckets as they become ready,
// full buckets go out in order, results come back at the end.

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "schedules/planner/foreach.h"
#include "schedules/planner/frameworks/ddp.h"
#include "schedules/planner/host/host_time.h"

namespace foreshard::ddp {

void Ddp::ensure_prior_reduction_finished() const {
  if (!must_finalize_) return;
  const auto missing = std::count(ready_.begin(), ready_.end(), std::uint8_t{0});
  const std::string what = std::to_string(missing) + " of " + std::to_string(parameters_.size()) +
                           " parameters got no gradient in the iteration before";
  throw DdpError(Refusal::kRuntimeError, "ddp", what,
                 options_.static_graph
                     ? "a graph that stays the same"
                     : "find_unused_parameters (--ddp-find-unused-parameters yes), or a loss "
                       "that uses all of them");
}

/// Reducer::prepare_for_backward. Unused parameters are marked only when the first gradient
/// arrives.
void Ddp::prepare_for_backward(Host& host, std::span<const SymTensor> outputs) {
  expects_hooks_ = true;
  next_bucket_ = 0;
  for (Bucket& b : buckets_) {
    b.pending = b.parameters.size();
    b.deferred.clear();
  }
  if (options_.static_graph) hooks_left_ = hook_count_;
  marked_unused_ = false;
  ready_.assign(parameters_.size(), 0);
  if (!searches()) return;
  unused_.clear();
  // The search looks for the accumulators of the full parameters; with low precision ones in the
  // graph it finds none.
  const std::vector<const SymTensorImpl*> used =
      options_.mixed_precision ? std::vector<const SymTensorImpl*>{} : host.leaves_of(outputs);
  const std::set<const SymTensorImpl*> leaves(used.begin(), used.end());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (leaves.count(parameters_[i].get()) == 0) unused_.push_back(i);
  }
}

/// Reducer::autograd_hook.
void Ddp::on_accumulated(Host& host, std::uint32_t payload) {
  const std::uint32_t local = payload & ~kSecondHook;
  if (local == payload)
    host.decide({.kind = DecisionKind::kGradientReady, .parameter = locals_[local].id});
  const std::size_t i = place_in_reduced_[local];
  if (i >= parameters_.size()) return;
  spend_host(host, kDdpHookUs, "gradient hooks");
  if (!first_hook_called_) {
    first_hook_called_ = true;
    ++backward_calls_;
  }
  if ((searches() || counts_hooks()) && parameters_[i]->grad) used_[i] = 1;
  if (counts_hooks()) {
    ++hook_count_[i];
    return;
  }
  if (!expects_hooks_) return;  // no_sync: gradients stay on this rank.
  if (!marked_unused_) {
    marked_unused_ = true;
    for (const std::size_t u : unused_) mark_ready(host, u);
  }
  if (options_.static_graph) {
    if (hooks_left_[i] <= 0) {
      throw DdpError(Refusal::kRuntimeError, host.model().at(locals_[local].id).name,
                     "gets a gradient that it did not get in the first iteration",
                     "no static_graph");
    }
    if (--hooks_left_[i] > 0) return;
  }
  if (should_rebuild()) arrival_.push_back(i);
  mark_ready(host, i);
}

void Ddp::refuse_ready_twice(const Model& model, std::size_t parameter) const {
  const ParameterId id = locals_[reduced_[parameter]].id;
  const auto holders =
      std::count_if(model.modules.begin(), model.modules.end(), [&](const Module& m) {
        return std::any_of(m.parameters.begin(), m.parameters.end(),
                           [&](const OwnedParameter& p) { return p.id == id; });
      });
  if (options_.mixed_precision && holders > 1) {
    throw DdpError(Refusal::kRuntimeError, model.at(id).name,
                   fmt::format("is tied: mixed precision hooks it in each of the {} modules that "
                               "hold it, and it is marked ready twice in one iteration",
                               holders),
                   "--ddp-static-graph yes, or autocast in place of --ddp-mixed-precision");
  }
  throw DdpError(Refusal::kRuntimeError, model.at(id).name,
                 "is marked ready twice in one iteration",
                 "static_graph, or checkpoints without reentrant backward passes");
}

void Ddp::mark_ready(Host& host, std::size_t parameter) {
  if (std::exchange(ready_[parameter], std::uint8_t{1}) != 0)
    refuse_ready_twice(host.model(), parameter);
  must_finalize_ = true;
  copy_to_bucket(host, parameter);
  const std::size_t b = place_[parameter].first;
  if (--buckets_[b].pending == 0) {
    flush_deferred(host, buckets_[b]);
    if (b == next_bucket_) launch_ready_buckets(host);
  }
  if (next_bucket_ != buckets_.size()) return;
  if (searches()) reduce_used_map(host);
  host.queue_callback(kFinalize);
}

/// mark_variable_ready_dense: gradient / W into its place, or only the gradient if a hook divides.
void Ddp::copy_to_bucket(Host& host, std::size_t parameter) {
  const auto [b, k] = place_[parameter];
  Bucket& bucket = buckets_[b];
  if (!bucket.buffer) make_storage(host, bucket);
  const SymTensor& view = bucket.views[k];
  SymTensor& grad = parameters_[parameter]->grad;
  const double factor = 1.0 / static_cast<double>(world_);
  if (!grad) {
    host.launch(OpKind::kFill, {}, {view}, {0.0});
  } else if (grad->storage.get() == view->storage.get()) {
    if (!options_.batched_grad_copy && !has_hook())
      host.launch(OpKind::kMulScalar, {view}, {view}, {factor});
  } else if (options_.batched_grad_copy) {
    bucket.deferred.push_back(k);
  } else {
    has_hook() ? host.launch(OpKind::kCopy, {grad}, {view})
               : host.launch(OpKind::kMulScalar, {grad}, {view}, {factor});
    if (options_.gradient_as_bucket_view) grad = view;
  }
}

/// flush_deferred_copies: one list copy, and one division of the whole bucket.
void Ddp::flush_deferred(Host& host, Bucket& bucket) {
  if (!options_.batched_grad_copy) return;
  if (!bucket.deferred.empty()) {
    TensorList views, gradients;
    for (const std::size_t k : bucket.deferred) {
      views.push_back(bucket.views[k]);
      gradients.push_back(parameters_[bucket.parameters[k]]->grad);
    }
    launch_lists(host, OpKind::kForeachCopy, {&gradients}, {&views});
    for (const std::size_t k : bucket.deferred) {
      if (options_.gradient_as_bucket_view)
        parameters_[bucket.parameters[k]]->grad = bucket.views[k];
    }
    bucket.deferred.clear();
  }
  if (!has_hook()) {
    host.launch(OpKind::kMulScalar, {bucket.buffer}, {bucket.buffer},
                {1.0 / static_cast<double>(world_)});
  }
}

/// mark_bucket_ready: in order, as far as buckets are full.
void Ddp::launch_ready_buckets(Host& host) {
  for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0; ++next_bucket_) {
    Bucket& bucket = buckets_[next_bucket_];
    if (options_.skip_all_reduce_unused && all_unused(bucket)) continue;
    reduce_bucket(host, bucket);
  }
}

bool Ddp::all_unused(const Bucket& bucket) const {
  return std::all_of(bucket.parameters.begin(), bucket.parameters.end(), [this](std::size_t i) {
    return std::find(unused_.begin(), unused_.end(), i) != unused_.end();
  });
}

void Ddp::reduce_bucket(Host& host, Bucket& bucket) {
  host.decide({.kind = DecisionKind::kBucketReady,
               .flag = next_bucket_ + 1 == buckets_.size(),
               .unit = bucket.unit,
               .number = static_cast<std::int32_t>(next_bucket_),
               .bytes = bucket.buffer->bytes()});
  bucket.launched = true;
  if (has_hook()) return run_hook(host, bucket);
  bucket.reduced =
      collective(host, CollectiveKind::kAllReduce, bucket.buffer, bucket.buffer, bucket.unit);
  bucket.result = bucket.buffer;
}

/// all_reduce_local_used_map: through pinned memory, asynchronously.
void Ddp::reduce_used_map(Host& host) {
  Copy up;
  up.bytes = Bytes(used_map_->bytes());
  up.destination = host.id_of(used_map_);
  host.copy(up);
  used_map_done_ = collective(host, CollectiveKind::kAllReduce, used_map_, used_map_);
}

/// Reducer::delay_all_reduce: the end of a static graph's first backward. Every gradient at once,
/// in the order of parameters; next_bucket_ stays where it is.
void Ddp::delayed_reduction(Host& host) {
  reduce_used_map(host);
  unused_.clear();
  must_finalize_ = true;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (hook_count_[i] == 0) unused_.push_back(i);
    copy_to_bucket(host, i);
  }
  for (Bucket& bucket : buckets_) {
    flush_deferred(host, bucket);
    reduce_bucket(host, bucket);
  }
  // PyTorch takes the results before the callback that waits for mixed precision's stream.
  if (options_.mixed_precision) host.wait_stream(host.stream(), upcast_stream_);
  finalize(host);
}

/// Reducer::finalize_backward.
void Ddp::finalize(Host& host) {
  if (!expects_hooks_) {
    throw DdpError(Refusal::kRuntimeError, "ddp",
                   "the first iteration of a static graph ran without synchronisation",
                   "synchronise the first micro-batch, or no static_graph");
  }
  expects_hooks_ = first_hook_called_ = must_finalize_ = false;
  for (Bucket& b : buckets_) {
    if (!b.launched) continue;
    if (b.reduced.valid()) host.wait_event(host.stream(), b.reduced);
    finalize_bucket(host, b);
  }
  const bool reduced_now = searches() || counts_hooks();
  if (reduced_now && !used_map_reduced_) host.wait_event(host.stream(), used_map_done_);
  if (options_.lazy_bucket_allocation) release_storage();
  if (!searches()) return;
  std::fill(used_.begin(), used_.end(), std::uint8_t{0});
  used_map_reduced_ = false;
}

/// Whether no rank used the parameter. Every rank runs the same program, so what this rank did not
/// use nobody did; the host still waits for the map the first time it asks.
bool Ddp::globally_unused(Host& host, std::size_t parameter) {
  if (!options_.static_graph && !options_.find_unused_parameters) return false;
  if (used_[parameter] != 0) return false;
  if (used_map_reduced_) return true;
  host.wait_event(host.stream(), used_map_done_);
  Copy down;
  down.direction = CopyDirection::kDeviceToHost;
  down.bytes = Bytes(used_map_->bytes());
  down.source = host.id_of(used_map_);
  down.blocks_host = true;
  host.copy(down);
  used_map_reduced_ = true;
  return true;
}

/// finalize_bucket_dense (D-7).
void Ddp::finalize_bucket(Host& host, Bucket& b) {
  bool views_moved = b.result->storage.get() != b.buffer->storage.get();
  std::int64_t offset = b.result->offset;
  TensorList gradients, results;
  for (std::size_t k = 0; k < b.parameters.size(); ++k) {
    const SymTensor& p = parameters_[b.parameters[k]];
    const SymTensor out = views_moved ? host.view_as(b.result, p->shape, offset) : b.views[k];
    offset += p->numel;
    const bool unused = globally_unused(host, b.parameters[k]);
    if (options_.gradient_as_bucket_view) {
      if (views_moved) host.launch(OpKind::kCopy, {out}, {b.views[k]});
      if (!unused && !p->grad) p->grad = b.views[k];
      continue;
    }
    if (unused) continue;
    if (!p->grad) {
      p->grad = host.empty(p->shape, out->dtype, BufferCategory::kUnshardedGradient);
      host.launch(OpKind::kCopy, {out}, {p->grad});
    } else if (options_.batched_grad_copy) {
      results.push_back(out);
      gradients.push_back(p->grad);
    } else {
      host.launch(OpKind::kCopy, {out}, {p->grad});
    }
  }
  if (!gradients.empty()) launch_lists(host, OpKind::kForeachCopy, {&results}, {&gradients});
  b.compressed.reset();
  if (views_moved) b.result.reset();
}

}  // namespace foreshard::ddp
