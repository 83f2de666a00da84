// torch.nn.utils.clip_grad_norm_ over sharded gradients (F2-O-1): norms of the local parts, one
// vector all-reduced over the shard group, the norm of that vector, one scaling of all gradients.
// Allocations follow PyTorch 2.15's.

#include <algorithm>
#include <array>

#include "models/describe.h"
#include "schedules/planner/clip.h"
#include "schedules/planner/frameworks/fsdp2.h"
#include "schedules/planner/frameworks/fsdp2_error.h"
#include "schedules/planner/host/host_time.h"
#include "schedules/planner/id_set.h"

namespace foreshard::fsdp2 {
namespace {

/// Device or, with offload, host memory for the scalars of clipping.
class ClipMemory {
 public:
  ClipMemory(Host& host, bool on_host) : host_(host), on_host_(on_host) {}
  SymTensor make(const Shape& shape, DType dtype) {
    if (on_host_)
      return host_.empty_on_host(shape, dtype, MemorySpace::kHostPageable,
                                 BufferCategory::kClipTemporary);
    return host_.empty(shape, dtype, BufferCategory::kClipTemporary);
  }

 private:
  Host& host_;
  bool on_host_;
};

}  // namespace

/// Each parameter once for each group that owns it (nullptr: none), in the order of
/// model.parameters().
const std::vector<Fsdp2::OwnedPlace>& Fsdp2::parameter_places() const {
  if (!places_.empty()) return places_;
  const Model& model = wrapping_->model();
  const auto group_of = [](const Wrapping::Owner* o) { return o == nullptr ? nullptr : o->group; };
  IdSet<ParameterId> seen;
  for (const ModuleId m : modules_in_order(model, ModuleId(0))) {
    for (const OwnedParameter& owned : model.at(m).parameters) {
      const Wrapping::Owner* owner = wrapping_->owner_of(m, owned);
      const auto same = [&](const OwnedPlace& p) {
        return p.id == owned.id && group_of(p.owner) == group_of(owner);
      };
      if (seen.insert(owned.id) || std::none_of(places_.begin(), places_.end(), same))
        places_.push_back({owned.id, owner});
    }
  }
  return places_;
}

/// Gradients in the order of model.parameters(), and the group that owns each (nullptr: none).
std::vector<std::pair<SymTensor, ParamGroup*>> Fsdp2::gradients_in_order() const {
  std::vector<std::pair<SymTensor, ParamGroup*>> all;
  all.reserve(parameter_places().size());
  for (const auto& [id, owner] : parameter_places()) {
    if (owner == nullptr) {
      const SymTensor& plain = plain_[id.value];
      if (plain && plain->grad) all.emplace_back(plain->grad, nullptr);
      continue;
    }
    // While a group is gathered the model's parameter is the whole one, whose gradient has been
    // taken.
    if (owner->group->sharded != ShardedState::kSharded) continue;
    const SymTensor& gradient = owner->group->runtime.parameters[owner->index].local->grad;
    if (gradient) all.emplace_back(gradient, owner->group);
  }
  return all;
}

void Fsdp2::clip_gradients(Host& host, double max_norm) {
  const auto gradients = gradients_in_order();
  if (gradients.empty()) return;
  spend_host(host, dtensor_clip_us(gradients.size()), "clipping of DTensors");
  const Mesh* mesh = nullptr;
  ParamGroup* owner = nullptr;
  bool plain = false, offload = false;
  for (const auto& [gradient, group] : gradients) {
    plain = plain || group == nullptr;
    if (group == nullptr) continue;
    if (mesh != nullptr && mesh != group->mesh) {
      throw Fsdp2Error(Refusal::kRuntimeError, "clip",
                       "gradients of two meshes cannot be clipped together",
                       "clip each mesh's parameters apart");
    }
    mesh = group->mesh;
    owner = group;
    offload = offload || group->parameters[0].offload;
  }
  if (plain && owner != nullptr) {
    throw Fsdp2Error(Refusal::kRuntimeError, "clip", "some gradients are sharded and some are not",
                     "wrap the root module and ignore no parameter, or clip them apart");
  }
  std::vector<SymTensor> tensors;
  tensors.reserve(gradients.size());
  for (const auto& [gradient, group] : gradients) tensors.push_back(gradient);
  std::vector<SymTensor> norms = foreach_norms(host, tensors);
  const SymTensor total = total_norm(host, norms, owner, offload);
  while (!norms.empty()) norms.pop_back();
  scale_gradients(host, tensors, total, max_norm, offload);
}

SymTensor Fsdp2::total_norm(Host& host, const std::vector<SymTensor>& norms, ParamGroup* owner,
                            bool offload) {
  ClipMemory memory(host, offload);
  const DType dtype = norms[0]->dtype;
  const Shape vector{static_cast<std::int64_t>(norms.size())};
  const SymTensor stacked = memory.make(vector, dtype);
  std::vector<LaunchView> rows;
  rows.reserve(norms.size());
  for (const SymTensor& n : norms) rows.push_back(LaunchView::of(n, Shape{1}));
  const double dim = 0;
  LaunchRequest cat;
  cat.op = OpKind::kCat;
  cat.input_views = rows;
  cat.outputs = std::span(&stacked, 1);
  cat.attributes = std::span(&dim, 1);
  host.launch(cat);
  SymTensor whole = stacked;
  if (owner != nullptr && owner->mesh->shard > 1) {
    SymTensor squares = memory.make(vector, dtype);
    host.launch(OpKind::kPow, {stacked}, {squares}, {2.0});
    SymTensor reduced = memory.make(vector, dtype);
    host.launch(OpKind::kCopy, {squares}, {reduced});
    all_reduce_norms(host, *owner, reduced);
    whole = memory.make(vector, dtype);
    host.launch(OpKind::kSqrt, {reduced}, {whole});
    squares.reset();
    reduced.reset();
  }
  const SymTensor total = memory.make(Shape{}, dtype);
  host.launch(OpKind::kNorm, {whole}, {total}, {2.0});
  return total;
}

/// A functional collective: it runs on the communicator's own stream, the compute stream waits for
/// it.
void Fsdp2::all_reduce_norms(Host& host, ParamGroup& owner, const SymTensor& vector) {
  const StreamIndex communicator = communicator_stream(host, *owner.comm);
  host.wait_stream(communicator, host.stream());
  Collective c;
  c.kind = CollectiveKind::kAllReduce;
  c.op = ReduceOp::kSum;
  c.dtype = vector->dtype;
  c.stream = communicator;
  c.group = owner.mesh->shard_group;
  c.input = c.output = host.id_of(vector);
  c.bytes = Bytes(vector->bytes());
  Decision d;
  d.kind = DecisionKind::kCollective;
  d.bytes = vector->bytes();
  d.collective = host.collective(c);
  host.decide(d);
  // Work on host memory ends in a wait of the host itself: kernels of the CPU follow it.
  if (vector->storage->space != MemorySpace::kDevice)
    return host.program().sync_stream(communicator);
  host.wait_stream(host.stream(), communicator);
}

void Fsdp2::scale_gradients(Host& host, const std::vector<SymTensor>& gradients,
                            const SymTensor& total, double max_norm, bool offload) {
  ClipMemory memory(host, offload);
  SymTensor sum = memory.make(Shape{}, total->dtype);
  SymTensor inverse = memory.make(Shape{}, total->dtype);
  SymTensor ratio = memory.make(Shape{}, total->dtype);
  inverse.reset();
  sum.reset();
  const SymTensor coefficient = memory.make(Shape{}, total->dtype);
  LaunchRequest clip;  // add epsilon, reciprocal, times the maximum, clamp
  clip.op = OpKind::kClipCoefficient;
  clip.inputs = std::span(&total, 1);
  clip.outputs = std::span(&coefficient, 1);
  clip.attributes = std::span(&max_norm, 1);
  clip.kernels = 4;
  host.launch(clip);
  ratio.reset();
  const std::array<std::span<const SymTensor>, 2> operands{std::span(gradients),
                                                           std::span(&coefficient, 1)};
  LaunchRequest scale;
  scale.op = OpKind::kForeachMul;
  scale.input_lists = operands;
  scale.outputs = gradients;
  host.launch(scale);
  host.launch(OpKind::kObserve, {total}, {}, {1.0});
}

}  // namespace foreshard::fsdp2
