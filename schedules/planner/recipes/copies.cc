// Functions that make tensors of parts or of other elements: split and cat, casts, padding.

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "schedules/planner/host/grad_dtype.h"
#include "schedules/planner/recipes/recipe.h"

namespace foreshard {

std::int64_t HostImpl::size_list(std::span<const std::int64_t> sizes) {
  const auto equal = [&](const std::vector<std::int64_t>& list) {
    return std::equal(list.begin(), list.end(), sizes.begin(), sizes.end());
  };
  const auto found = std::find_if(size_lists.begin(), size_lists.end(), equal);
  if (found == size_lists.end())
    return size_lists.emplace_back(sizes.begin(), sizes.end()), std::ssize(size_lists) - 1;
  return found - size_lists.begin();
}

namespace {

/// Split and cat: node.ints = dimension, index of the list of sizes.
std::span<const std::int64_t> sizes_of(BackwardContext& ctx) {
  return ctx.host.impl().size_lists[static_cast<std::size_t>(ctx.node.ints[1])];
}

/// split_backward: the gradients of all parts put together; undefined ones are zeros.
void split_backward(BackwardContext& ctx) {
  if (!ctx.needs(0)) return;
  Host& h = ctx.host;
  bool any = false;
  DType dtype = DType::kFloat32;
  for (int i = 0; i < ctx.gradients(); ++i) {
    if (!ctx.grad(i)) continue;
    any = true;
    dtype = ctx.grad(i)->dtype;
  }
  if (!any) return;
  const auto dim = static_cast<int>(ctx.node.ints[0]);
  std::vector<SymTensor> parts;
  for (int i = 0; i < ctx.gradients(); ++i) {
    if (ctx.grad(i)) {
      parts.push_back(ctx.grad(i));
      continue;
    }
    Shape s = ctx.node.shape;
    s[dim] = ctx.node.sizes != nullptr ? (*ctx.node.sizes)[static_cast<std::size_t>(i)]
                                       : sizes_of(ctx)[static_cast<std::size_t>(i)];
    SymTensor zero = empty_result(h, s, dtype);
    h.launch(OpKind::kFill, {}, {zero}, {0.0});
    parts.push_back(std::move(zero));
  }
  ctx.set(0, cat(h, parts, dim));
}

}  // namespace

void split(Host& h, const SymTensor& x, int dim, std::span<const std::int64_t> sizes,
           std::span<SymTensor> out) {
  dim = static_cast<int>(x->shape.index(dim));
  Record r(h, split_backward, {&x});
  if (r) {
    r->shape = x->shape;
    r->ints = {dim, h.impl().size_list(sizes)};
  }
  std::int64_t offset = x->offset;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Shape shape = x->shape;
    shape[dim] = sizes[i];
    out[i] = raw_view(h, x, shape, x->stride, offset);
    r.attach(out[i], static_cast<int>(i));
    offset += sizes[i] * x->stride[static_cast<std::size_t>(dim)];
  }
}

namespace {

void cat_backward(BackwardContext& ctx) {
  if (!ctx.grad()) return;
  const auto dim = static_cast<int>(ctx.node.ints[0]);
  std::int64_t offset = ctx.grad()->offset;
  const SymTensor& g = ctx.grad();
  for (int i = 0; i < ctx.node.edges(); ++i) {
    Shape shape = g->shape;
    shape[dim] = sizes_of(ctx)[static_cast<std::size_t>(i)];
    if (ctx.needs(i)) ctx.set(i, raw_view(ctx.host, g, shape, g->stride, offset));
    offset += shape[dim] * g->stride[static_cast<std::size_t>(dim)];
  }
}

}  // namespace

SymTensor cat(Host& h, std::span<const SymTensor> xs, int dim) {
  dim = static_cast<int>(xs[0]->shape.index(dim));
  Record r(h, cat_backward, xs);
  Shape shape = xs[0]->shape;
  std::int64_t total = 0;
  for (const SymTensor& x : xs) total += x->shape[dim];
  shape[dim] = total;
  if (r) {
    std::vector<std::int64_t> sizes;
    for (const SymTensor& x : xs) sizes.push_back(x->shape[dim]);
    r->ints = {dim, h.impl().size_list(sizes)};
  }
  DType dtype = xs[0]->dtype;
  for (const SymTensor& x : xs) dtype = promoted(dtype, x->dtype);
  SymTensor y = empty_result(h, shape, dtype);
  const double d = dim;
  LaunchRequest q;
  q.op = OpKind::kCat;
  q.inputs = xs;
  q.outputs = {&y, 1};
  q.attributes = {&d, 1};
  h.launch(q);
  r.attach(y);
  return y;
}

