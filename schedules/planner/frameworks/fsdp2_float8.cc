// All-gather of 8-bit weights: the weights of Float8Linear modules are tensors that cast themselves
// before FSDP2 gathers them (fsdp_pre_all_gather). Source: torchao 0.18, float8/fsdp_utils.py,
// float8_utils.py, float8_training_tensor.py.

#include <algorithm>

#include "models/describe.h"
#include "schedules/planner/clip.h"
#include "schedules/planner/frameworks/fsdp2.h"
#include "schedules/planner/frameworks/fsdp2_error.h"
#include "schedules/planner/recipes/float8.h"

namespace foreshard::fsdp2 {
namespace {

constexpr BufferCategory kCategory = BufferCategory::kGatherInput;

/// Asynchronous functional all-reduce (MAX) that the current stream waits for.
void all_reduce_max(Host& host, ParamGroup& group, const SymTensor& t) {
  const StreamIndex communicator = communicator_stream(host, *group.comm);
  host.wait_stream(communicator, host.stream());
  Collective c;
  c.kind = CollectiveKind::kAllReduce;
  c.op = ReduceOp::kMax;
  c.dtype = t->dtype;
  c.stream = communicator;
  c.phase = host.phase();
  c.group = group.mesh->shard_group;
  c.input = c.output = host.id_of(t);
  c.bytes = Bytes(t->bytes());
  c.unit = group.unit;
  host.collective(c);
  host.wait_stream(host.stream(), communicator);
}

}  // namespace

/// Linear weights inside blocks whose sizes the products take (multiples of 16), as float8_applies.
void Fsdp2::mark_float8_weights() {
  if (!config_.float8_all_gather || config_.float8 != Float8Kind::kTensorwise) return;
  const Model& model = wrapping_->model();
  std::set<ParameterId> weights;
  for (const ModuleId block : model.roles.blocks) {
    for (const ModuleId m : modules_in_order(model, block)) {
      for (const Statement& s : model.at(m).program) {
        if (s.function != Function::kLinear || s.inputs.size() != 1 || s.parameters.empty())
          continue;
        const std::vector<std::int64_t>& shape = model.at(s.parameters[0]).shape;
        if (shape.size() == 2 && shape[0] % 16 == 0 && shape[1] % 16 == 0)
          weights.insert(s.parameters[0]);
      }
    }
  }
  for (ParamGroup* group : wrapping_->groups()) {
    for (ShardedParameter& p : group->parameters) {
      if (weights.count(p.id) == 0) continue;
      p.float8 = true;
      if (p.padded_numel() == p.numel()) continue;
      throw Fsdp2Error(Refusal::kAssertionError, p.name,
                       "has rows that the ranks cannot share evenly, so its 8-bit form cannot be "
                       "gathered",
                       "a number of ranks that divides its rows, or float8_all_gather off");
    }
  }
}

/// tensor_to_scale with reduce_amax: largest magnitude of the shard, then of all ranks.
SymTensor Gatherer::float8_scale(ParamGroup& group, const SymTensor& x) {
  const Float8Owner owner{kCategory, group.unit};
  SymTensor largest = float8_amax(host_, x, owner);
  const SymTensor reduced = host_.empty(Shape(), x->dtype, kCategory, group.unit);
  host_.launch(OpKind::kCopy, {largest}, {reduced});
  all_reduce_max(host_, group, reduced);
  largest.reset();
  return foreshard::float8_scale(host_, reduced, false, owner);
}

/// fsdp_pre_all_gather.
SymTensor Gatherer::float8_input(ParamGroup& group, std::size_t i, const SymTensor& shard) {
  ParameterTensors& t = group.runtime.parameters[i];
  t.next_scale = t.precomputed_scale ? t.precomputed_scale : float8_scale(group, shard);
  return float8_cast(host_, shard, t.next_scale, DType::kFloat8E4M3, {kCategory, group.unit});
}

/// precompute_float8_dynamic_scale_for_fsdp after the optimizer, if the script calls it: one
/// all-reduce for all weights. Only gathers before the first step then find scales of their own.
void Fsdp2::after_optimizer(Host& host) {
  if (!config_.float8_all_gather || !config_.float8_precompute_scales) return;
  const Model& model = wrapping_->model();
  std::vector<std::pair<ParamGroup*, std::size_t>> weights;
  TensorList shards;
  for (const ModuleId m : modules_in_order(model, ModuleId(0))) {
    for (const OwnedParameter& owned : model.at(m).parameters) {
      const Wrapping::Owner* owner = wrapping_->owner_of(m, owned);
      if (owner == nullptr || !owner->group->parameters[owner->index].float8) continue;
      weights.emplace_back(owner->group, owner->index);
      shards.push_back(owner->group->runtime.parameters[owner->index].local);
    }
  }
  if (weights.empty()) return;
  ParamGroup& first = *weights[0].first;
  const Shape vector{static_cast<std::int64_t>(weights.size())};
  const auto make = [&](DType dtype) { return host.empty(vector, dtype, kCategory); };
  TensorList norms = foreach_norms(host, shards);
  SymTensor largest = stack_scalars(host, norms);
  if (first.mesh->shard > 1) {
    SymTensor reduced = make(largest->dtype);
    host.launch(OpKind::kCopy, {largest}, {reduced});
    all_reduce_max(host, first, reduced);
    SymTensor clamped = make(largest->dtype);
    host.launch(OpKind::kCopy, {reduced}, {clamped});
    reduced.reset();
    largest = std::move(clamped);
  }
  SymTensor wide = make(DType::kFloat64);
  largest.reset();
  SymTensor inverse = make(DType::kFloat64), quotient = make(DType::kFloat64);
  inverse.reset();
  SymTensor scales = make(DType::kFloat32);
  host.launch(OpKind::kPow, {wide}, {scales}, {-1.0});
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i].first->runtime.parameters[weights[i].second].precomputed_scale =
        host.view_as(scales, Shape(), static_cast<std::int64_t>(i));
  }
  scales.reset();
  while (!norms.empty()) norms.pop_back();
  wide.reset();  // Locals of a Python function go in the order in which they were first assigned.
  quotient.reset();
}

}  // namespace foreshard::fsdp2
