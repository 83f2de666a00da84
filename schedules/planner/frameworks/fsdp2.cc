#include "schedules/planner/frameworks/fsdp2.h"

#include <algorithm>
#include <functional>

#include "models/describe.h"
#include "schedules/planner/frameworks/fsdp2_error.h"
#include "schedules/planner/host/host_time.h"

namespace foreshard::fsdp2 {

Fsdp2::Fsdp2(const ParallelConfig& config, WrapExtras extras)
    : config_(config), extras_(std::move(extras)) {}
Fsdp2::~Fsdp2() = default;

State& Fsdp2::state_at(ModuleId m) const {
  State* state = wrapping_->state_of(m);
  if (state == nullptr) {
    throw Fsdp2Error(Refusal::kAttributeError, wrapping_->model().at(m).name,
                     "is not a wrapped module");
  }
  return *state;
}

void Fsdp2::begin_micro_batch(Host&, std::int64_t, bool sync) {
  if (config_.accumulate > 1) set_requires_gradient_sync(ModuleId(0), sync);
}

namespace {

bool at_rest(const CommContext& comm) {
  return !comm.retained && comm.reduce_inputs.empty() && comm.post_forward_order.empty() &&
         comm.last_post_reduce.empty();
}

bool at_rest(const StateContext& context) {
  return context.forward_root == nullptr && !context.callback_queued && context.is_last_backward &&
         !context.active_manual_finalization && !context.reduction_pending;
}

bool at_rest(const ParamGroup& group) {
  const GroupRuntime& rt = group.runtime;
  const bool idle = group.training == TrainingState::kIdle &&
                    group.sharded == ShardedState::kSharded && !group.post_backward_pending &&
                    group.post_forward_indices.empty();
  const bool nothing_held = !rt.pending && !rt.post_reduce_event && !rt.reshard_event &&
                            !rt.all_reduce && !rt.partial_output && rt.offload_events.empty();
  return idle && nothing_held &&
         std::none_of(rt.parameters.begin(), rt.parameters.end(), [](const ParameterTensors& t) {
           return t.post_forward || t.next_scale || t.precomputed_scale ||
                  (t.unsharded && (t.unsharded->grad || t.unsharded->scale));
         });
}

}  // namespace

/// What is made once (contexts of the root, tensor objects of gathered parameters) issues nothing.
bool Fsdp2::at_rest() const {
  const auto idle = [](const std::unique_ptr<State>& s) {
    return s->training == TrainingState::kIdle && s->modules_to_run.empty() &&
           fsdp2::at_rest(*s->comm) && fsdp2::at_rest(*s->context) &&
           std::all_of(s->groups.begin(), s->groups.end(),
                       [](const auto& g) { return fsdp2::at_rest(*g); });
  };
  return std::all_of(wrapping_->states().begin(), wrapping_->states().end(), idle);
}

void Fsdp2::zero_gradients(Host& host) {
  spend_host(host, dtensor_zero_grad_us(local_parameters_.size()), "zero_grad of DTensors");
  for (const LocalParameter& p : local_parameters_) {
    if (p.local) p.local->grad.reset();
  }
}

std::vector<std::string> Fsdp2::unsharded_parameters() const {
  const Model& model = wrapping_->model();
  std::vector<std::string> names;
  std::vector<ParameterId> seen;
  for (const ModuleId m : modules_in_order(model, ModuleId(0))) {
    for (const OwnedParameter& p : model.at(m).parameters) {
      const Wrapping::Owner* owner = wrapping_->owner_of(m, p);
      if (owner != nullptr && owner->group->sharded != ShardedState::kUnsharded) continue;
      if (std::find(seen.begin(), seen.end(), p.id) != seen.end()) continue;
      seen.push_back(p.id);
      names.push_back(model.at(m).name.empty() ? p.name : model.at(m).name + "." + p.name);
    }
  }
  return names;
}

namespace {

/// Every parameter is cut along its rows, which the ranks share evenly.
bool rows_divide(const Model& model, const ParallelConfig& config) {
  const bool placed = std::any_of(config.calls.begin(), config.calls.end(),
                                  [](const WrapCall& call) { return !call.placement.empty(); });
  const auto divides = [&](const ParameterDef& p) {
    return p.shape.empty() || p.shape[0] % config.shard == 0;
  };
  return !placed && std::all_of(model.parameters.begin(), model.parameters.end(), divides);
}

}  // namespace

/// Hash of the rows that a rank holds of each parameter: ranks that hold alike run alike.
std::uint64_t Fsdp2::rank_class(const Model& model, const ParallelConfig& config,
                                std::int64_t rank) const {
  if (!rows_divide_) rows_divide_ = rows_divide(model, config);
  if (*rows_divide_) return 0;
  if (cuts_.empty()) {
    std::vector<Group> groups;
    Meshes meshes(config.shard, config.replicate, 0, groups);
    Wrapping wrapping(model, meshes, extras_);
    for (const WrapCall& call : wrap_calls(model, config)) wrapping.apply(call, config.precision);
    for (const ParamGroup* group : wrapping.groups()) {
      for (const ShardedParameter& p : group->parameters) {
        cuts_.emplace(p.shape[p.shard_dim], p.mesh->shard);
      }
    }
  }
  std::uint64_t hash = 14695981039346656037ULL;
  for (const auto& [size, shard] : cuts_) {
    const std::int64_t rows = rows_of(size, shard, rank % shard);
    hash = (hash ^ static_cast<std::uint64_t>(rows)) * 1099511628211ULL;
  }
  return hash;
}

}  // namespace foreshard::fsdp2

namespace foreshard {

std::unique_ptr<Framework> make_fsdp2(const ParallelConfig& config) {
  return std::make_unique<fsdp2::Fsdp2>(config);
}

}  // namespace foreshard
