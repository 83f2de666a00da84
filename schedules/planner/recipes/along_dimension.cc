// Sums, means, norms, running sums and softmax along one dimension.

#include <array>
#include <utility>

#include "schedules/planner/recipes/launches.h"
#include "schedules/planner/recipes/special.h"

namespace foreshard {
namespace {

void mean_backward(BackwardContext& ctx) {
  Shape s = ctx.grad()->shape;
  s[-1] = ctx.node.shape[-1];
  std::array<std::int64_t, kMaxRank> stride = ctx.grad()->stride;
  stride[static_cast<std::size_t>(s.rank - 1)] = 0;
  SymTensor wide = raw_view(ctx.host, ctx.grad(), s, stride, ctx.grad()->offset);
  SymTensor y = result_like(ctx.host, s, ctx.grad()->dtype, wide);
  ctx.host.launch(OpKind::kMulScalar, {wide}, {y}, {1.0 / static_cast<double>(s[-1])});
  ctx.set(0, std::move(y));
}

void sum_backward(BackwardContext& ctx) {
  const int dim = static_cast<int>(ctx.node.ints[0]);
  const bool keep = ctx.node.ints[1] != 0;
  const SymTensor& g = ctx.grad();
  const Shape& s = ctx.node.shape;
  std::array<std::int64_t, kMaxRank> stride{};
  for (int d = 0, o = 0; d < s.rank; ++d) {
    if (d == dim) {
      if (keep) ++o;
    } else {
      stride[static_cast<std::size_t>(d)] = g->stride[static_cast<std::size_t>(o++)];
    }
  }
  ctx.set(0, raw_view(ctx.host, g, s, stride, g->offset));
}

void softmax_backward(BackwardContext& ctx) {
  SymTensor y = ctx.saved(0);
  SymTensor gx = empty_result(ctx.host, ctx.grad()->shape, static_cast<DType>(ctx.node.ints[0]));
  // The kernel takes grad * y (softmax_backward_cuda_out); ours computes both at once.
  SymTensor product = empty_temporary(ctx.host, ctx.grad()->bytes());
  ctx.host.launch(OpKind::kSoftmaxBackward, {ctx.grad(), y}, {gx});
  ctx.set(0, std::move(gx));
}

}  // namespace

SymTensor mean_last(Host& h, const SymTensor& x) {
  Record r(h, mean_backward, {&x});
  if (r) r->shape = x->shape;
  Shape s = x->shape;
  s[-1] = 1;
  SymTensor y = empty_result(h, s, x->dtype);
  h.launch(OpKind::kMean, {x}, {y}, {-1.0});
  r.attach(y);
  return y;
}

SymTensor sum_dim(Host& h, const SymTensor& x, int dim, bool keep) {
  dim = static_cast<int>(x->shape.index(dim));
  Record r(h, sum_backward, {&x});
  if (r) {
    r->shape = x->shape;
    r->ints[0] = dim;
    r->ints[1] = keep ? 1 : 0;
  }
  Shape s;
  for (int d = 0; d < x->shape.rank; ++d) {
    if (d != dim)
      s.append(x->shape[d]);
    else if (keep)
      s.append(1);
  }
  SymTensor y = empty_result(h, s, autocast_sum_dtype(h, x->dtype));
  h.launch(OpKind::kSum, {x}, {y}, {static_cast<double>(dim)});
  r.attach(y);
  return y;
}

namespace {

/// norm_backward of aten/src/ATen/native (FunctionsManual.cpp). Saved: self, result.
/// p 1: grad * sign(self); p 2: grad * (self / norm), zero where the norm is.
void vector_norm_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  SymTensor x = ctx.saved(0), norm = ctx.saved(1);
  if (ctx.node.floats[0] == 1) {
    ctx.set(0, launch_binary(h, OpKind::kMul, launch_unary(h, OpKind::kSign, x), ctx.grad()));
    return;
  }
  SymTensor unit = launch_binary(h, OpKind::kDiv, x, norm);
  {
    SymTensor zero = empty_result(h, norm->shape, DType::kBool);
    h.launch(OpKind::kCompare, {norm}, {zero}, {4.0, 0.0});
    h.launch(OpKind::kWhere, {zero, SymTensor(), unit}, {unit}, {0.0});
  }
  ctx.set(0, launch_binary(h, OpKind::kMul, ctx.grad(), unit));
}

void cumsum_backward(BackwardContext& ctx) {
  // grad.to(self.scalar_type()) first.
  const SymTensor grad = cast(ctx.host, ctx.grad(), static_cast<DType>(ctx.node.ints[1]));
  SymTensor y = empty_result(ctx.host, grad->shape, grad->dtype);
  ctx.host.launch(OpKind::kCumsum, {grad}, {y}, {static_cast<double>(ctx.node.ints[0]), 1.0});
  ctx.set(0, std::move(y));
}

}  // namespace

SymTensor vector_norm(Host& h, const SymTensor& x, double p) {
  Record r(h, vector_norm_backward, {&x});
  if (r) {
    r->floats[0] = p;
    r.save(x);
  }
  Shape s = x->shape;
  s[-1] = 1;
  SymTensor y = empty_result(h, s, autocast_sum_dtype(h, x->dtype));
  h.launch(OpKind::kNorm, {x}, {y}, {p});
  r.attach(y);
  if (r) r.save_output(y);
  return y;
}

SymTensor cumsum(Host& h, const SymTensor& x, int dim) {
  Record r(h, cumsum_backward, {&x});
  if (r) {
    r->ints[0] = dim;
    r->ints[1] = static_cast<std::int64_t>(x->dtype);
  }
  const DType dtype = autocast_sum_dtype(h, x->dtype);
  SymTensor y = empty_result(h, x->shape, dtype);
  SymTensor from = x;
  if (dtype != x->dtype) {  // self.to(result.scalar_type()) inside the function.
    from = empty_result(h, x->shape, dtype);
    h.launch(OpKind::kCopy, {x}, {from});
  }
  h.launch(OpKind::kCumsum, {from}, {y}, {static_cast<double>(dim)});
  r.attach(y);
  return y;
}

SymTensor softmax(Host& h, const SymTensor& x_in, DType dtype) {
  // softmax(x, dtype): converted first; only fp16 to fp32 is done inside the kernel.
  const bool inside = x_in->dtype == DType::kFloat16 && dtype == DType::kFloat32;
  const SymTensor x = inside ? x_in : cast(h, x_in, dtype);
  Record r(h, softmax_backward, {&x});
  if (r) r->ints[0] = static_cast<std::int64_t>(x->dtype);
  SymTensor y = empty_result(h, x->shape, dtype);
  h.launch(OpKind::kSoftmax, {x}, {y});
  r.attach(y);
  if (r) r.save_output(y);
  return y;
}

}  // namespace foreshard
