// Embedding and its dense gradient.

#include <algorithm>

#include "schedules/planner/recipes/recipe.h"
#include "schedules/planner/recipes/scratch.h"

namespace foreshard {
namespace {

/// embedding_dense_backward sorts the indices above this many
/// (aten/src/ATen/native/cuda/Embedding.cu).
constexpr std::int64_t kMostUnsorted = 3072;

/// Gradient rows by sorting: segments of equal indices, each split in parts of ten rows
/// (embedding_backward_cuda_kernel).
SymTensor sorted_embedding_gradient(Host& h, const SymTensor& g, const SymTensor& indices,
                                    std::int64_t rows, std::int64_t width) {
  const std::int64_t n = indices->numel;
  SymTensor sorted = empty_temporary(h, 8 * n), original = empty_temporary(h, 8 * n);
  {
    SymTensor range = empty_temporary(h, 8 * n);
    SymTensor scratch = empty_temporary(h, radix_sort_scratch_bytes(n, rows));
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
  const std::int64_t most_segments = std::min(n, rows);
  SymTensor partial_sizes = empty_temporary(h, 8 * most_segments),
            partial_offsets = empty_temporary(h, 8 * most_segments);
  empty_temporary(h, scan_scratch_bytes(most_segments, 8));
  SymTensor partial_count = empty_temporary(h, 8);
  const std::int64_t parts = n / 10 + most_segments;
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
  s.append(weight->shape[1]);
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
