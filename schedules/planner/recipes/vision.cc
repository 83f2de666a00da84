// What Qwen2.5-VL's vision tower does: rotary positions along two axes, groups of patches in the
// order of windows, attention within windows.

#include <array>

#include "schedules/planner/recipes/experts.h"
#include "schedules/planner/recipes/special.h"

namespace foreshard {
namespace {

/// cos and sin [n, width] in fp32 of rows and columns: a half of the frequencies each, then twice
/// side by side.
void axial_rotary_table(Host& h, const Module& module, const Statement& s, std::span<SymTensor> in,
                        std::span<SymTensor> out) {
  const NoGradGuard no_grad(h);
  const std::int64_t n = in[0]->shape[0], quarter = s.ints[0] / 4;
  SymTensor places = empty_result(h, {n, 2}, DType::kInt64);
  h.launch(OpKind::kArange, {}, {raw_view(h, places, {2 * n})});
  SymTensor freqs;
  {
    SymTensor wide = cast(h, raw_view(h, places, {n, 2, 1}), DType::kFloat32);
    places.reset();
    freqs = mul(h, wide, h.buffer(module, 0));
  }
  const auto table = [&](OpKind op) {
    SymTensor raw = empty_result(h, freqs->shape, DType::kFloat32);
    h.launch(op, {freqs}, {raw});
    SymTensor scaled = unary(h, Function::kMulScalar, raw, 1.0);
    raw.reset();
    const std::array<SymTensor, 2> axes{
        raw_view(h, scaled, {n, quarter}, {2 * quarter, 1}, 0),
        raw_view(h, scaled, {n, quarter}, {2 * quarter, 1}, quarter)};
    SymTensor both = cat(h, axes, -1);
    const std::array<SymTensor, 2> twice{both, both};
    return cat(h, twice, -1);
  };
  out[0] = table(OpKind::kCos);
  out[1] = table(OpKind::kSin);
}

/// x viewed as groups of `unit` rows, indexed, viewed back. The index is the identity: which patch
/// stands where changes nothing that is modelled.
SymTensor window_order(Host& h, const Statement& s, const SymTensor& x) {
  const std::int64_t unit = s.ints[0], n = x->shape[0];
  SymTensor index = positions(h, n / unit);
  if (unit == 1) return index_rows(h, x, index);
  SymTensor groups = view(h, x, {n / unit, unit, x->numel / n});
  return view(h, index_rows(h, groups, index), {n, x->numel / n});
}

/// Attention within consecutive windows of the given lengths; the results are put together even if
/// there is one only.
SymTensor windowed_attention(Host& h, const Statement& s, std::span<SymTensor> in) {
  const std::int64_t n = in[0]->shape[2];
  std::vector<std::int64_t> lengths;
  for (std::int64_t done = 0; done < n; done += lengths.back())
    lengths.push_back(s.ints[lengths.size() % s.ints.size()]);
  std::array<std::vector<SymTensor>, 3> parts;
  for (std::size_t i = 0; i < 3; ++i) {
    parts[i].resize(lengths.size());
    split(h, in[i], 2, lengths, parts[i]);
  }
  std::vector<SymTensor> results;
  for (std::size_t w = 0; w < lengths.size(); ++w) {
    SymTensor o =
        attention(h, parts[0][w], parts[1][w], parts[2][w], {}, false, s.floats[0], s.floats[1]);
    results.push_back(contiguous(h, transpose(h, o, 1, 2)));
  }
  parts = {};
  return cat(h, results, 1);
}

}  // namespace

bool run_vision(Host& h, const Module& module, const Statement& s, std::span<SymTensor> in,
                std::span<SymTensor> out) {
  switch (s.function) {
    case Function::kAxialRotaryTable:
      axial_rotary_table(h, module, s, in, out);
      return true;
    case Function::kWindowOrder:
      out[0] = window_order(h, s, in[0]);
      return true;
    case Function::kWindowedAttention:
      out[0] = windowed_attention(h, s, in);
      return true;
    default:
      return false;
  }
}

}  // namespace foreshard
