#include "schedules/planner/clip.h"

#include "core/integers.h"
#include "schedules/planner/recipes/recipe.h"

namespace foreshard {
namespace {

constexpr BufferCategory kClip = BufferCategory::kClipTemporary;

/// A temporary where `like` lies: the gradients of offloaded parameters are clipped on the CPU.
SymTensor temporary(Host& host, const Shape& shape, DType dtype, const SymTensor& like) {
  const MemorySpace space = like->storage->space;
  if (space == MemorySpace::kDevice) return host.empty(shape, dtype, kClip);
  return host.empty_on_host(shape, dtype, MemorySpace::kHostPageable, kClip);
}
SymTensor scalar(Host& host, DType dtype, const SymTensor& like) {
  return temporary(host, Shape(), dtype, like);
}

bool on_device(const SymTensor& t) { return t->storage->space == MemorySpace::kDevice; }

/// Sizes of the parts in which a reduction runs: halves, until offsets in bytes fit 32 bits
/// (TensorIterator::with_32bit_indexing).
std::vector<std::int64_t> parts_of_reduction(std::int64_t numel, std::int64_t bytes_each) {
  if (numel <= 1 || 1 + (numel - 1) * bytes_each <= INT32_MAX) return {numel};
  std::vector<std::int64_t> parts = parts_of_reduction(numel / 2, bytes_each);
  const std::vector<std::int64_t> rest = parts_of_reduction(numel - numel / 2, bytes_each);
  parts.insert(parts.end(), rest.begin(), rest.end());
  return parts;
}

}  // namespace

TensorList foreach_norms(Host& host, const TensorList& gradients) {
  constexpr std::int64_t chunk = 65536;
  std::int64_t chunks = 0;
  for (const SymTensor& g : gradients) chunks += ceil_div(g->numel, chunk);
  SymTensor offsets, partial;
  if (on_device(gradients[0])) {
    offsets =
        host.empty({8 * (static_cast<std::int64_t>(gradients.size()) + 1)}, DType::kUInt8, kClip);
    partial = host.empty({chunks}, DType::kFloat32, kClip);
    host.launch(OpKind::kFill, {}, {partial}, {0.0});
  }
  TensorList norms;
  for (const SymTensor& g : gradients) norms.push_back(scalar(host, g->dtype, g));
  launch_lists(host, OpKind::kForeachNorm, {&gradients}, {&norms}, {2.0});
  partial.reset();
  offsets.reset();
  return norms;
}

SymTensor stack_scalars(Host& host, const TensorList& scalars) {
  SymTensor y =
      temporary(host, {static_cast<std::int64_t>(scalars.size())}, scalars[0]->dtype, scalars[0]);
  TensorList rows;
  for (const SymTensor& s : scalars) rows.push_back(host.view_as(s, {1}));
  const TensorList out{y};
  launch_lists(host, OpKind::kCat, {&rows}, {&out}, {0.0});
  return y;
}

SymTensor vector_norm(Host& host, const SymTensor& x, std::optional<DType> dtype) {
  SymTensor y = scalar(host, dtype.value_or(x->dtype), x);
  for (const std::int64_t part : parts_of_reduction(x->numel, size_of(x->dtype))) {
    const std::int64_t blocks = blocks_of_vector_reduction(part);
    if (blocks <= 1 || !on_device(x)) continue;
    SymTensor partial = host.empty({blocks}, DType::kFloat32, kClip);
    SymTensor semaphores = host.empty({1}, DType::kInt32, kClip);
  }
  host.launch(OpKind::kNorm, {x}, {y}, {2.0});
  return y;
}

void scale_gradients(Host& host, const TensorList& gradients, const SymTensor& norm,
                     double max_norm) {
  SymTensor shifted = scalar(host, norm->dtype, norm);
  host.launch(OpKind::kAddScalar, {norm}, {shifted}, {1e-6});
  SymTensor inverse = scalar(host, norm->dtype, norm);
  host.launch(OpKind::kPow, {shifted}, {inverse}, {-1.0});
  SymTensor coefficient = scalar(host, norm->dtype, norm);
  host.launch(OpKind::kMulScalar, {inverse}, {coefficient}, {max_norm});
  inverse.reset();
  shifted.reset();
  SymTensor clamped = scalar(host, norm->dtype, norm);
  host.launch(OpKind::kClipCoefficient, {norm}, {clamped}, {max_norm});
  const TensorList factor{clamped};
  launch_lists(host, OpKind::kForeachMul, {&gradients, &factor}, {&gradients});
  coefficient.reset();
}

void observe_norm(Host& host, const SymTensor& norm) {
  if (host.options().executable) host.launch(OpKind::kObserve, {norm}, {}, {1.0, 1.0});
}

void Framework::clip_gradients(Host& host, double max_norm) {
  TensorList gradients;
  for (const LocalParameter& p : local_parameters())
    if (p.local && p.local->grad) gradients.push_back(p.local->grad);
  if (gradients.empty()) return;
  SymTensor norm;
  {
    TensorList norms = foreach_norms(host, gradients);
    norm = vector_norm(host, stack_scalars(host, norms));
    while (!norms.empty()) norms.pop_back();
  }
  observe_norm(host, norm);
  scale_gradients(host, gradients, norm, max_norm);
}

void Framework::zero_gradients(Host&) {
  for (const LocalParameter& p : local_parameters())
    if (p.local) p.local->grad.reset();
}

}  // namespace foreshard
