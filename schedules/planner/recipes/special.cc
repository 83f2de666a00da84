#include "schedules/planner/recipes/special.h"

#include <algorithm>
#include <array>
#include <utility>

namespace foreshard {
namespace {

void sum_all_backward(BackwardContext& ctx) {
  std::array<std::int64_t, kMaxRank> stride{};
  ctx.set(0, raw_view(ctx.host, ctx.grad(), ctx.node.shape, stride, ctx.grad()->offset));
}

/// [T, k] x [k, n] with autograd.
SymTensor mm(Host& h, const SymTensor& a, const SymTensor& b) { return matmul(h, a, b); }

}  // namespace

SymTensor sum_all(Host& h, const SymTensor& x) {
  Record r(h, sum_all_backward, {&x});
  if (r) r->shape = x->shape;
  SymTensor y = empty_result(h, Shape(), x->dtype);
  h.launch(OpKind::kSum, {x}, {y});
  r.attach(y);
  return y;
}

SymTensor dense_experts(Host& h, const SymTensor& x, const SymTensor& w1, const SymTensor& w2, const SymTensor& w3) {
  const std::int64_t e = w1->shape[0], hidden = w1->shape[1], d = w1->shape[2];
  const auto up = [&](const SymTensor& w) { return linear(h, x, view(h, w, {e * hidden, d}), {}); };
  SymTensor a = unary(h, Function::kSilu, up(w1));
  SymTensor b = up(w3);
  SymTensor gated = mul(h, a, b);
  const std::int64_t rows = gated->numel / (e * hidden);
  SymTensor flat = view(h, gated, {rows, e * hidden});
  SymTensor down = reshape(h, transpose(h, w2, 1, 2), {e * hidden, d});
  SymTensor y = mm(h, flat, down);
  Shape s = x->shape;
  s[-1] = d;
  return view(h, y, s);
}

// ---------------------------------------------------------------------------------------------- tables and masks

namespace {

/// torch.arange(n) in int64.
SymTensor positions(Host& h, std::int64_t n) {
  SymTensor t = empty_result(h, {n}, DType::kInt64);
  h.launch(OpKind::kArange, {}, {t});
  return t;
}

/// RotaryEmbedding.forward of transformers 5.24: positions * inv_freq twice side by side, cos and sin in x's dtype.
void rotary_table(Host& h, const Module& module, const Statement& s, std::span<SymTensor> in, std::span<SymTensor> out) {
  const NoGradGuard no_grad(h);
  const std::int64_t width = s.ints[0], n = in[0]->shape[1];
  SymTensor inverse = raw_view(h, h.buffer(module, 0), {1, 1, width / 2});
  SymTensor emb;
  {
    SymTensor index = positions(h, n);
    SymTensor wide = cast(h, raw_view(h, index, {1, n, 1}), DType::kFloat32);
    index.reset();
    SymTensor freqs = mul(h, wide, inverse);
    const std::array<SymTensor, 2> twice{freqs, freqs};
    emb = cat(h, twice, -1);
  }
  const auto table = [&](OpKind op) {
    SymTensor raw = empty_result(h, emb->shape, DType::kFloat32);
    h.launch(op, {emb}, {raw});
    return unary(h, Function::kMulScalar, raw, 1.0);
  };
  SymTensor cos = table(OpKind::kCos), sin = table(OpKind::kSin);
  out[0] = cast(h, cos, in[0]->dtype);
  out[1] = cast(h, sin, in[0]->dtype);
}

/// Boolean [1, 1, s, s] (true = seen), or additive in x's dtype; null where attention needs none.
SymTensor causal_mask(Host& h, const Statement& s, const SymTensor& x) {
  const std::int64_t n = x->shape[1], window = s.ints.empty() ? 0 : s.ints[0];
  const bool always = h.config().packed_sequences || (s.ints.size() > 1 && s.ints[1] != 0), boolean = s.dtype == DType::kBool;
  if (boolean && !always && !(window > 0 && window <= n)) return {};
  const NoGradGuard no_grad(h);
  SymTensor index = positions(h, n);
  SymTensor rows = raw_view(h, index, {1, 1, n, 1}), columns = raw_view(h, index, {1, 1, 1, n});
  SymTensor seen = empty_result(h, {1, 1, n, n}, DType::kBool);
  h.launch(OpKind::kCompare, {columns, rows}, {seen}, {1.0});
  if (window > 0) {
    SymTensor lower = empty_result(h, {1, 1, n, 1}, DType::kInt64);
    h.launch(OpKind::kAddScalar, {rows}, {lower}, {-static_cast<double>(window)});
    SymTensor near = empty_result(h, {1, 1, n, n}, DType::kBool);
    h.launch(OpKind::kCompare, {columns, lower}, {near}, {2.0});
    SymTensor both = empty_result(h, {1, 1, n, n}, DType::kBool);
    h.launch(OpKind::kMul, {seen, near}, {both});
    seen = std::move(both);
  }
  if (boolean) return seen;
  SymTensor zero = empty_result(h, Shape(), x->dtype);
  h.launch(OpKind::kFill, {}, {zero}, {0.0});
  SymTensor mask = empty_result(h, {1, 1, n, n}, x->dtype);
  h.launch(OpKind::kWhere, {seen, zero}, {mask}, {-3.0e38});
  return mask;
}

// ---------------------------------------------------------------------------------------------- picking rows

/// Saved: index. The gradient is scattered into zeros.
void gather_backward(BackwardContext& ctx) {
  SymTensor index = ctx.saved(0);
  SymTensor g = empty_result(ctx.host, ctx.node.shape, ctx.grad()->dtype);
  ctx.host.launch(OpKind::kScatter, {index, ctx.grad()}, {g}, {static_cast<double>(ctx.node.ints[0]), 1.0});
  ctx.set(0, std::move(g));
}

void top_k(Host& h, const Statement& s, std::span<SymTensor> in, std::span<SymTensor> out) {
  Record r(h, gather_backward, {&in[0]});
  Shape shape = in[0]->shape;
  shape[-1] = s.ints[0];
  out[0] = empty_result(h, shape, in[0]->dtype);
  SymTensor index = empty_result(h, shape, DType::kInt64);
  h.launch(OpKind::kTopK, {in[0]}, {out[0], index});
  if (r) {
    r->shape = in[0]->shape;
    r->ints[0] = in[0]->shape.rank - 1;
    r.attach(out[0]);
    r.save_output(index);
  }
  if (out.size() > 1) out[1] = std::move(index);
}

SymTensor gather(Host& h, const SymTensor& x, const SymTensor& index, int dim) {
  Record r(h, gather_backward, {&x});
  if (r) {
    r->shape = x->shape;
    r->ints[0] = dim < 0 ? dim + x->shape.rank : dim;
    r.save(index);
  }
  SymTensor y = empty_result(h, index->shape, x->dtype);
  h.launch(OpKind::kGather, {x, index}, {y}, {static_cast<double>(dim)});
  r.attach(y);
  return y;
}

/// Saved: index. Rows are added into zeros.
void rows_backward(BackwardContext& ctx) {
  SymTensor index = ctx.saved(0);
  SymTensor g = empty_result(ctx.host, ctx.node.shape, ctx.grad()->dtype);
  ctx.host.launch(OpKind::kFill, {}, {g}, {0.0});
  ctx.host.launch(OpKind::kIndexAdd, {g, index, ctx.grad()}, {g}, {0.0});
  ctx.set(0, std::move(g));
}

/// x[index] over the first dimension.
SymTensor rows(Host& h, const SymTensor& x, const SymTensor& index) {
  Record r(h, rows_backward, {&x});
  if (r) {
    r->shape = x->shape;
    r.save(index);
  }
  Shape s = x->shape;
  s[0] = index->numel;
  SymTensor y = empty_result(h, s, x->dtype);
  h.launch(OpKind::kIndexSelect, {x, index}, {y}, {0.0});
  r.attach(y);
  return y;
}

void index_add_backward(BackwardContext& ctx) {
  SymTensor index = ctx.saved(0);
  Shape s = ctx.grad()->shape;
  s[0] = index->numel;
  SymTensor y = empty_result(ctx.host, s, ctx.grad()->dtype);
  ctx.host.launch(OpKind::kIndexSelect, {ctx.grad(), index}, {y}, {0.0});
  ctx.set(0, std::move(y));
}

/// zeros([n, ..]).index_add(0, index, source).
SymTensor index_add(Host& h, std::int64_t n, const SymTensor& index, const SymTensor& source) {
  Shape s = source->shape;
  s[0] = n;
  SymTensor y = empty_result(h, s, source->dtype);
  h.launch(OpKind::kFill, {}, {y}, {0.0});
  Record r(h, index_add_backward, {&source});
  if (r) r.save(index);
  h.launch(OpKind::kIndexAdd, {y, index, source}, {y}, {0.0});
  r.attach(y);
  return y;
}

// ---------------------------------------------------------------------------------------------- experts

void launch_grouped(Host& h, const SymTensor& a, const SymTensor& w, const SymTensor& counts, const SymTensor& c,
                    std::array<std::int64_t, 3> dims) {
  LaunchRequest q;
  const std::array<SymTensor, 3> operands{a, w, counts};
  q.op = OpKind::kGroupedMatmul;
  q.inputs = operands;
  q.outputs = {&c, 1};
  q.dims = {dims[0], dims[1], dims[2], 1, 0, 0};
  h.launch(q);
}

/// Saved: weight, a, counts. Edges: a, weight [E, n, k]. The weight's gradient is one product a group.
void grouped_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  SymTensor w = ctx.saved(0), a = ctx.saved(1), counts = ctx.saved(2);
  SymTensor g = contiguous(h, ctx.grad());
  if (ctx.needs(1)) {
    SymTensor gw = empty_result(h, w->shape, w->dtype);
    launch_grouped(h, g, a, counts, gw, {g->shape[0], g->shape[1], a->shape[1]});
    ctx.set(1, std::move(gw));
  }
  if (ctx.needs(0)) {
    SymTensor ga = empty_result(h, a->shape, a->dtype);
    launch_grouped(h, g, w, counts, ga, {g->shape[0], a->shape[1], g->shape[1]});
    ctx.set(0, std::move(ga));
  }
}

/// Rows of `a` in groups, each times its expert's weight [n, k] transposed.
SymTensor grouped(Host& h, const SymTensor& a, const SymTensor& w, const SymTensor& counts) {
  Record r(h, grouped_backward, {&a, &w});
  if (r) {
    r.save(w);
    r.save(a);
    r.save(counts);
  }
  SymTensor y = empty_result(h, {a->shape[0], w->shape[1]}, a->dtype);
  SymTensor wt = raw_view(h, w, {w->shape[0], w->shape[2], w->shape[1]}, {w->stride[0], w->stride[2], w->stride[1]}, w->offset);
  launch_grouped(h, a, wt, counts, y, {a->shape[0], w->shape[1], a->shape[1]});
  r.attach(y);
  return y;
}

SymTensor activate(Host& h, std::int64_t code, const SymTensor& x) {
  switch (static_cast<Activation>(code)) {
    case Activation::kSilu: return unary(h, Function::kSilu, x);
    case Activation::kRelu: return unary(h, Function::kRelu, x);
    case Activation::kTanh: return unary(h, Function::kTanh, x);
    case Activation::kSigmoid: return unary(h, Function::kSigmoid, x);
    case Activation::kGelu: return unary(h, Function::kGelu, x, 0);
    default: return unary(h, Function::kGelu, x, 1);
  }
}

/// The library's grouped_mm experts: rows sorted by expert, two grouped products, weighted, put back and added up.
SymTensor routed_experts(Host& h, const Statement& s, std::span<SymTensor> in) {
  const std::int64_t experts = s.ints[0], k = s.ints[1], tokens = in[0]->shape[0];
  const SymTensor &up_weight = h.parameter(s.parameters[0]), &down_weight = h.parameter(s.parameters[1]);
  SymTensor order, token, counts;
  {
    const NoGradGuard no_grad(h);
    SymTensor flat = raw_view(h, contiguous(h, in[2]), {tokens * k});
    SymTensor sorted = empty_result(h, {tokens * k}, DType::kInt64);
    order = empty_result(h, {tokens * k}, DType::kInt64);
    h.launch(OpKind::kSort, {flat}, {sorted, order});
    token = empty_result(h, {tokens * k}, DType::kInt64);
    h.launch(OpKind::kMulScalar, {order}, {token}, {1.0 / static_cast<double>(k)});
    counts = empty_result(h, {experts}, DType::kInt64);
    h.launch(OpKind::kHistogram, {flat}, {counts});
  }
  SymTensor x = rows(h, in[0], token);
  SymTensor weights = rows(h, reshape(h, in[1], {tokens * k}), order);
  SymTensor wide = grouped(h, x, up_weight, counts);
  x.reset();
  std::array<SymTensor, 2> halves;
  const std::array<std::int64_t, 2> sizes{wide->shape[1] / 2, wide->shape[1] / 2};
  split(h, wide, 1, sizes, halves);
  wide.reset();
  SymTensor gated = mul(h, activate(h, s.ints.size() > 2 ? s.ints[2] : 0, halves[0]), halves[1]);
  halves = {};
  SymTensor down = grouped(h, gated, down_weight, counts);
  gated.reset();
  SymTensor weighted = mul(h, down, view(h, weights, {tokens * k, 1}));
  down.reset();
  return index_add(h, tokens, token, weighted);
}

// ---------------------------------------------------------------------------------------------- others

/// Saved: input, weight. Edges: input, weight, bias.
void conv2d_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  SymTensor x = ctx.saved(0), w = ctx.saved(1);
  SymTensor gx = ctx.needs(0) ? empty_result(h, x->shape, x->dtype) : SymTensor();
  SymTensor gw = ctx.needs(1) ? empty_result(h, w->shape, w->dtype) : SymTensor();
  SymTensor gb = ctx.needs(2) ? empty_result(h, {w->shape[0]}, w->dtype) : SymTensor();
  LaunchRequest q;
  const std::array<SymTensor, 3> in{ctx.grad(), x, w}, out{gx, gw, gb};
  q.op = OpKind::kConv2dBackward;
  q.inputs = in;
  q.outputs = out;
  const double stride = static_cast<double>(ctx.node.ints[0]), padding = static_cast<double>(ctx.node.ints[1]);
  const std::array<double, 2> attributes{stride, padding};
  q.attributes = attributes;
  q.dims = {ctx.grad()->numel / w->shape[0], w->shape[0], w->numel / w->shape[0], 1, 0, 0};
  h.launch(q);
  if (gx) ctx.set(0, std::move(gx));
  if (gw) ctx.set(1, std::move(gw));
  if (gb) ctx.set(2, std::move(gb));
}

