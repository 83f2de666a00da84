#include "schedules/planner/frameworks/ddp.h"

#include <algorithm>

namespace foreshard::ddp {
namespace {

constexpr std::size_t kNotReduced = SIZE_MAX;

/// What the reducer and hooks cannot do together; PyTorch's own errors come from running.
void check_options(const DdpOptions& o) {
  IssueList issues("configuration");
  const PowerSgdOptions& p = o.power_sgd;
  if (o.comm_hook == DdpCommHook::kPowerSgd && (p.error_feedback || p.warm_start) &&
      p.start_iteration <= 1) {
    issues.add("ddp power_sgd.start_iteration",
               "is " + std::to_string(p.start_iteration) +
                   "; buckets are rebuilt before the second iteration, and error feedback and "
                   "warm start remember them",
               "2 or more");
  }
  if (o.lazy_bucket_allocation && o.mixed_precision)
    issues.add("ddp", "mixed precision with lazy_bucket_allocation is not planned",
               "one of the two");
  if (o.mixed_precision && o.comm_hook != DdpCommHook::kNone) {
    issues.add("ddp", "mixed precision registers its own communication hook", "one of the two");
  }
  if (o.mixed_precision && o.gradient_as_bucket_view) {
    issues.add("ddp", "mixed precision with gradient_as_bucket_view is not planned",
               "one of the two");
  }
  issues.throw_if_any();
}

}  // namespace

Ddp::Ddp(const ParallelConfig& config) : options_(config.ddp), world_(config.world()) {
  check_options(options_);
}

// ----------------------------------------------------------------------------------------------
// construction

/// _build_params_for_reducer: trainable parameters that no name of `ignored_parameters` excludes.
void Ddp::choose_parameters(Host& host) {
  const std::vector<std::string>& ignored = options_.ignored_parameters;
  place_in_reduced_.assign(locals_.size(), kNotReduced);
  for (std::size_t i = 0; i < locals_.size(); ++i) {
    const std::string& name = host.model().at(locals_[i].id).name;
    if (std::find(ignored.begin(), ignored.end(), name) != ignored.end()) continue;
    place_in_reduced_[i] = reduced_.size();
    reduced_.push_back(i);
    parameters_.push_back(locals_[i].local);
  }
  if (parameters_.empty()) {
    throw DdpError(Refusal::kRuntimeError, "ddp", "no parameter requires a gradient",
                   "a model with something to train");
  }
}

std::vector<ParameterId> Ddp::reduced_parameters() const {
  std::vector<ParameterId> ids;
  for (const std::size_t i : reduced_) ids.push_back(locals_[i].id);
  return ids;
}

/// _sync_module_states: parameters and buffers, less the ignored ones, from rank 0.
void Ddp::broadcast_states(Host& host) {
  const std::vector<std::string>& ignored = options_.ignored_parameters;
  std::vector<SymTensor> states;
  for (const ParameterId p : parameter_order(host.model())) {
    const std::string& name = host.model().at(p).name;
    if (std::find(ignored.begin(), ignored.end(), name) == ignored.end())
      states.push_back(host.parameter(p));
  }
  if (options_.broadcast_buffers) states.insert(states.end(), buffers_.begin(), buffers_.end());
  broadcast_coalesced(host, states);
}

/// initialize_local_used_map. Zeros instead of PyTorch's empty memory: every rank's sum is then
/// defined.
void Ddp::make_used_map(Host& host) {
  used_map_ = host.empty({static_cast<std::int64_t>(parameters_.size())}, DType::kInt32,
                         BufferCategory::kBucket);
  host.launch(OpKind::kFill, {}, {used_map_}, {0.0});
  used_.assign(parameters_.size(), 0);
}

void Ddp::initialize(Host& host) {
  group_ = host.add_group("replicate", world_, 1);
  stream_ = host.program().add_stream("communicator", 0);
  materialize_whole(host, locals_);
  for (const Module& m : host.model().modules) {
    for (std::size_t b = 0; b < m.buffers.size(); ++b)
      buffers_.push_back(host.buffer(m, static_cast<std::int64_t>(b)));
  }
  choose_parameters(host);
  if (options_.init_sync) {
    if (options_.verify_parameters) verify_parameters(host);
    broadcast_states(host);
  }
  for (std::size_t i = 0; i < locals_.size(); ++i) {
    accumulators_.push_back(host.grad_accumulator(locals_[i].local));
    // Ignored parameters have no hook; their arrival is only reported.
    if (place_in_reduced_[i] == kNotReduced && !host.has_sink()) continue;
    host.register_accumulate_hook(accumulators_.back(), static_cast<std::uint32_t>(i));
  }
  first_assignment_ = assign_buckets(parameters_, first_limits(options_));
  std::reverse(first_assignment_.buckets.begin(), first_assignment_.buckets.end());
  std::reverse(first_assignment_.limits.begin(), first_assignment_.limits.end());
  make_buckets(host, first_assignment_.buckets);
  hook_count_.assign(parameters_.size(), 0);
  if (options_.find_unused_parameters) make_used_map(host);
  if (options_.mixed_precision) prepare_mixed_precision(host);
  if (options_.static_graph) make_used_map(host);
  if (options_.comm_hook == DdpCommHook::kPowerSgd)
    host.remark(
        "PowerSGD hands on approximations of the gradients: losses differ from the unsharded job's "
        "by design, not by rounding");
}

// ----------------------------------------------------------------------------------------------
// forward

/// _pre_forward.
void Ddp::before_model(Host& host, bool) {
  if (host.grad_enabled()) {
    ensure_prior_reduction_finished();
    if (should_rebuild() && !arrival_.empty()) rebuild(host);
  }
  if (options_.broadcast_buffers && broadcasts_next_ && !buffers_.empty())
    broadcast_coalesced(host, buffers_);
}

/// _post_forward; _DDPSink clones every output, and its backward is where a static graph's first
/// reduction is put off to the end (D-9).
void Ddp::after_model(Host& host, std::span<SymTensor> outputs) {
  broadcasts_next_ = host.grad_enabled() && sync_;
  if (broadcasts_next_) prepare_for_backward(host, outputs);
  if (!searches() && !(options_.static_graph && !delay_queued_)) return;
  std::vector<SymTensor> clones;
  for (const SymTensor& t : outputs) clones.push_back(host.clone(t));
  bool any = false;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i]->grad_fn) continue;
    outputs[i] = std::move(clones[i]);
    any = true;
  }
  if (any) host.apply_function(outputs, 0);
}

