#include "schedules/planner/clip.h"

#include <algorithm>

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

/// Visits the sizes of the parts in which a reduction runs: halves, until offsets in bytes fit 32
/// bits (TensorIterator::with_32bit_indexing).
template <typename Visit>
void for_parts_of_reduction(std::int64_t numel, std::int64_t bytes_each, const Visit& visit) {
  if (numel <= 1 || 1 + (numel - 1) * bytes_each <= INT32_MAX) return visit(numel);
  for_parts_of_reduction(numel / 2, bytes_each, visit);
  for_parts_of_reduction(numel - numel / 2, bytes_each, visit);
}

/// Partial sums by chunk, then one block for each tensor.
void launch_norms(Host& host, const TensorList& tensors, const TensorList& norms) {
  const double two = 2;
  LaunchRequest q;
  q.op = OpKind::kForeachNorm;
  q.inputs = tensors;
  q.outputs = norms;
  q.attributes = std::span(&two, 1);
  q.kernels = multi_tensor_kernels(tensors, 1) + 1;
  host.launch(q);
}

}  // namespace

/// torch._foreach_norm: a table of chunk counts, partial sums, one result each. Those of gradients
/// without elements (shards of other ranks' rows) are made anew as zeros when the others are done,
/// and as many of the first ones go unused.
TensorList foreach_norms(Host& host, const TensorList& gradients) {
  constexpr std::int64_t chunk = 65536;
  std::int64_t chunks = 0;
  const bool device = on_device(gradients[0]);
  TensorList filled;
  filled.reserve(gradients.size());
  for (const SymTensor& g : gradients) {
    chunks += ceil_div(g->numel, chunk);
    if (g->numel > 0 || !device) filled.push_back(g);
  }
  SymTensor offsets, partial;
  if (device) {
    offsets = host.pointer_table(8 * (static_cast<std::int64_t>(filled.size()) + 1));
    if (chunks > 0) partial = host.empty({chunks}, DType::kFloat32, kClip);
  }
  TensorList results, norms;
  results.reserve(gradients.size());
  norms.reserve(gradients.size());
  for (const SymTensor& g : gradients) results.push_back(scalar(host, g->dtype, g));
  TensorList unused(results.begin() + static_cast<std::ptrdiff_t>(filled.size()), results.end());
  results.resize(filled.size());
  if (!filled.empty()) launch_norms(host, filled, results);
  auto next = results.begin();
  for (const SymTensor& g : gradients) {
    if (g->numel > 0 || !device) {
      norms.push_back(std::move(*next++));
    } else {
      norms.push_back(scalar(host, g->dtype, g));
      host.launch(OpKind::kFill, {}, {norms.back()}, {0.0});
    }
  }
  for (SymTensor& t : unused) t.reset();
  partial.reset();
  offsets.reset();
  return norms;
}

SymTensor stack_scalars(Host& host, const TensorList& scalars) {
  SymTensor y =
      temporary(host, {static_cast<std::int64_t>(scalars.size())}, scalars[0]->dtype, scalars[0]);
  std::vector<LaunchView> rows;
  rows.reserve(scalars.size());
  for (const SymTensor& s : scalars) rows.push_back(LaunchView::of(s, {1}));
  const double dim = 0;
  LaunchRequest cat;
  cat.op = OpKind::kCat;
  cat.input_views = rows;
  cat.outputs = std::span(&y, 1);
  cat.attributes = std::span(&dim, 1);
  cat.kernels = cat_kernels(scalars.size());
  host.launch(cat);
  return y;
}

SymTensor vector_norm(Host& host, const SymTensor& x, std::optional<DType> dtype) {
  SymTensor y = scalar(host, dtype.value_or(x->dtype), x);
  LaunchRequest q;
  q.kernels = 0;
  for_parts_of_reduction(x->numel, size_of(x->dtype), [&](std::int64_t part) {
    ++q.kernels;
    const std::int64_t blocks = blocks_of_vector_reduction(part);
    if (blocks <= 1 || !on_device(x)) return;
    SymTensor partial = host.empty({blocks}, DType::kFloat32, kClip);
    SymTensor semaphores = host.empty({1}, DType::kInt32, kClip);
    ++q.kernels;  // Set to zero first.
  });
  const double order = 2;
  q.op = OpKind::kNorm;
  q.inputs = {&x, 1};
  q.outputs = {&y, 1};
  q.attributes = {&order, 1};
  host.launch(q);
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