SymTensor conv2d(Host& h, const Statement& s, const SymTensor& x) {
  const SymTensor& w = h.parameter(s.parameters[0]);
  const SymTensor bias = s.parameters.size() > 1 ? h.parameter(s.parameters[1]) : SymTensor();
  const std::int64_t stride = s.ints.empty() ? 1 : s.ints[0], padding = s.ints.size() > 1 ? s.ints[1] : 0;
  Record r(h, conv2d_backward, {&x, &w, &bias});
  if (r) {
    r->ints = {stride, padding};
    r.save(x);
    r.save(w);
  }
  const auto out = [&](int d) { return (x->shape[d] + 2 * padding - w->shape[d]) / stride + 1; };
  SymTensor y = empty_result(h, {x->shape[0], w->shape[0], out(2), out(3)}, x->dtype);
  LaunchRequest q;
  const std::array<SymTensor, 3> in{x, w, bias};
  const std::array<double, 2> attributes{static_cast<double>(stride), static_cast<double>(padding)};
  q.op = OpKind::kConv2d;
  q.inputs = in;
  q.outputs = {&y, 1};
  q.attributes = attributes;
  q.dims = {y->numel / w->shape[0], w->shape[0], w->numel / w->shape[0], 1, 0, 0};
  h.launch(q);
  r.attach(y);
  return y;
}

