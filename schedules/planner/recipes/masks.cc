// Source: transformers 5.24 masking_utils.py (find_packed_sequence_indices, sdpa_mask, eager_mask
// and the mask functions) and a model's rotary embedding. Every temporary lives as long as the
// Python local that holds it.

#include "schedules/planner/recipes/masks.h"

#include <limits>

#include "schedules/planner/recipes/scratch.h"

namespace foreshard {
namespace {

constexpr double kLessEqual = 1, kGreater = 2, kEqual = 4,
                 kNotEqual = 5;  // Relations of OpKind::kCompare.

SymTensor arange(Host& h, std::int64_t n) {
  SymTensor t = empty_result(h, {n}, DType::kInt64);
  h.launch(OpKind::kArange, {}, {t});
  return t;
}

SymTensor add_number(Host& h, const SymTensor& x, double value) {
  SymTensor y = empty_result(h, x->shape, x->dtype);
  h.launch(OpKind::kAddScalar, {x}, {y}, {value});
  return y;
}

SymTensor compare(Host& h, const SymTensor& a, const SymTensor& b, const Shape& shape,
                  double relation) {
  SymTensor y = empty_result(h, shape, DType::kBool);
  h.launch(OpKind::kCompare, {a, b}, {y}, {relation});
  return y;
}

SymTensor compare_number(Host& h, const SymTensor& a, double relation, double number) {
  SymTensor y = empty_result(h, a->shape, DType::kBool);
  h.launch(OpKind::kCompare, {a}, {y}, {relation, number});
  return y;
}

/// a & b of booleans.
SymTensor both(Host& h, const SymTensor& a, const SymTensor& b, const Shape& shape) {
  SymTensor y = empty_result(h, shape, DType::kBool);
  h.launch(OpKind::kMul, {a, b}, {y});
  return y;
}

/// x.cumsum(-1) of booleans [b, n]: converted first; one row goes through CUB's scan.
SymTensor count_along(Host& h, const SymTensor& x) {
  SymTensor y = empty_result(h, x->shape, DType::kInt64);
  SymTensor wide = empty_result(h, x->shape, DType::kInt64);
  h.launch(OpKind::kCopy, {x}, {wide});
  if (x->shape[0] == 1) empty_temporary(h, scan_scratch_bytes(x->shape[1], 8));
  h.launch(OpKind::kCumsum, {wide}, {y}, {-1.0});
  return y;
}

/// find_packed_sequence_indices: for each token the number of its document, [b, n]; null if rows
/// hold one document each.
SymTensor packed_sequences(Host& h, const SymTensor& positions) {
  const std::int64_t b = positions->shape[0], n = positions->shape[1];
  SymTensor first =
      add_number(h, raw_view(h, positions, {b, 1}, positions->stride, positions->offset), -1.0);
  SymTensor difference;
  {
    SymTensor joined = empty_result(h, {b, n + 1}, DType::kInt64);
    h.launch(OpKind::kCat, {first, positions}, {joined}, {1.0});
    difference = empty_result(h, {b, n}, DType::kInt64);
    h.launch(OpKind::kSub,
             {raw_view(h, joined, {b, n}, joined->stride, 1),
              raw_view(h, joined, {b, n}, joined->stride, 0)},
             {difference});
  }
  SymTensor sequence = [&] {
    SymTensor breaks = compare_number(h, difference, kNotEqual, 1.0);
    return count_along(h, breaks);
  }();
  {
    SymTensor last = compare_number(h, raw_view(h, sequence, {b}, {n}, n - 1), kEqual, 0.0);
    SymTensor all = empty_result(h, Shape(), DType::kBool);
    h.launch(OpKind::kSum, {last}, {all});
    last.reset();
    h.read_back(all);  // `if ... .all(): return None`
  }
  first.reset();
  difference.reset();
  return h.config().packed_sequences ? sequence : SymTensor();
}

/// Broadcastable indices: [b, 1, 1, 1], [1, 1, n, 1], [1, 1, 1, n].
struct Indices {
  SymTensor batch, q, kv;
};

/// table[batch, index] for table [b, n]: the index tensors are made alike first where their strides
/// differ.
SymTensor look_up(Host& h, const SymTensor& table, const SymTensor& batch, const SymTensor& index) {
  Shape s = index->shape;
  s[0] = batch->shape[0];
  SymTensor dense_batch = empty_result(h, s, DType::kInt64);
  h.launch(OpKind::kCopy, {batch}, {dense_batch});
  SymTensor dense_index;
  if (s[0] > 1) {
    dense_index = empty_result(h, s, DType::kInt64);
    h.launch(OpKind::kCopy, {index}, {dense_index});
  }
  SymTensor y = empty_result(h, s, table->dtype);
  std::array<std::int64_t, kMaxRank> stride{};
  stride[0] = table->stride[0];
  stride[s[2] > 1 ? 2 : 3] = table->stride[1];
  h.launch(OpKind::kCopy, {raw_view(h, table, s, stride, table->offset)}, {y});
  dense_index.reset();
  dense_batch.reset();
  return y;
}

/// and_masks: ones, then `result & mask` for each.
template <typename... Masks>
SymTensor and_masks(Host& h, const Shape& whole, Masks... masks) {
  SymTensor result = empty_result(h, Shape(), DType::kBool);
  h.launch(OpKind::kFill, {}, {result}, {1.0});
  const auto take = [&](const auto& mask) {
    SymTensor m = mask();
    SymTensor next = both(h, result, m, whole);
    m.reset();
    result = std::move(next);
  };
  (take(masks), ...);
  return result;
}

/// The causal mask, or the sliding window's and the causal one.
SymTensor window_mask(Host& h, const MaskRequest& request, const SymTensor& q, const SymTensor& kv,
                      const Shape& whole) {
  const auto causal = [&] { return compare(h, kv, q, whole, kLessEqual); };
  if (!request.sliding) return causal();
  return and_masks(
      h, whole,
      [&] {
        SymTensor lowest = add_number(h, q, -static_cast<double>(request.window));
        return compare(h, kv, lowest, whole, kGreater);
      },
      causal);
}

/// The window's mask on the documents' own positions, and equal documents.
SymTensor packed_mask(Host& h, const MaskRequest& request, const SymTensor& positions,
                      const SymTensor& sequence, const Indices& i) {
  const std::int64_t b = sequence->shape[0], n = sequence->shape[1];
  const Shape whole{b, 1, n, n};
  return and_masks(
      h, whole,
      [&] {
        SymTensor q = look_up(h, positions, i.batch, i.q),
                  kv = look_up(h, positions, i.batch, i.kv);
        SymTensor mask = window_mask(h, request, q, kv, whole);
        q.reset();
        kv.reset();
        return mask;
      },
      [&] {
        SymTensor q = look_up(h, sequence, i.batch, i.q), kv = look_up(h, sequence, i.batch, i.kv);
        SymTensor mask = compare(h, q, kv, whole, kEqual);
        q.reset();
        kv.reset();
        return mask;
      });
}

/// sdpa_mask, before it is expanded over the batch. `sequence` null: rows are not packed.
SymTensor boolean_mask(Host& h, const MaskRequest& request, std::int64_t b, std::int64_t n,
                       const SymTensor& positions, const SymTensor& sequence) {
  SymTensor batch = arange(h, b), head = arange(h, 1);
  const auto shifted = [&] {
    SymTensor plain = arange(h, n);
    return add_number(h, plain, 0.0);
  };
  SymTensor q_range = shifted(), kv_range = shifted();
  SymTensor mask;
  {
    const SymTensor q = raw_view(h, q_range, {1, 1, n, 1}),
                    kv = raw_view(h, kv_range, {1, 1, 1, n});
    const SymTensor b_index = raw_view(h, batch, {b, 1, 1, 1});
    mask = sequence ? packed_mask(h, request, positions, sequence, {b_index, q, kv})
                    : window_mask(h, request, q, kv, {1, 1, n, n});
  }
  batch.reset();  // The frame's locals, in their order.
  head.reset();
  q_range.reset();
  kv_range.reset();
  return mask;
}

SymTensor over_batch(Host& h, const SymTensor& mask, std::int64_t b) {
  if (mask->shape[0] == b) return mask;
  Shape s = mask->shape;
  s[0] = b;
  std::array<std::int64_t, kMaxRank> stride = mask->stride;
  stride[0] = 0;
  return raw_view(h, mask, s, stride, mask->offset);
}

}  // namespace

double lowest_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return -65504;
    case DType::kBFloat16:
      return -0x1.fep127;
    default:
      return static_cast<double>(std::numeric_limits<float>::lowest());
  }
}