void Ddp::on_function_backward(Host& host, std::uint32_t) {
  if (!options_.static_graph || delay_queued_) return;
  host.queue_callback(kDelayedReduction);
  delay_queued_ = true;
}

void Ddp::on_backward_callback(Host& host, std::uint32_t what) {
  switch (what) {
    case kDelayedReduction:
      return delayed_reduction(host);
    case kWaitForUpcast:
      host.wait_stream(host.stream(), upcast_stream_);
      restore_frozen(host);
      upcast_queued_ = false;
      return;
    default:
      if (options_.static_graph && should_rebuild())
        arrival_.insert(arrival_.end(), unused_.begin(), unused_.end());
      return finalize(host);
  }
}

std::int64_t steady_steps(const ParallelConfig& config) {
  const std::int64_t rebuilt = config.ddp.static_graph ? 4 : 3;
  if (config.ddp.comm_hook != DdpCommHook::kPowerSgd) return rebuilt;
  return std::max(rebuilt, config.ddp.power_sgd.start_iteration + 2);  // The first makes factors.
}

}  // namespace foreshard::ddp

namespace foreshard {

std::unique_ptr<Framework> make_ddp(const ParallelConfig& config) {
  return std::make_unique<ddp::Ddp>(config);
}

}  // namespace foreshard
