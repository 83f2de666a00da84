// Embedding and its dense gradient.

#include <bit>

#include "schedules/planner/recipes/recipe.h"

namespace foreshard {
namespace {

/// embedding_dense_backward sorts the indices above this many (aten/src/ATen/native/cuda/Embedding.cu).
constexpr std::int64_t kMostUnsorted = 3072;

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

/// Temporary storage of CUB's onesweep radix sort of n pairs of int64 on Hopper: both arrays again, 256 bins of 8 bytes a
/// pass of 8 bits, 1 KiB of look-back a tile, counters, alignment. Agrees with the recorded requests (n 4,096 to 16,384).
std::int64_t radix_sort_bytes(std::int64_t n, std::int64_t keys) {
  const auto bits = static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(keys > 1 ? keys - 1 : 1)));
  const std::int64_t passes = (bits + 7) / 8;
  return 2 * round_up(8 * n, 256) + passes * 2048 + (n + 4095) / 4096 * 1024 + 511;
}

/// Gradient rows by sorting: segments of equal indices, each split in parts of ten rows (embedding_backward_cuda_kernel).
SymTensor sorted_embedding_gradient(Host& h, const SymTensor& g, const SymTensor& indices, std::int64_t rows, std::int64_t width) {
  const std::int64_t n = indices->numel;
  SymTensor sorted = empty_temporary(h, 8 * n), original = empty_temporary(h, 8 * n);
  {
    SymTensor range = empty_temporary(h, 8 * n);
    SymTensor scratch = empty_temporary(h, radix_sort_bytes(n, rows));
    scratch.reset();
  }
  SymTensor gw = empty_result(h, {rows, width}, g->dtype);
  h.launch(OpKind::kFill, {}, {gw}, {0.0});
  SymTensor offsets = empty_temporary(h, 8 * n), segments = empty_temporary(h, 8);
  {
    SymTensor dummy = empty_temporary(h, 8 * n);
    SymTensor scratch = empty_temporary(h, 1279);
    scratch.reset();
  }
  SymTensor partial_sizes = empty_temporary(h, 8 * n), partial_offsets = empty_temporary(h, 8 * n);
  empty_temporary(h, n <= 8192 ? 1279 : 1535);
  SymTensor partial_count = empty_temporary(h, 8);
  const std::int64_t parts = n / 10 + std::min(n, rows);
  SymTensor part_offset = empty_temporary(h, 8 * parts);
  SymTensor part_rows = empty_temporary(h, parts * width * 4);
  LaunchRequest q;
  const std::array<SymTensor, 2> in{g, indices};
  q.op = OpKind::kEmbeddingBackward;
  q.inputs = in;
  q.outputs = {&gw, 1};
  q.kernels = 9;
  h.launch(q);
  part_rows.reset();
  part_offset.reset();
  partial_count.reset();
  partial_offsets.reset();
  partial_sizes.reset();
  segments.reset();
  offsets.reset();
  original.reset();
  sorted.reset();
  return gw;
}

void embedding_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  SymTensor indices = ctx.saved(0);
  const std::int64_t rows = ctx.node.ints[0], width = ctx.node.ints[1];
  SymTensor g = contiguous(h, ctx.grad());
  if (indices->numel > kMostUnsorted) {
    ctx.set(0, sorted_embedding_gradient(h, g, indices, rows, width));
    return;
  }
  SymTensor gw = empty_result(h, {rows, width}, g->dtype);
  h.launch(OpKind::kFill, {}, {gw}, {0.0});
  h.launch(OpKind::kEmbeddingBackward, {g, indices}, {gw});
  ctx.set(0, std::move(gw));
}

}  // namespace

SymTensor embedding(Host& h, const SymTensor& indices, const SymTensor& weight) {
  Record r(h, embedding_backward, {&weight});
  if (r) {
    r->ints = {weight->shape[0], weight->shape[1]};
    r.save(indices);
  }
  Shape s = indices->shape;
  s.dim[s.rank++] = weight->shape[1];
  SymTensor y = empty_result(h, s, weight->dtype);
  LaunchRequest q;
  const std::array<SymTensor, 2> in{weight, indices};
  q.op = OpKind::kEmbedding;
  q.inputs = in;
  q.outputs = {&y, 1};
  q.read_bytes = y->bytes() + indices->bytes();
  h.launch(q);
  r.attach(y);
  return y;
}

}  // namespace foreshard
