// The gated delta rule of Qwen3-Next as the library's plain-torch code computes it, chunk by chunk
// (torch_chunk_gated_delta_rule of transformers 5.24), used where the optional kernels are not
// installed.

#include <array>
#include <cmath>

#include "schedules/planner/recipes/special.h"

namespace foreshard {
namespace {

// ----------------------------------------------------------------------------------------------
// triangular systems

SymTensor launch_solve(Host& h, const SymTensor& a, const SymTensor& b, bool upper) {
  SymTensor x = empty_result(h, b->shape, b->dtype);
  h.launch(OpKind::kSolveTriangular, {a, b}, {x}, {upper ? 1.0 : 0.0});
  return x;
}

/// A X = B. Saved: A, X. Edges: A, B. dB = solve(A^T, dX), dA = -dB X^T below the diagonal.
void solve_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  SymTensor a = ctx.saved(0), x = ctx.saved(1);
  const NoGradGuard no_grad(h);
  SymTensor gb = launch_solve(h, transpose(h, a, -1, -2), ctx.grad(), true);
  if (ctx.needs(0)) {
    SymTensor minus = unary(h, Function::kNeg, gb);
    SymTensor product = matmul(h, minus, transpose(h, x, -1, -2));
    SymTensor lower = empty_result(h, product->shape, product->dtype);
    h.launch(OpKind::kCopy, {product}, {lower});  // tril(-1): what lies above is never read.
    ctx.set(0, std::move(lower));
  }
  if (ctx.needs(1)) ctx.set(1, std::move(gb));
}

SymTensor solve(Host& h, const SymTensor& a, const SymTensor& b) {
  Record r(h, solve_backward, {&a, &b});
  if (r) r.save(a);
  SymTensor x = launch_solve(h, a, b, false);
  r.attach(x);
  if (r) r.save_output(x);
  return x;
}

// ----------------------------------------------------------------------------------------------
// assignment to a slice

/// Edges: base, value; ints: dim, index. CopySlices: the gradient is copied, its slice taken out
/// and set to zero.
void assign_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  const auto dim = static_cast<int>(ctx.node.ints[0]);
  const NoGradGuard no_grad(h);
  SymTensor rest = empty_result(h, ctx.grad()->shape, ctx.grad()->dtype);
  h.launch(OpKind::kCopy, {ctx.grad()}, {rest});
  SymTensor slot = select(h, rest, dim, ctx.node.ints[1]);
  SymTensor value = empty_result(h, slot->shape, slot->dtype);
  h.launch(OpKind::kCopy, {slot}, {value});
  h.launch(OpKind::kFill, {}, {slot}, {0.0});
  if (ctx.needs(1)) ctx.set(1, std::move(value));
  if (ctx.needs(0)) ctx.set(0, std::move(rest));
}

/// base[.., index, ..] = value in place: the same storage with a new history.
SymTensor assign(Host& h, const SymTensor& base, int dim, std::int64_t index,
                 const SymTensor& value) {
  Record r(h, assign_backward, {&base, &value});
  if (r) r->ints = {dim, index};
  {
    const NoGradGuard no_grad(h);
    h.launch(OpKind::kCopy, {value}, {select(h, base, dim, index)});
  }
  SymTensor y = h.view_as(base, base->shape, base->offset);
  r.attach(y);
  return y;
}

// ----------------------------------------------------------------------------------------------
// the rule

struct Chunks {
  std::int64_t size, batch, heads, count;
  Shape of(std::int64_t last) const { return {batch, heads, count, size, last}; }
};

/// repeat_interleave over heads: a copy, also of a single head.
SymTensor repeat_heads(Host& h, const SymTensor& x, std::int64_t times) {
  const std::int64_t b = x->shape[0], s = x->shape[1], heads = x->shape[2], d = x->shape[3];
  SymTensor wide = expand(h, view(h, x, {b, s, heads, 1, d}), {b, s, heads, times, d});
  return view(h, h.clone(wide), {b, s, heads * times, d});
}

SymTensor last_as_one(Host& h, const SymTensor& x) {
  Shape s = x->shape;
  s.append(1);
  return view(h, x, s);
}

SymTensor exponential(Host& h, const SymTensor& x) { return unary(h, Function::kExp, x); }

/// x / |x| over the last dimension, op by op.
SymTensor l2norm(Host& h, const SymTensor& x) {
  SymTensor sum = unary(h, Function::kAddScalar, sum_dim(h, mul(h, x, x), -1, true), 1e-6);
  return mul(h, x, unary(h, Function::kRsqrt, sum));
}

SymTensor zeros(Host& h, const Shape& shape) {
  SymTensor y = empty_result(h, shape, DType::kFloat32);
  h.launch(OpKind::kFill, {}, {y}, {0.0});
  return y;
}