SymTensor additive(Host& h, const SymTensor& mask, DType dtype, WhereScalars scalars) {
  const bool filled = scalars == WhereScalars::kFilled;
  SymTensor zero = empty_result(h, Shape(), dtype);
  if (filled) h.launch(OpKind::kFill, {}, {zero}, {0.0});
  SymTensor lowest = empty_result(h, Shape(), dtype);
  if (filled) h.launch(OpKind::kFill, {}, {lowest}, {lowest_of(dtype)});
  SymTensor y = empty_result(h, mask->shape, dtype);
  if (filled) {
    h.launch(OpKind::kWhere, {mask, zero, lowest}, {y});
  } else {
    h.launch(OpKind::kWhere, {mask}, {y}, {0.0, lowest_of(dtype)});
  }
  lowest.reset();
  zero.reset();
  return y;
}

SymTensor position_ids(Host& h, std::int64_t n) {
  SymTensor plain = arange(h, n);
  return raw_view(h, add_number(h, plain, 0.0), {1, n});
}

SymTensor decoder_mask(Host& h, const MaskRequest& request, const SymTensor& x,
                       const SymTensor& positions) {
  const NoGradGuard no_grad(h);
  const std::int64_t b = x->shape[0], n = x->shape[1];
  SymTensor rows, sequence;
  if (positions) {
    std::array<std::int64_t, kMaxRank> stride = positions->stride;
    if (positions->shape[0] != b) stride[0] = 0;
    rows = raw_view(h, positions, {b, n}, stride, positions->offset);
    sequence = packed_sequences(h, rows);
  }
  // flash_attention_mask of the library makes none.
  const bool by_kernel =
      !request.additive && h.config().attention == AttentionKind::kFlashLibrary;
  const bool skipped = by_kernel || (!request.additive && !request.always && !sequence &&
                                     !(request.sliding && n >= request.window));
  if (skipped) return {};
  SymTensor mask = over_batch(h, boolean_mask(h, request, b, n, rows, sequence), b);
  sequence.reset();
  return request.additive ? additive(h, mask, x->dtype, WhereScalars::kFilled) : mask;
}

