// Views and copies that rearrange: no kernels but for reshape, contiguous and cat.

#include <algorithm>
#include <utility>

#include "schedules/planner/recipes/recipe.h"
#include "schedules/planner/recipes/shape_check.h"

namespace foreshard {

SymTensor raw_view(Host& host, const SymTensor& t, const Shape& shape) {
  SymTensor v = host.view_as(t, shape, t->offset);
  v->base = t->base ? t->base : t;
  return v;
}

SymTensor raw_view(Host& host, const SymTensor& t, const Shape& shape,
                   const std::array<std::int64_t, kMaxRank>& stride, std::int64_t offset) {
  SymTensor v = host.view_as(t, shape, offset);
  v->stride = stride;
  v->base = t->base ? t->base : t;
  return v;
}

SymTensor swapped(Host& host, const SymTensor& m) {
  return raw_view(host, m, {m->shape[1], m->shape[0]}, {m->stride[1], m->stride[0]}, m->offset);
}

bool view_strides(const SymTensorImpl& t, const Shape& shape,
                  std::array<std::int64_t, kMaxRank>& stride) {
  // at::detail::computeStride: walk both shapes from the last dimension, chunk by chunk of
  // mergeable dimensions.
  if (t.numel == 0) {
    stride = contiguous_strides(shape);
    return true;
  }
  int v = shape.rank - 1;
  std::int64_t base = t.shape.rank > 0 ? t.stride[static_cast<std::size_t>(t.shape.rank - 1)] : 1;
  std::int64_t chunk = 1, seen = 1;
  for (int d = t.shape.rank - 1; d >= 0; --d) {
    chunk *= t.shape[d];
    const bool ends = d == 0 || (t.shape[d - 1] != 1 &&
                                 t.stride[static_cast<std::size_t>(d - 1)] != chunk * base);
    if (!ends) continue;
    while (v >= 0 && (seen < chunk || shape[v] == 1)) {
      stride[static_cast<std::size_t>(v)] = seen * base;
      seen *= shape[v];
      --v;
    }
    if (seen != chunk) return false;
    if (d > 0) {
      base = t.stride[static_cast<std::size_t>(d - 1)];
      chunk = seen = 1;
    }
  }
  if (t.shape.rank == 0) {
    for (; v >= 0; --v) stride[static_cast<std::size_t>(v)] = 1;
  }
  return v == -1;
}

namespace {

void view_backward(BackwardContext& ctx) {
  if (!ctx.grad() || !ctx.needs(0)) return;
  ctx.set(0, reshape(ctx.host, ctx.grad(), ctx.node.shape));
}

/// A view with its node; the backward function finds the input's shape in node.shape.
SymTensor recorded_view(Host& h, BackwardFunction backward, const SymTensor& x, const Shape& shape,
                        const std::array<std::int64_t, kMaxRank>& stride, std::int64_t offset,
                        std::initializer_list<std::int64_t> ints = {}) {
  Record r(h, backward, {&x});
  SymTensor y = raw_view(h, x, shape, stride, offset);
  if (r) {
    r->shape = x->shape;
    std::copy(ints.begin(), ints.end(), r->ints.begin());
    r.attach(y);
  }
  return y;
}

void copy_backward(BackwardContext& ctx) {
  if (ctx.grad() && ctx.needs(0)) ctx.set(0, ctx.grad());
}

}  // namespace

SymTensor view(Host& h, const SymTensor& x, const Shape& shape) {
  std::array<std::int64_t, kMaxRank> stride{};
  if (shape.numel() != x->numel) refuse_shapes(h, "view", x->shape, shape);
  if (!view_strides(*x, shape, stride))
    throw InternalError("view of a tensor whose strides do not allow it");
  return recorded_view(h, view_backward, x, shape, stride, x->offset);
}

SymTensor reshape(Host& h, const SymTensor& x, const Shape& shape) {
  std::array<std::int64_t, kMaxRank> stride{};
  if (shape.numel() != x->numel) refuse_shapes(h, "reshape", x->shape, shape);
  if (view_strides(*x, shape, stride))
    return recorded_view(h, view_backward, x, shape, stride, x->offset);
  // clone(contiguous) then _unsafe_view.
  SymTensor y;
  {
    Record r(h, copy_backward, {&x});
    y = empty_result(h, x->shape, x->dtype);
    h.launch(OpKind::kCopy, {x}, {y});
    r.attach(y);
  }
  Record r(h, view_backward, {&y});
  SymTensor z = h.view_as(y, shape, y->offset);
  if (r) {
    r->shape = x->shape;
    r.attach(z);
  }
  return z;
}

namespace {

void transpose_backward(BackwardContext& ctx) {
  if (!ctx.grad() || !ctx.needs(0)) return;
  ctx.set(0, transpose(ctx.host, ctx.grad(), static_cast<int>(ctx.node.ints[0]),
                       static_cast<int>(ctx.node.ints[1])));
}

}  // namespace

SymTensor transpose(Host& h, const SymTensor& x, int a, int b) {
  a = static_cast<int>(x->shape.index(a));
  b = static_cast<int>(x->shape.index(b));
  Shape shape = x->shape;
  std::array<std::int64_t, kMaxRank> stride = x->stride;
  std::swap(shape[a], shape[b]);
  std::swap(stride[static_cast<std::size_t>(a)], stride[static_cast<std::size_t>(b)]);
  return recorded_view(h, transpose_backward, x, shape, stride, x->offset, {a, b});
}

SymTensor contiguous(Host& h, const SymTensor& x) {
  if (is_contiguous(*x)) return x;
  Record r(h, copy_backward, {&x});
  SymTensor y = empty_result(h, x->shape, x->dtype);
  h.launch(OpKind::kCopy, {x}, {y});
  r.attach(y);
  return y;
}

SymTensor contiguous_operand(Host& h, const SymTensor& x) {
  if (is_contiguous(*x)) return x;
  SymTensor y = empty_result(h, x->shape, x->dtype);
  h.launch(OpKind::kCopy, {x}, {y});
  return y;
}

namespace {

void expand_backward(BackwardContext& ctx) {
  if (ctx.grad() && ctx.needs(0)) ctx.set(0, sum_to(ctx.host, ctx.grad(), ctx.node.shape));
}

}  // namespace

SymTensor expand(Host& h, const SymTensor& x, const Shape& shape) {
  std::array<std::int64_t, kMaxRank> stride{};
  const int lead = shape.rank - x->shape.rank;
  if (lead < 0) refuse_shapes(h, "expand", x->shape, shape);
  Shape full = shape;
  for (int d = shape.rank - 1; d >= lead; --d) {
    const std::int64_t from = x->shape[d - lead];
    if (full[d] < 0) full[d] = from;
    if (from != full[d] && from != 1) refuse_shapes(h, "expand", x->shape, shape);
    stride[static_cast<std::size_t>(d)] =
        from == full[d] ? x->stride[static_cast<std::size_t>(d - lead)] : 0;
  }
  return recorded_view(h, expand_backward, x, full, stride, x->offset);
}

namespace {

/// Slice and select: the gradient is written into zeros of the input's shape.
void slice_backward(BackwardContext& ctx) {
  if (!ctx.grad() || !ctx.needs(0)) return;
  const auto& n = ctx.node.ints;
  SymTensor g = empty_result(ctx.host, ctx.node.shape, ctx.grad()->dtype);
  ctx.host.launch(OpKind::kFill, {}, {g}, {0.0});
  std::array<std::int64_t, kMaxRank> stride = g->stride;
  const auto dim = static_cast<std::size_t>(n[0]);
  const std::int64_t offset = n[1] * stride[dim];
  SymTensor part;
  if (n[3] != 0) {  // select: the dimension is gone
    Shape s = ctx.grad()->shape;
    std::array<std::int64_t, kMaxRank> st{};
    for (std::size_t d = 0, o = 0; d < g->shape.rank; ++d) {
      if (d != dim) st[o++] = stride[d];
    }
    part = ctx.host.view_as(g, s, std::span<const std::int64_t>(st.data(), s.rank), offset);
  } else {
    stride[dim] *= n[2];
    part = ctx.host.view_as(g, ctx.grad()->shape,
                            std::span<const std::int64_t>(stride.data(), g->shape.rank), offset);
  }
  ctx.host.launch(OpKind::kCopy, {ctx.grad()}, {part});
  ctx.set(0, std::move(g));
}

}  // namespace

namespace {

void alias_backward(BackwardContext& ctx) { ctx.set(0, ctx.grad()); }

}  // namespace

SymTensor slice(Host& h, const SymTensor& x, int dim, std::int64_t start, std::int64_t end,
                std::int64_t step) {
  dim = static_cast<int>(x->shape.index(dim));
  const std::int64_t size = x->shape[dim];
  if (end == -1 || end > size) end = size;
  if (start < 0) start += size;
  if (start == 0 && end == size && step == 1) {  // Indexing hands on an alias.
    return recorded_view(h, alias_backward, x, x->shape, x->stride, x->offset, {0, 0, 0, 0});
  }
  Shape shape = x->shape;
  shape[dim] = std::max<std::int64_t>(0, (end - start + step - 1) / step);
  std::array<std::int64_t, kMaxRank> stride = x->stride;
  const std::int64_t offset = x->offset + start * stride[static_cast<std::size_t>(dim)];
  stride[static_cast<std::size_t>(dim)] *= step;
  return recorded_view(h, slice_backward, x, shape, stride, offset, {dim, start, step, 0});
}

SymTensor select(Host& h, const SymTensor& x, int dim, std::int64_t index) {
  dim = static_cast<int>(x->shape.index(dim));
  if (index < 0) index += x->shape[dim];
  Shape shape;
  shape.rank = static_cast<std::uint8_t>(x->shape.rank - 1);
  std::array<std::int64_t, kMaxRank> stride{};
  for (int d = 0, o = 0; d < x->shape.rank; ++d) {
    if (d == dim) continue;
    shape[o] = x->shape[d];
    stride[static_cast<std::size_t>(o++)] = x->stride[static_cast<std::size_t>(d)];
  }
  return recorded_view(h, slice_backward, x, shape, stride,
                       x->offset + index * x->stride[static_cast<std::size_t>(dim)],
                       {dim, index, 1, 1});
}

SymTensor Host::clone(const SymTensor& t) {
  Record r(*this, copy_backward, {&t});
  SymTensor y = empty_result(*this, t->shape, t->dtype);
  launch(OpKind::kCopy, {t}, {y});
  r.attach(y);
  return y;
}

SymTensor Host::to(const SymTensor& t, DType dtype) { return foreshard::cast(*this, t, dtype); }

}  // namespace foreshard