/// x *= uniform noise, in place; in effect a product that saves the noise.
SymTensor jitter(Host& h, const SymTensor& x) {
  SymTensor noise = empty_result(h, x->shape, x->dtype);
  h.launch(OpKind::kFill, {}, {noise}, {1.0});
  return mul(h, x, noise);
}

}  // namespace

bool run_special(Host& h, const Module& module, const Statement& s, std::span<SymTensor> in, std::span<SymTensor> out) {
  switch (s.function) {
    case Function::kRotaryTable: rotary_table(h, module, s, in, out); return true;
    case Function::kCausalMask: out[0] = causal_mask(h, s, in[0]); return true;
    case Function::kTopK: top_k(h, s, in, out); return true;
    case Function::kGather: out[0] = gather(h, in[0], in[1], static_cast<int>(s.ints.empty() ? 0 : s.ints[0])); return true;
    case Function::kIndex: out[0] = rows(h, in[0], in[1]); return true;
    case Function::kRoutedExperts: out[0] = routed_experts(h, s, in); return true;
    case Function::kConv2d: out[0] = conv2d(h, s, in[0]); return true;
    case Function::kJitter: out[0] = jitter(h, in[0]); return true;
    case Function::kDivInPlace: out[0] = div(h, in[0], in[1]); return true;
    default: return false;
  }
}

}  // namespace foreshard
