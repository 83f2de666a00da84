// Sums on the device, with the scratch memory of PyTorch's reduction kernel
// (aten/src/ATen/native/cuda/Reduce.cuh, setReduceConfig) on a Hopper GPU: 132 multiprocessors,
// 2,048 threads each.

#include <algorithm>
#include <bit>

#include "core/integers.h"
#include "schedules/planner/recipes/recipe.h"
#include "schedules/planner/recipes/scratch.h"

namespace foreshard {
namespace {

constexpr std::int64_t kThreadsPerMultiprocessor = 2048;
constexpr std::int64_t kMaxThreads = 512, kWarp = 32, kMinValues = 16, kMaxValues = 256;

std::int64_t last_pow2(std::int64_t n) {
  return static_cast<std::int64_t>(
      std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(n, 1))));
}

}  // namespace

ReductionScratch scratch_of_row_reduction(std::int64_t rows, std::int64_t columns,
                                          std::int64_t accumulator_bytes) {
  std::int64_t vec = 4;
  while (vec > 1 && columns % vec != 0) vec /= 2;
  const std::int64_t dim0 = columns / vec, dim1 = rows;
  const std::int64_t threads = kMaxThreads / vec;
  const std::int64_t w2 = dim0 < threads ? last_pow2(dim0) : threads,
                     h2 = dim1 < threads ? last_pow2(dim1) : threads;
  std::int64_t width = std::min(w2, kWarp);
  const std::int64_t height = std::min(h2, threads / width);
  width = std::min(w2, threads / height);
  std::int64_t values = rows;
  std::int64_t step_output = width;
  bool split = false;
  if (values >= std::min<std::int64_t>(height * 16, kMaxValues)) {
    values = ceil_div(values, height);
    split = true;
  } else {
    step_output *= height;
  }
  const std::int64_t grid = ceil_div(columns / vec, step_output);
  const std::int64_t target = kMultiprocessors * (kThreadsPerMultiprocessor / (width * height));
  if (!split || values < kMaxValues || grid > target) return {};
  const std::int64_t ctas = std::max(std::min(ceil_div(target, grid), ceil_div(values, kMinValues)),
                                     ceil_div(values, kMaxValues));
  if (ctas <= 1) return {};
  return {accumulator_bytes * columns * ctas * width * vec, 4 * grid};
}

/// All lanes of a block reduce one output; beyond 256 values a lane the work is split over blocks.
std::int64_t blocks_of_vector_reduction(std::int64_t numel) {
  const std::int64_t width =
      numel > 128 ? std::min(last_pow2(numel / 4), kMaxThreads) : last_pow2(numel);
  const std::int64_t values = ceil_div(numel, width);
  if (values < kMaxValues) return 1;
  const std::int64_t target = kMultiprocessors * (kThreadsPerMultiprocessor / width);
  return std::max(std::min(target, ceil_div(values, kMinValues)), ceil_div(values, kMaxValues));
}

SymTensor sum_rows_scratch(Host& h, const SymTensor& x, const Shape& result) {
  SymTensor y = empty_result(h, result, x->dtype);
  const ReductionScratch s = scratch_of_row_reduction(x->shape[0], result.numel(), 4);
  if (s.buffer == 0) return y;
  SymTensor buffer = empty_temporary(h, s.buffer), semaphores = empty_temporary(h, s.semaphores);
  semaphores.reset();
  buffer.reset();
  return y;
}

SymTensor sum_rows(Host& h, const SymTensor& x, std::int64_t rows, const Shape& result) {
  SymTensor y = empty_result(h, result, x->dtype);
  const ReductionScratch s = scratch_of_row_reduction(rows, result.numel(), 4);
  SymTensor semaphores, buffer;  // In this order they are dropped last first.
  if (s.buffer > 0) {
    buffer = empty_temporary(h, s.buffer);
    semaphores = empty_temporary(h, s.semaphores);
  }
  LaunchRequest q;
  q.op = OpKind::kSum;
  q.inputs = {&x, 1};
  q.outputs = {&y, 1};
  q.kernels = s.kernels();
  h.launch(q);
  semaphores.reset();
  buffer.reset();
  return y;
}

SymTensor sum_to(Host& h, const SymTensor& g, const Shape& shape) {
  if (g->shape == shape) return g;
  const std::int64_t n = shape.numel();
  if (n == g->numel) {  // Leading dimensions of size 1 are summed all the same.
    SymTensor y = empty_result(h, shape, g->dtype);
    h.launch(OpKind::kSum, {g}, {y});
    return y;
  }
  const bool leading = [&] {  // Only leading dimensions disappear or shrink to 1.
    int d = 1;
    while (d <= shape.rank && shape[-d] == g->shape[-d]) ++d;
    while (d <= shape.rank && shape[-d] == 1) ++d;
    return d > shape.rank;
  }();
  if (leading) return sum_rows(h, g, g->numel / n, shape);
  SymTensor y = empty_result(h, shape, g->dtype);
  h.launch(OpKind::kSum, {g}, {y});
  return y;
}

}  // namespace foreshard
