#include "schedules/planner/recipes/float8.h"

namespace foreshard {
namespace {

/// Result of an element-wise kernel over `x`: dense, dimensions in x's order.
SymTensor like(Host& h, const SymTensor& x, DType dtype, const Float8Owner& owner) {
  SymTensor y = h.empty(x->shape, dtype, owner.category, owner.unit);
  if (!is_contiguous(*x)) y->stride = preserved_strides(*x);
  return y;
}

void launch_amax(Host& h, std::span<const SymTensor> in, std::span<const SymTensor> out,
                 std::int64_t kernels) {
  LaunchRequest q;
  q.op = OpKind::kAmax;
  q.inputs = in;
  q.outputs = out;
  q.kernels = kernels;
  h.launch(q);
}

/// abs() into `magnitude`, then max() of that in so many kernels.
void launch_abs_and_max(Host& h, const SymTensor& x, const SymTensor& magnitude,
                        const SymTensor& largest, std::int64_t reduction_kernels) {
  const std::array<SymTensor, 2> out{magnitude, largest};
  launch_amax(h, {&x, 1}, out, 1 + reduction_kernels);
}

}  // namespace

SymTensor float8_amax(Host& h, const SymTensor& x, const Float8Owner& owner) {
  const SymTensor magnitude = like(h, x, x->dtype, owner);
  const SymTensor largest = h.empty(Shape(), x->dtype, owner.category, owner.unit);
  SymTensor dense = magnitude;  // max() takes contiguous data.
  if (!is_contiguous(*magnitude)) {
    launch_amax(h, {&x, 1}, {&magnitude, 1}, 1);
    dense = h.empty(x->shape, x->dtype, owner.category, owner.unit);
    h.launch(OpKind::kCopy, {magnitude}, {dense});
  }
  SymTensor partial, semaphores;  // In this order they are dropped last first.
  std::int64_t kernels = 1;
  if (const std::int64_t blocks = blocks_of_vector_reduction(x->numel); blocks > 1) {
    partial = h.empty({blocks}, x->dtype, owner.category, owner.unit);
    semaphores = h.empty({1}, DType::kInt32, owner.category, owner.unit);
    ++kernels;
  }
  if (dense == magnitude)
    launch_abs_and_max(h, x, magnitude, largest, kernels);
  else
    launch_amax(h, {&dense, 1}, {&largest, 1}, kernels);
  return largest;
}

SymTensor float8_amax_along(Host& h, const SymTensor& x, int dim, const Float8Owner& owner) {
  const SymTensor magnitude = like(h, x, x->dtype, owner);
  Shape shape = x->shape;
  shape[dim] = 1;
  const SymTensor largest = h.empty(shape, x->dtype, owner.category, owner.unit);
  SymTensor buffer, semaphores;  // In this order they are dropped last first.
  std::int64_t kernels = 1;
  if (const std::int64_t rows = x->shape[dim];
      magnitude->stride[static_cast<std::size_t>(dim < 0 ? dim + x->shape.rank : dim)] != 1) {
    const ReductionScratch s = scratch_of_row_reduction(rows, x->numel / rows, size_of(x->dtype));
    if (s.buffer > 0) {
      buffer = empty_temporary(h, s.buffer);
      semaphores = empty_temporary(h, s.semaphores);
      kernels = s.kernels();
    }
  }
  launch_abs_and_max(h, x, magnitude, largest, kernels);
  return largest;
}

SymTensor float8_scale(Host& h, const SymTensor& amax, bool power_of_two,
                       const Float8Owner& owner) {
  const auto make = [&](DType dtype) {
    return h.empty(amax->shape, dtype, owner.category, owner.unit);
  };
  const SymTensor wide = make(DType::kFloat64);
  SymTensor clamped = make(DType::kFloat64), inverse = make(DType::kFloat64),
            quotient = make(DType::kFloat64);
  inverse.reset();
  clamped.reset();
  SymTensor scale = make(DType::kFloat32);
  quotient.reset();
  if (power_of_two) {
    SymTensor logarithm = make(DType::kFloat32), whole = make(DType::kFloat32);
    logarithm.reset();
    SymTensor rounded = make(DType::kFloat32);
    whole.reset();
    scale = std::move(rounded);
  }
  LaunchRequest q;
  const double exponent = -1.0;
  q.op = OpKind::kPow;
  q.inputs = {&amax, 1};
  q.outputs = {&scale, 1};
  q.attributes = {&exponent, 1};
  q.kernels = power_of_two ? 8 : 5;
  h.launch(q);
  return scale;
}

SymTensor float8_cast(Host& h, const SymTensor& x, const SymTensor& scale, DType dtype,
                      const Float8Owner& owner) {
  SymTensor wide = x->dtype == DType::kFloat32 ? x : like(h, x, DType::kFloat32, owner);
  if (wide != x) h.launch(OpKind::kCopy, {x}, {wide});
  const SymTensor scaled = like(h, x, DType::kFloat32, owner);
  h.launch(OpKind::kMul, {wide, scale}, {scaled});
  wide.reset();
  SymTensor clamped = like(h, x, DType::kFloat32, owner);
  const double largest = dtype == DType::kFloat8E4M3 ? 448 : 57344;
  h.launch(OpKind::kClamp, {scaled}, {clamped}, {-largest, largest});
  SymTensor result = like(h, x, dtype, owner);
  h.launch(OpKind::kQuantizeFp8, {clamped}, {result});
  return result;
}

}  // namespace foreshard
