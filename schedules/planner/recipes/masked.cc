// Masks as values: filling, scattering image rows into a sequence, relative positions (T5),
// masks over image tiles (Llama 3.2 Vision).

#include <array>

#include "schedules/planner/recipes/masks.h"
#include "schedules/planner/recipes/special.h"

namespace foreshard {
namespace {

/// Saved: mask. The gradient is zero where the mask is true.
void masked_fill_backward(BackwardContext& ctx) {
  SymTensor mask = ctx.saved(0);
  SymTensor y = empty_result(ctx.host, ctx.grad()->shape, ctx.grad()->dtype);
  ctx.host.launch(OpKind::kWhere, {mask, SymTensor(), ctx.grad()}, {y}, {0.0});
  ctx.set(0, std::move(y));
}

// ----------------------------------------------------------------------------------------------
// image rows

/// Saved: mask [b, s, 1]. Edges: x, source; node.shape: the source's.
void masked_scatter_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  SymTensor mask = ctx.saved(0);
  if (ctx.needs(1)) {
    SymTensor indices = empty_temporary(h, ctx.node.shape.numel() * 3 * size_of(DType::kInt64));
    SymTensor rows = empty_result(h, ctx.node.shape, ctx.grad()->dtype);
    h.launch(OpKind::kMaskedSelect, {ctx.grad(), mask}, {rows});
    ctx.set(1, std::move(rows));
  }
  if (ctx.needs(0)) {
    SymTensor rest = empty_result(h, ctx.grad()->shape, ctx.grad()->dtype);
    h.launch(OpKind::kWhere, {mask, SymTensor(), ctx.grad()}, {rest}, {0.0});
    ctx.set(0, std::move(rest));
  }
}

/// x.masked_scatter((ids == token).unsqueeze(-1), source). The kernel needs a dense mask and its
/// prefix sums (aten/src/ATen/native/cuda/IndexKernel.cpp). The library counts the image tokens
/// first, for which the host waits.
SymTensor masked_scatter(Host& h, const Statement& s, const SymTensor& x, const SymTensor& ids,
                         const SymTensor& source) {
  SymTensor mask;
  {
    const NoGradGuard no_grad(h);
    SymTensor flat = empty_result(h, ids->shape, DType::kBool);
    h.launch(OpKind::kCompare, {ids}, {flat}, {4.0, static_cast<double>(s.ints[0])});
    mask = raw_view(h, flat, {ids->shape[0], ids->shape[1], 1});
    SymTensor count = empty_result(h, Shape(), DType::kInt64);
    h.launch(OpKind::kSum, {flat}, {count});
    h.read_back(count);
  }
  Record r(h, masked_scatter_backward, {&x, &source});
  if (r) {
    r->shape = source->shape;
    r.save(mask);
  }
  SymTensor y = empty_result(h, x->shape, x->dtype);
  {
    SymTensor dense = empty_temporary(h, x->numel),
              sums = empty_temporary(h, x->numel * size_of(DType::kInt64));
    LaunchRequest q;
    const std::array<SymTensor, 3> operands{x, mask, source};
    q.op = OpKind::kMaskedScatter;
    q.inputs = operands;
    q.outputs = {&y, 1};
    q.kernels = 3;
    h.launch(q);
  }
  r.attach(y);
  return y;
}

// ----------------------------------------------------------------------------------------------
// relative positions

/// T5Attention._relative_position_bucket over all distances: about fifteen small kernels on
/// [s, s] integers.
SymTensor relative_buckets(Host& h, const Statement& s, const SymTensor& x) {
  const std::int64_t n = x->shape[1];
  const NoGradGuard no_grad(h);
  SymTensor distance = empty_result(h, {n, n}, DType::kInt64);
  h.launch(OpKind::kSub,
           {raw_view(h, positions(h, n), {1, n}), raw_view(h, positions(h, n), {n, 1})},
           {distance});
  SymTensor magnitude = empty_temporary(h, distance->bytes()),
            near = empty_temporary(h, distance->numel);
  SymTensor far = empty_temporary(h, distance->bytes());
  SymTensor bucket = empty_result(h, {n, n}, DType::kInt64);
  LaunchRequest q;
  const std::array<double, 3> attributes{static_cast<double>(s.ints[0]),
                                         static_cast<double>(s.ints[1]),
                                         static_cast<double>(s.ints[2])};
  q.op = OpKind::kRelativeBucket;
  q.inputs = {&distance, 1};
  q.outputs = {&bucket, 1};
  q.attributes = attributes;
  q.kernels = 13;
  h.launch(q);
  return bucket;
}

/// Saved: condition.
void where_backward(BackwardContext& ctx) {
  SymTensor condition = ctx.saved(0);
  SymTensor y = empty_result(ctx.host, ctx.grad()->shape, ctx.grad()->dtype);
  ctx.host.launch(OpKind::kWhere, {condition, ctx.grad()}, {y}, {0.0});
  ctx.set(0, std::move(y));
}

/// create_position_bias_mask of the library's SDPA: the bias, lowest where a causal mask hides,
/// contiguous.
SymTensor position_mask(Host& h, const Statement& s, const SymTensor& bias) {
  if (s.ints[0] == 0) return contiguous(h, bias);
  const std::int64_t rows = bias->shape[2], columns = bias->shape[3];
  SymTensor seen = empty_result(h, {1, 1, rows, columns}, DType::kBool);
  h.launch(OpKind::kCompare,
           {raw_view(h, positions(h, rows), {rows, 1}),
            raw_view(h, positions(h, columns), {1, columns})},
           {seen}, {3.0});
  SymTensor hidden;
  {
    Record r(h, where_backward, {&bias});
    if (r) r.save(seen);
    hidden = empty_result(h, bias->shape, bias->dtype);
    hidden->stride = bias->stride;  // Dense in the order of the bias.
    h.launch(OpKind::kWhere, {seen, bias}, {hidden}, {lowest_of(bias->dtype)});
    r.attach(hidden);
  }
  return contiguous(h, hidden);
}

SymTensor zero_bias(Host& h, const Statement& s, const SymTensor& x, const SymTensor& y) {
  SymTensor zeros = empty_result(h, {1, s.ints[0], x->shape[1], y->shape[1]}, x->dtype);
  h.launch(OpKind::kFill, {}, {zeros}, {0.0});
  return zeros;
}

// ----------------------------------------------------------------------------------------------
// tiles of images

/// _prepare_aspect_ratio_attention_mask: lowest between places that are padding or of tiles that
/// are not there.
SymTensor tile_mask(Host& h, const Statement& s, const SymTensor& tiles, const SymTensor& x) {
  const std::int64_t b = tiles->shape[0], t = tiles->shape[1], patches = s.ints[0],
                     length = s.ints[1];
  SymTensor there = empty_result(h, {b, t, 1, 1}, x->dtype);
  h.launch(OpKind::kCopy, {raw_view(h, tiles, {b, t, 1, 1})}, {there});
  SymTensor mask = empty_result(h, {b, t, length, 1}, x->dtype);
  h.launch(OpKind::kCopy, {raw_view(h, there, {b, t, length, 1}, {t, 1, 0, 0}, 0)}, {mask});
  if (length > patches) {
    h.launch(OpKind::kFill, {},
             {raw_view(h, mask, {b, t, length - patches, 1}, mask->stride, patches)}, {0.0});
  }
  SymTensor away = empty_result(h, {b, t * length, 1}, x->dtype);
  h.launch(OpKind::kCompare, {raw_view(h, mask, {b, t * length, 1})}, {away},
           {4.0, 0.0});  // 1 - mask
  SymTensor both = matmul(h, away, transpose(h, away, 1, 2));
  SymTensor result = unary(h, Function::kMulScalar, both, lowest_of(x->dtype));
  return raw_view(h, result, {b, 1, t * length, t * length});
}

/// _prepare_cross_attention_mask: which patches each token sees; rows that see none are given zeros
/// and taken out later.
void cross_mask(Host& h, const Statement& s, std::span<SymTensor> in, std::span<SymTensor> out) {
  const SymTensor &tiles = in[0], &x = in[1];
  const std::int64_t b = tiles->shape[0], n = tiles->shape[1],
                     t = tiles->shape[2] * tiles->shape[3], patches = s.ints[0];
  SymTensor wide = empty_result(h, {b, n, t, patches}, tiles->dtype);
  h.launch(OpKind::kCopy, {raw_view(h, tiles, {b, n, t, patches}, {n * t, t, 1, 0}, tiles->offset)},
           {wide});
  const Shape shape{b, 1, n, t * patches};
  const double lowest = lowest_of(x->dtype);
  SymTensor away = empty_result(h, shape, DType::kFloat32);
  h.launch(OpKind::kCompare, {raw_view(h, wide, shape)}, {away}, {4.0, 0.0});  // 1.0 - mask
  wide.reset();
  SymTensor narrow = cast(h, away, x->dtype);
  away.reset();
  SymTensor hidden = cast(h, narrow, DType::kBool);
  out[0] = empty_result(h, shape, x->dtype);
  h.launch(OpKind::kWhere, {hidden, SymTensor(), narrow}, {out[0]}, {lowest});
  hidden.reset();
  narrow.reset();
  SymTensor seen = empty_result(h, shape, DType::kBool),
            any = empty_result(h, {b, 1, n}, DType::kBool);
  h.launch(OpKind::kCompare, {out[0]}, {seen}, {5.0, lowest});
  h.launch(OpKind::kSum, {seen}, {any}, {-1.0});
  seen.reset();
  out[1] = raw_view(h, cast(h, any, x->dtype), {b, 1, n, 1});
  h.launch(OpKind::kMulInPlace, {out[0], out[1]}, {out[0]});
}

/// x *= uniform noise.
SymTensor jitter(Host& h, const Statement& s, const SymTensor& x) {
  SymTensor noise = empty_result(h, x->shape, x->dtype);
  h.launch(OpKind::kUniform, {}, {noise},
           {1 - s.floats[0], 1 + s.floats[0], static_cast<double>(h.impl().draws++)});
  return mul_in_place(h, x, noise);
}

}  // namespace

