// FullyShardedDataParallel.clip_grad_norm_ (F1-O-1): fp32 norms of the local gradients, one
// all-reduce of a scalar over the shard group, a product for each gradient. With offload the
// gradients, their norms and the products are on the host. Temporaries in PyTorch's order.

#include <utility>

#include "schedules/planner/clip.h"
#include "schedules/planner/frameworks/fsdp1.h"

namespace foreshard::fsdp1 {

namespace {

/// torch.promote_types over the gradients.
DType common_dtype(const std::vector<SymTensor>& gradients) {
  const DType first = gradients[0]->dtype;
  for (const SymTensor& g : gradients)
    if (g->dtype != first) return DType::kFloat32;
  return first;
}

}  // namespace

SymTensor Fsdp1::scalar(MemorySpace space) {
  if (space == MemorySpace::kDevice)
    return host_->empty(Shape(), DType::kFloat32, BufferCategory::kClipTemporary);
  return host_->empty_on_host(Shape(), DType::kFloat32, MemorySpace::kHostPageable,
                              BufferCategory::kClipTemporary);
}

/// t.to(device), t.cpu(): a copy that the host waits for; the same tensor if it is there.
SymTensor Fsdp1::moved(const SymTensor& t, MemorySpace space) {
  const bool to_device = space == MemorySpace::kDevice;
  if ((t->storage->space == MemorySpace::kDevice) == to_device) return t;
  const SymTensor there = scalar(space);
  Copy c;
  c.direction = to_device ? CopyDirection::kHostToDevice : CopyDirection::kDeviceToHost;
  c.bytes = Bytes(t->bytes());
  c.source = host_->id_of(t);
  c.destination = host_->id_of(there);
  c.blocks_host = true;
  host_->copy(c);
  return there;
}

/// t.to(dtype), where it is.
SymTensor Fsdp1::cast_scalar(const SymTensor& t, DType dtype) {
  if (t->dtype == dtype || t->storage->space == MemorySpace::kDevice)
    return host_->cast(t, dtype, BufferCategory::kClipTemporary);
  const SymTensor y = host_->empty_on_host(Shape(), dtype, MemorySpace::kHostPageable,
                                           BufferCategory::kClipTemporary);
  host_->launch(OpKind::kCopy, {t}, {y});
  return y;
}

/// Norm of gradients in host memory, there.
SymTensor Fsdp1::norm_on_host(const std::vector<SymTensor>& gradients) {
  const MemorySpace space = gradients[0]->storage->space;
  TensorList norms, rows;
  for (const SymTensor& g : gradients) {
    norms.push_back(scalar(space));
    host_->launch(OpKind::kNorm, {g}, {norms.back()}, {2.0});
    rows.push_back(host_->view_as(norms.back(), {1}));
  }
  const auto n = static_cast<std::int64_t>(norms.size());
  const TensorList stacked{
      host_->empty_on_host({n}, DType::kFloat32, space, BufferCategory::kClipTemporary)};
  launch_lists(*host_, OpKind::kCat, {&rows}, {&stacked}, {0.0});
  SymTensor norm = scalar(space);
  host_->launch(OpKind::kNorm, {stacked[0]}, {norm}, {2.0});
  return norm;
}

/// _get_grad_norm, on the device; null: no gradient.
SymTensor Fsdp1::gradient_norm(const std::vector<SymTensor>& gradients) {
  if (gradients.empty()) return {};
  if (gradients[0]->storage->space != MemorySpace::kDevice) {
    return moved(norm_on_host(gradients), MemorySpace::kDevice);
  }
  TensorList norms;
  for (const SymTensor& g : gradients) {
    norms.push_back(vector_norm(*host_, g, DType::kFloat32));
  }
  const SymTensor stacked = stack_scalars(*host_, norms);
  while (!norms.empty()) norms.pop_back();
  return vector_norm(*host_, stacked);
}

/// The clamped coefficient, then a product for each gradient. Returns the two temporaries that live
/// until the caller returns.
std::pair<SymTensor, SymTensor> Fsdp1::scale(const std::vector<SymTensor>& gradients,
                                             const SymTensor& norm, double max_norm) {
  const MemorySpace space = norm->storage->space;
  SymTensor shifted = scalar(space);
  host_->launch(OpKind::kAddScalar, {norm}, {shifted}, {1e-6});
  SymTensor inverse = scalar(space);
  host_->launch(OpKind::kPow, {shifted}, {inverse}, {-1.0});
  SymTensor coefficient = scalar(space);
  host_->launch(OpKind::kMulScalar, {inverse}, {coefficient}, {max_norm});
  inverse.reset();
  shifted.reset();
  SymTensor clamped = scalar(space);
  host_->launch(OpKind::kClipCoefficient, {norm}, {clamped}, {max_norm});
  for (const SymTensor& g : gradients) {
    const SymTensor factor = cast_scalar(moved(clamped, g->storage->space), g->dtype);
    host_->launch(OpKind::kMulInPlace, {g, factor}, {g});
  }
  return {std::move(coefficient), std::move(clamped)};
}

/// torch.nn.utils.clip_grad_norm_, where nothing is sharded.
void Fsdp1::clip_whole(const std::vector<SymTensor>& gradients, double max_norm) {
  if (gradients.empty()) return;
  if (gradients[0]->storage->space == MemorySpace::kDevice) {
    return Framework::clip_gradients(*host_, max_norm);
  }
  const SymTensor norm = norm_on_host(gradients);
  observe_norm(*host_, norm);
  scale(gradients, norm, max_norm);
}

/// torch.tensor(0.0, device=...): a copy that the host waits for.
void Fsdp1::make_zero_scalar() {
  zero_scalar_ = scalar();
  Copy c;
  c.bytes = Bytes(zero_scalar_->bytes());
  c.blocks_host = true;
  host_->copy(c);
  LaunchRequest zero;  // What the copy brings.
  const double value = 0;
  zero.op = OpKind::kFill;
  zero.outputs = {&zero_scalar_, 1};
  zero.attributes = {&value, 1};
  zero.kernels = 0;
  host_->launch(zero);
}

void Fsdp1::clip_gradients(Host& host, double max_norm) {
  if (!zero_scalar_) make_zero_scalar();
  std::vector<SymTensor> sharded, whole, all;
  bool any_sharded = false;
  for (const auto& state : states_) {
    if (!state->handle) continue;
    const Handle& h = *state->handle;
    any_sharded = any_sharded || state->unit.sharded();
    std::vector<SymTensor>& list = state->unit.sharded() ? sharded : whole;
    if (h.originals.empty() && h.flat_param->grad) list.push_back(h.flat_param->grad);
    for (const OriginalParameter& o : h.originals)
      if (o.parameter && o.parameter->grad) list.push_back(o.parameter->grad);
  }
  if (!any_sharded) return clip_whole(whole, max_norm);
  for (const SymTensor& t : plain_)
    if (t && t->grad) whole.push_back(t->grad);
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
  const bool offload = config_.offload == OffloadKind::kParameters && !extras_.computes_on_cpu;
  norm = moved(norm, offload ? MemorySpace::kHostPageable : MemorySpace::kDevice);
  auto [coefficient, clamped] = scale(all, norm, max_norm);
  const SymTensor result = all.empty() ? norm : cast_scalar(norm, common_dtype(all));
  local.reset();  // Locals go in the order of their first assignment.
  local_whole.reset();
  norm.reset();
  coefficient.reset();
  clamped.reset();
}

}  // namespace foreshard::fsdp1