namespace {

/// _compute_longrope_parameters: 1 / (factors * base ** (arange(0, dim, 2).float() / dim)).
SymTensor long_frequencies(Host& h, std::int64_t n) {
  const auto floats = [&] { return h.empty({n}, DType::kFloat32, BufferCategory::kPersistent); };
  SymTensor factors = floats();
  SymTensor exponents = [&] {
    SymTensor wide = [&] {
      SymTensor steps = arange(h, n);
      return floats();
    }();
    return floats();
  }();
  SymTensor scaled = [&] {
    SymTensor powers = floats();
    empty_temporary(h, 8);  // The base, a double.
    return floats();
  }();
  SymTensor inverse = floats();
  SymTensor result = floats();
  h.launch(OpKind::kFill, {}, {result}, {1.0});
  inverse.reset();
  scaled.reset();
  factors.reset();
  exponents.reset();
  return result;
}

}  // namespace

void update_long_frequencies(Host& h, SymTensor& kept, const SymTensor& frequencies,
                             const SymTensor& positions) {
  const NoGradGuard no_grad(h);
  SymTensor length = [&] {
    SymTensor largest = empty_result(h, Shape(), DType::kInt64);
    h.launch(OpKind::kAmax, {positions}, {largest});
    return add_number(h, largest, 1.0);
  }();
  if (!kept) kept = long_frequencies(h, frequencies->numel);
  SymTensor chosen;
  {
    SymTensor is_long = compare_number(h, length, kGreater, 1e9);
    chosen = empty_result(h, frequencies->shape, DType::kFloat32);
    h.launch(OpKind::kWhere, {is_long, kept, frequencies}, {chosen});
  }
  h.launch(OpKind::kCopy, {chosen}, {frequencies});
  length.reset();
  chosen.reset();
}

void rotary_table(Host& h, const SymTensor& inverse_frequencies, std::int64_t width,
                  const SymTensor& x, const SymTensor& positions, std::span<SymTensor> out) {
  const NoGradGuard no_grad(h);
  const std::int64_t n = positions->shape[1];
  SymTensor freqs = [&] {
    SymTensor wide = cast(h, raw_view(h, positions, {1, n, 1}), DType::kFloat32);
    // A model converted as a whole has them in 16 bits.
    SymTensor inverse = cast(h, inverse_frequencies, DType::kFloat32);
    SymTensor y = mul(h, wide, raw_view(h, inverse, {1, 1, width / 2}));
    wide.reset();
    inverse.reset();
    return y;
  }();
  SymTensor emb = [&] {
    const std::array<SymTensor, 2> twice{freqs, freqs};
    return cat(h, twice, -1);
  }();
  const auto table = [&](OpKind op) {
    SymTensor raw = empty_result(h, emb->shape, DType::kFloat32);
    h.launch(op, {emb}, {raw});
    return unary(h, Function::kMulScalar, raw, 1.0);
  };
  SymTensor cos = table(OpKind::kCos), sin = table(OpKind::kSin);
  out[0] = cast(h, cos, x->dtype);
  out[1] = cast(h, sin, x->dtype);
  freqs.reset();  // The frame's locals, in their order.
  emb.reset();
  cos.reset();
  sin.reset();
}

}  // namespace foreshard
