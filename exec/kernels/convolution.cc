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
      : images(x.shape[0]),
        channels(x.shape[1]),
        height(x.shape[2]),
        width(x.shape[3]),
        filters(weight.shape[0]),
        rows(weight.shape[2]),
        columns(weight.shape[3]),
        out_height(y.shape[2]),
        out_width(y.shape[3]),
        stride(integer_attribute(c, 0, 1)),
        padding(integer_attribute(c, 1, 0)) {
    if (x.rank != 4 || weight.rank != 4 || y.rank != 4 || weight.shape[1] != channels ||
        y.shape[1] != filters) {
      kernel_error(fmt::format("x {}, weight {}, y {} do not fit", shape_text(x),
                               shape_text(weight), shape_text(y)));
    }
  }
  std::int64_t images, channels, height, width, filters, rows, columns, out_height, out_width,
      stride, padding;
  std::int64_t patch() const { return channels * rows * columns; }
  std::int64_t places() const { return out_height * out_width; }

  /// Calls f(element of the unfolded matrix, element of the image) for every pair that is inside
  /// the image.
  template <typename F>
  void for_each(F f) const {
    for (std::int64_t p = 0; p < patch(); ++p) {
      const std::int64_t channel = p / (rows * columns), r = p / columns % rows, s = p % columns;
      for (std::int64_t o = 0; o < places(); ++o) {
        const std::int64_t h = o / out_width * stride + r - padding,
                           w = o % out_width * stride + s - padding;
        if (h < 0 || w < 0 || h >= height || w >= width) continue;
        f(static_cast<std::size_t>(p * places() + o),
          static_cast<std::size_t>((channel * height + h) * width + w));
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
  const std::vector<float> weight = to_floats(input(c, 1)),
                           bias = c.has_input(2) ? to_floats(c.inputs[2]) : std::vector<float>();
  std::vector<float> out(static_cast<std::size_t>(s.filters * s.places()));
  for (std::int64_t i = 0; i < s.images; ++i) {
    const std::vector<float> matrix = s.unfold(to_floats(x.at(i)));
    gemm({.m = s.filters, .n = s.places(), .k = s.patch()}, weight.data(), matrix.data(),
         out.data());
    for (std::size_t k = 0; !bias.empty() && k < out.size(); ++k)
      out[k] += bias[k / static_cast<std::size_t>(s.places())];
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
    gemm({.transpose_b = true, .m = s.filters, .n = s.patch(), .k = s.places(), .beta = 1},
         g.data(), matrix.data(), gweight.data());
    for (std::size_t k = 0; k < g.size(); ++k)
      gbias[k / static_cast<std::size_t>(s.places())] += g[k];
    if (!c.has_output(0)) continue;
    std::vector<float> gmatrix(matrix.size()),
        gx(static_cast<std::size_t>(s.channels * s.height * s.width), 0.0f);
    gemm({.transpose_a = true, .m = s.patch(), .n = s.places(), .k = s.filters}, weight.data(),
         g.data(), gmatrix.data());
    s.for_each([&](std::size_t m, std::size_t at) { gx[at] += gmatrix[m]; });
    from_floats(c.outputs[0].at(i), gx.data());
  }
  if (c.has_output(1)) from_floats(c.outputs[1], gweight.data());
  if (c.has_output(2)) from_floats(c.outputs[2], gbias.data());
}

namespace {

/// Calls f(element of x, element of the weight, element of y) for every product of a depthwise 1-D
/// convolution of stride 1.
template <typename F>
void for_each_tap(const TensorView& x, const TensorView& weight, const TensorView& y,
                  std::int64_t padding, F f) {
  if (x.rank != 3 || y.rank != 3 || weight.rank != 3 || weight.shape[0] != x.shape[1]) {
    kernel_error(fmt::format("x {}, weight {}, y {} do not fit", shape_text(x), shape_text(weight),
                             shape_text(y)));
  }
  const std::int64_t taps = weight.shape[2], in = x.shape[2], out = y.shape[2];
  for (std::int64_t row = 0; row < x.shape[0] * x.shape[1]; ++row) {
    const std::int64_t channel = row % x.shape[1];
    for (std::int64_t o = 0; o < out; ++o) {
      for (std::int64_t t = 0; t < taps; ++t) {
        const std::int64_t i = o + t - padding;
        if (i < 0 || i >= in) continue;
        f(static_cast<std::size_t>(row * in + i), static_cast<std::size_t>(channel * taps + t),
          static_cast<std::size_t>(row * out + o));
      }
    }
  }
}

/// Calls f(element of x, element of y) for every pair of a non-overlapping 2-D pool.
template <typename F>
void for_each_in_pool(const TensorView& x, const TensorView& y, std::int64_t side, F f) {
  for (std::int64_t plane = 0; plane < x.shape[0] * x.shape[1]; ++plane) {
    for (std::int64_t h = 0; h < y.shape[2] * side; ++h) {
      for (std::int64_t w = 0; w < y.shape[3] * side; ++w) {
        f(static_cast<std::size_t>((plane * x.shape[2] + h) * x.shape[3] + w),
          static_cast<std::size_t>((plane * y.shape[2] + h / side) * y.shape[3] + w / side));
      }
    }
  }
}

}  // namespace

void conv1d_depthwise(const KernelCall& c) {
  const std::vector<float> x = to_floats(input(c, 0)), weight = to_floats(input(c, 1));
  std::vector<float> y(static_cast<std::size_t>(output(c, 0).numel()), 0.0f);
  for_each_tap(c.inputs[0], c.inputs[1], c.outputs[0], integer_attribute(c, 0, 0),
               [&](std::size_t i, std::size_t w, std::size_t o) { y[o] += x[i] * weight[w]; });
  from_floats(c.outputs[0], y.data());
}

void conv1d_depthwise_backward(const KernelCall& c) {
  const std::vector<float> grad = to_floats(input(c, 0)), x = to_floats(input(c, 1)),
                           weight = to_floats(input(c, 2));
  std::vector<float> gx(x.size(), 0.0f), gweight(weight.size(), 0.0f);
  for_each_tap(c.inputs[1], c.inputs[2], c.inputs[0], integer_attribute(c, 0, 0),
               [&](std::size_t i, std::size_t w, std::size_t o) {
                 gx[i] += grad[o] * weight[w];
                 gweight[w] += grad[o] * x[i];
               });
  if (c.has_output(0)) from_floats(c.outputs[0], gx.data());
  if (c.has_output(1)) from_floats(c.outputs[1], gweight.data());
}

void avg_pool2d(const KernelCall& c) {
  const std::int64_t side = integer_attribute(c, 0, 1);
  const std::vector<float> x = to_floats(input(c, 0));
  std::vector<float> y(static_cast<std::size_t>(output(c, 0).numel()), 0.0f);
  const auto area = static_cast<float>(side * side);
  for_each_in_pool(c.inputs[0], c.outputs[0], side,
                   [&](std::size_t i, std::size_t o) { y[o] += x[i] / area; });
  from_floats(c.outputs[0], y.data());
}

void avg_pool2d_backward(const KernelCall& c) {
  const std::int64_t side = integer_attribute(c, 0, 1);
  const std::vector<float> grad = to_floats(input(c, 0));
  std::vector<float> gx(static_cast<std::size_t>(output(c, 0).numel()), 0.0f);
  const auto area = static_cast<float>(side * side);
  for_each_in_pool(c.outputs[0], c.inputs[0], side,
                   [&](std::size_t i, std::size_t o) { gx[i] = grad[o] / area; });
  from_floats(c.outputs[0], gx.data());
}

}  // namespace foreshard::kernels