/// exp of the differences of cumulated decay within a chunk, zero above the diagonal.
SymTensor pairwise_decay(Host& h, const SymTensor& cumulated, const Chunks& c) {
  SymTensor above = empty_result(h, {c.size, c.size}, DType::kBool);
  h.launch(OpKind::kCompare,
           {raw_view(h, positions(h, c.size), {1, c.size}),
            raw_view(h, positions(h, c.size), {c.size, 1})},
           {above}, {2.0});
  SymTensor rows = view(h, cumulated, c.of(1));
  SymTensor columns = view(h, cumulated, {c.batch, c.heads, c.count, 1, c.size});
  return exponential(h, masked_fill(h, sub(h, rows, columns), above, -INFINITY));
}

struct Operands {
  SymTensor query, key, attention, values, cumulated_keys, decay;  ///< By chunk, dimension 2.
};

/// The recurrence over chunks: state [b, h, dk, dv].
SymTensor run_chunks(Host& h, const Operands& o, const Chunks& c) {
  const std::int64_t dk = o.key->shape[-1], dv = o.values->shape[-1];
  SymTensor state = zeros(h, {c.batch, c.heads, dk, dv}), result = zeros(h, o.values->shape);
  for (std::int64_t i = 0; i < c.count; ++i) {
    const auto chunk = [&](const SymTensor& x) { return select(h, x, 2, i); };
    SymTensor fresh = sub(h, chunk(o.values), matmul(h, chunk(o.cumulated_keys), state));
    SymTensor across = matmul(h, chunk(o.query), state);
    result = assign(h, result, 2, i, add(h, across, matmul(h, chunk(o.attention), fresh)));
    across.reset();
    SymTensor decayed = mul(h, state, chunk(o.decay));
    state = add(h, decayed, matmul(h, transpose(h, chunk(o.key), -1, -2), fresh));
  }
  return result;
}

Operands prepare(Host& h, std::array<SymTensor, 5> in, const Chunks& c) {
  auto& [query, key, value, decay, beta] = in;
  SymTensor weight = last_as_one(h, beta);
  SymTensor v_beta = mul(h, value, weight), k_beta = mul(h, key, weight);
  weight.reset();
  const auto chunked = [&](SymTensor& x) { x = view(h, x, c.of(x->shape[-1])); };
  for (SymTensor* x : {&query, &key, &k_beta, &v_beta}) chunked(*x);
  SymTensor cumulated = cumsum(h, view(h, decay, {c.batch, c.heads, c.count, c.size}), 3);
  Operands o;
  SymTensor pairs = pairwise_decay(h, cumulated, c);
  SymTensor system = mul(h, matmul(h, k_beta, transpose(h, key, -1, -2)), pairs);
  o.attention = mul(h, matmul(h, query, transpose(h, key, -1, -2)), pairs);
  pairs.reset();
  SymTensor decayed = mul(h, k_beta, last_as_one(h, exponential(h, cumulated)));
  o.values = solve(h, system, v_beta);
  o.cumulated_keys = solve(h, system, decayed);
  o.query = mul(h, query, last_as_one(h, exponential(h, cumulated)));
  SymTensor left = sub(h, slice(h, cumulated, -1, c.size - 1, c.size), cumulated);
  o.key = mul(h, key, last_as_one(h, exponential(h, left)));
  left.reset();
  SymTensor whole = exponential(h, select(h, cumulated, -1, c.size - 1));
  o.decay = view(h, whole, {c.batch, c.heads, c.count, 1, 1});
  return o;
}

/// q, k [b, s, h, dk], v [b, s, h', dv], decay and beta [b, s, h'].
SymTensor gated_delta_rule(Host& h, const Statement& s, std::span<SymTensor> in) {
  const std::int64_t size = s.ints[0], length = in[0]->shape[1], heads = in[2]->shape[2],
                     dv = in[2]->shape[3];
  const std::int64_t padding = (size - length % size) % size, times = heads / in[0]->shape[2];
  const DType dtype = in[0]->dtype;
  std::array<SymTensor, 5> x{in[0], in[1], in[2], in[3], in[4]};
  if (times > 1) {
    for (std::size_t i = 0; i < 2; ++i) x[i] = repeat_heads(h, x[i], times);
  }
  for (SymTensor& t : x) t = cast(h, transpose(h, t, 1, 2), DType::kFloat32, true);
  for (std::size_t i = 0; i < 2; ++i) x[i] = l2norm(h, x[i]);
  x[0] =
      unary(h, Function::kMulScalar, x[0], 1.0 / std::sqrt(static_cast<double>(in[0]->shape[3])));
  for (SymTensor& t : x) t = pad_end(h, t, 2, padding);
  const Chunks chunks{size, in[0]->shape[0], heads, (length + padding) / size};
  SymTensor result;
  {
    const Operands operands = prepare(h, std::move(x), chunks);
    result = run_chunks(h, operands, chunks);
  }
  SymTensor flat = view(h, result, {chunks.batch, heads, length + padding, dv});
  return cast(h, transpose(h, slice(h, flat, 2, 0, length), 1, 2), dtype, true);
}

}  // namespace

bool run_linear_attention(Host& h, const Statement& s, std::span<SymTensor> in,
                          std::span<SymTensor> out) {
  if (s.function != Function::kGatedDeltaRule) return false;
  out[0] = gated_delta_rule(h, s, in);
  return true;
}

}  // namespace foreshard