SymTensor masked_fill(Host& h, const SymTensor& x, const SymTensor& mask, double value) {
  Record r(h, masked_fill_backward, {&x});
  if (r) r.save(mask);
  SymTensor y = empty_result(h, x->shape, x->dtype);
  h.launch(OpKind::kWhere, {mask, SymTensor(), x}, {y}, {value});
  r.attach(y);
  return y;
}

bool run_masked(Host& h, const Statement& s, std::span<SymTensor> in, std::span<SymTensor> out) {
  switch (s.function) {
    case Function::kMaskedFill:
      out[0] = masked_fill(h, in[0], in[1], s.floats[0]);
      return true;
    case Function::kMaskedScatter:
      out[0] = masked_scatter(h, s, in[0], in[1], in[2]);
      return true;
    case Function::kRelativeBuckets:
      out[0] = relative_buckets(h, s, in[0]);
      return true;
    case Function::kPositionMask:
      out[0] = position_mask(h, s, in[0]);
      return true;
    case Function::kZeroBias:
      out[0] = zero_bias(h, s, in[0], in[1]);
      return true;
    case Function::kTileMask:
      out[0] = tile_mask(h, s, in[0], in[1]);
      return true;
    case Function::kCrossMask:
      cross_mask(h, s, in, out);
      return true;
    case Function::kJitter:
      out[0] = jitter(h, s, in[0]);
      return true;
    default:
      return false;
  }
}

}  // namespace foreshard
