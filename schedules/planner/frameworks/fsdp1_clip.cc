// FullyShardedDataParallel.clip_grad_norm_ (F1-O-1): fp32 norms of the local gradients, one all-reduce of a scalar over the
// shard group, a product for each gradient. Temporaries in PyTorch's order.

#include <utility>

#include "schedules/planner/clip.h"
#include "schedules/planner/frameworks/fsdp1.h"

namespace foreshard::fsdp1 {

SymTensor Fsdp1::scalar() { return host_->empty(Shape(), DType::kFloat32, BufferCategory::kClipTemporary); }

/// _get_grad_norm; null: no gradient.
SymTensor Fsdp1::gradient_norm(const std::vector<SymTensor>& gradients) {
  if (gradients.empty()) return {};
  TensorList norms;
  for (const SymTensor& g : gradients) norms.push_back(vector_norm(*host_, g, DType::kFloat32));
  const SymTensor stacked = stack_scalars(*host_, norms);
  while (!norms.empty()) norms.pop_back();
  return vector_norm(*host_, stacked);
}

void Fsdp1::clip_gradients(Host& host, double max_norm) {
  if (!zero_scalar_) {
    zero_scalar_ = scalar();
    host.launch(OpKind::kFill, {}, {zero_scalar_}, {0.0});
  }
  std::vector<SymTensor> sharded, whole, all;
  bool any_sharded = false;
  for (const auto& state : states_) {
    if (!state->handle) continue;
    const Handle& h = *state->handle;
    any_sharded = any_sharded || state->unit.sharded();
    std::vector<SymTensor>& list = state->unit.sharded() ? sharded : whole;
    if (h.originals.empty() && h.flat_param->grad) list.push_back(h.flat_param->grad);
    for (const OriginalParameter& o : h.originals) if (o.parameter && o.parameter->grad) list.push_back(o.parameter->grad);
  }
  if (!any_sharded) return Framework::clip_gradients(host, max_norm);
  for (const SymTensor& t : plain_) if (t && t->grad) whole.push_back(t->grad);
  all = sharded;
  all.insert(all.end(), whole.begin(), whole.end());
  SymTensor local = gradient_norm(sharded), local_whole = gradient_norm(whole);
  SymTensor total = scalar();
  host.launch(OpKind::kPow, {local ? local : zero_scalar_}, {total}, {2.0});
  collective(nullptr, CollectiveKind::kAllReduce, total, total, shard_group_);
  if (local_whole) {
    const SymTensor square = scalar();
    host.launch(OpKind::kPow, {local_whole}, {square}, {2.0});
    host.launch(OpKind::kAddInPlace, {total, square}, {total});
  }
  SymTensor norm = scalar();
  host.launch(OpKind::kSqrt, {total}, {norm});
  total.reset();
  observe_norm(host, norm);
  SymTensor shifted = scalar();
  host.launch(OpKind::kAddScalar, {norm}, {shifted}, {1e-6});
  SymTensor inverse = scalar();
  host.launch(OpKind::kPow, {shifted}, {inverse}, {-1.0});
  SymTensor coefficient = scalar();
  host.launch(OpKind::kMulScalar, {inverse}, {coefficient}, {max_norm});
  inverse.reset();
  shifted.reset();
  SymTensor clamped = scalar();
  host.launch(OpKind::kClipCoefficient, {norm}, {clamped}, {max_norm});
  for (const SymTensor& g : all) host.launch(OpKind::kMulInPlace, {g, clamped}, {g});
  local.reset();                            // Locals go in the order of their first assignment.
  local_whole.reset();
  coefficient.reset();
  clamped.reset();
}

}  // namespace foreshard::fsdp1