namespace {

void cast_backward(BackwardContext& ctx) {
  if (!ctx.grad() || !ctx.needs(0)) return;
  ctx.set(0, ctx.host.cast(ctx.grad(), static_cast<DType>(ctx.node.ints[0]),
                           result_category(ctx.host)));
}

}  // namespace

std::array<std::int64_t, kMaxRank> preserved_strides(const SymTensorImpl& x) {
  const int rank = x.shape.rank;
  std::int64_t extent = 1;
  for (int d = 0; d < rank; ++d) extent += (x.shape[d] - 1) * x.stride[static_cast<std::size_t>(d)];
  if (extent == x.numel) return x.stride;
  std::array<int, kMaxRank> order{};  // Innermost dimension first.
  for (int i = 0; i < rank; ++i) order[static_cast<std::size_t>(i)] = rank - 1 - i;
  const auto outer = [&](int a, int b) {  // > 0: dimension a lies outside of b.
    const std::int64_t sa = x.stride[static_cast<std::size_t>(a)],
                       sb = x.stride[static_cast<std::size_t>(b)];
    if (sa == 0 || sb == 0) return 0;
    if (sa != sb) return sa > sb ? 1 : -1;
    return x.shape[a] > x.shape[b] ? 1 : 0;
  };
  for (int i = 1; i < rank; ++i) {
    int at = i;
    for (int j = i - 1; j >= 0; --j) {
      const int c = outer(order[static_cast<std::size_t>(j)], order[static_cast<std::size_t>(at)]);
      if (c < 0) break;
      if (c == 0) continue;
      std::swap(order[static_cast<std::size_t>(j)], order[static_cast<std::size_t>(at)]);
      at = j;
    }
  }
  std::array<std::int64_t, kMaxRank> strides{};
  std::int64_t step = 1;
  for (int i = 0; i < rank; ++i) {
    const int d = order[static_cast<std::size_t>(i)];
    strides[static_cast<std::size_t>(d)] = step;
    step *= std::max<std::int64_t>(1, x.shape[d]);
  }
  return strides;
}

SymTensor cast(Host& h, const SymTensor& x, DType dtype, bool dense) {
  if (x->dtype == dtype && (!dense || is_contiguous(*x))) return x;
  Record r(h, cast_backward, {&x});
  if (r) r->ints[0] = static_cast<std::int64_t>(x->dtype);
  SymTensor y = empty_result(h, x->shape, dtype);
  if (!dense && !is_contiguous(*x)) y->stride = preserved_strides(*x);
  h.launch(OpKind::kCopy, {x}, {y});
  r.attach(y);
  return y;
}

namespace {

/// constant_pad_nd with a negative count: cut back and copied.
void pad_backward(BackwardContext& ctx) {
  if (!ctx.needs(0)) return;
  SymTensor y = empty_result(ctx.host, ctx.node.shape, ctx.grad()->dtype);
  ctx.host.launch(
      OpKind::kCopy,
      {raw_view(ctx.host, ctx.grad(), y->shape, ctx.grad()->stride, ctx.grad()->offset)}, {y});
  ctx.set(0, std::move(y));
}

}  // namespace

SymTensor pad_end(Host& h, const SymTensor& x, int dim, std::int64_t count) {
  Record r(h, pad_backward, {&x});
  if (r) r->shape = x->shape;
  Shape s = x->shape;
  s[dim] += count;
  SymTensor y = empty_result(h, s, x->dtype);
  if (count > 0) h.launch(OpKind::kFill, {}, {y}, {0.0});
  h.launch(OpKind::kCopy, {x}, {raw_view(h, y, x->shape, y->stride, y->offset)});
  r.attach(y);
  return y;
}

}  // namespace foreshard
