#include <cstdint>
#include <vector>

#include <fmt/format.h>

#include "exec/kernels/gemm.h"
#include "exec/kernels/kernel_functions.h"
#include "exec/kernels/kernels.h"
#include "exec/kernels/rows.h"

// 2-D convolution by unfolding each image into a matrix [c r s, oh ow] (im2col).

namespace foreshard::kernels {
namespace {

struct Shape {
  Shape(const KernelCall& c, const TensorView& x, const TensorView& weight, const TensorView& y)
      : images(x.shape[0]), channels(x.shape[1]), height(x.shape[2]), width(x.shape[3]), filters(weight.shape[0]),
        rows(weight.shape[2]), columns(weight.shape[3]), out_height(y.shape[2]), out_width(y.shape[3]),
        stride(integer_attribute(c, 0, 1)), padding(integer_attribute(c, 1, 0)) {
    if (x.rank != 4 || weight.rank != 4 || y.rank != 4 || weight.shape[1] != channels || y.shape[1] != filters) {
      kernel_error(fmt::format("x {}, weight {}, y {} do not fit", shape_text(x), shape_text(weight), shape_text(y)));
    }
  }
  std::int64_t images, channels, height, width, filters, rows, columns, out_height, out_width, stride, padding;
  std::int64_t patch() const { return channels * rows * columns; }
  std::int64_t places() const { return out_height * out_width; }

  /// Calls f(element of the unfolded matrix, element of the image) for every pair that is inside the image.
  template <typename F>
  void for_each(F f) const {
    for (std::int64_t p = 0; p < patch(); ++p) {
      const std::int64_t channel = p / (rows * columns), r = p / columns % rows, s = p % columns;
      for (std::int64_t o = 0; o < places(); ++o) {
        const std::int64_t h = o / out_width * stride + r - padding, w = o % out_width * stride + s - padding;
        if (h < 0 || w < 0 || h >= height || w >= width) continue;
        f(static_cast<std::size_t>(p * places() + o), static_cast<std::size_t>((channel * height + h) * width + w));
      }
    }
  }

  std::vector<float> unfold(const std::vector<float>& image) const {
    std::vector<float> matrix(static_cast<std::size_t>(patch() * places()), 0.0f);
    for_each([&](std::size_t m, std::size_t i) { matrix[m] = image[i]; });
    return matrix;
  }
};

}  // namespace

void conv2d(const KernelCall& c) {
  const TensorView &x = input(c, 0), &y = output(c, 0);
  const Shape s(c, x, input(c, 1), y);
  const std::vector<float> weight = to_floats(input(c, 1)), bias = c.has_input(2) ? to_floats(c.inputs[2]) : std::vector<float>();
  std::vector<float> out(static_cast<std::size_t>(s.filters * s.places()));
  for (std::int64_t i = 0; i < s.images; ++i) {
    const std::vector<float> matrix = s.unfold(to_floats(x.at(i)));
    gemm({.m = s.filters, .n = s.places(), .k = s.patch()}, weight.data(), matrix.data(), out.data());
    for (std::size_t k = 0; !bias.empty() && k < out.size(); ++k) out[k] += bias[k / static_cast<std::size_t>(s.places())];
    from_floats(y.at(i), out.data());
  }
}

void conv2d_backward(const KernelCall& c) {
  const TensorView &grad = input(c, 0), &x = input(c, 1);
  const Shape s(c, x, input(c, 2), grad);
  const std::vector<float> weight = to_floats(input(c, 2));
  std::vector<float> gweight(weight.size(), 0.0f), gbias(static_cast<std::size_t>(s.filters), 0.0f);
  for (std::int64_t i = 0; i < s.images; ++i) {
    const std::vector<float> g = to_floats(grad.at(i)), matrix = s.unfold(to_floats(x.at(i)));
    gemm({.transpose_b = true, .m = s.filters, .n = s.patch(), .k = s.places(), .beta = 1}, g.data(), matrix.data(), gweight.data());
    for (std::size_t k = 0; k < g.size(); ++k) gbias[k / static_cast<std::size_t>(s.places())] += g[k];
    if (!c.has_output(0)) continue;
    std::vector<float> gmatrix(matrix.size()), gx(static_cast<std::size_t>(s.channels * s.height * s.width), 0.0f);
    gemm({.transpose_a = true, .m = s.patch(), .n = s.places(), .k = s.filters}, weight.data(), g.data(), gmatrix.data());
    s.for_each([&](std::size_t m, std::size_t at) { gx[at] += gmatrix[m]; });
    from_floats(c.outputs[0].at(i), gx.data());
  }
  if (c.has_output(1)) from_floats(c.outputs[1], gweight.data());
  if (c.has_output(2)) from_floats(c.outputs[2], gbias.data());
}

}  // namespace foreshard::kernels
