#pragma once

// The formulas of single elements in fp32, shared by all backends: one body for host and device
// compilers.

#include <cmath>

#include "exec/kernels/convert.h"

namespace foreshard::scalar {

FORESHARD_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
FORESHARD_DEVICE float silu(float x) { return x / (1.0f + std::exp(-x)); }
FORESHARD_DEVICE float silu_backward(float grad, float x) {
  const float s = sigmoid(x);
  return grad * s * (1.0f + x * (1.0f - s));
}

/// log(1 + e^x), and x itself above 20 as PyTorch's softplus does (beta 1, threshold 20).
FORESHARD_DEVICE float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }
FORESHARD_DEVICE float softplus_backward(float grad, float x) {
  return x > 20.0f ? grad : grad * sigmoid(x);
}

FORESHARD_DEVICE float gelu_erf(float x) {
  return 0.5f * x * (1.0f + std::erf(x * 0.70710678118654752f));
}
FORESHARD_DEVICE float gelu_erf_backward(float grad, float x) {
  const float cdf = 0.5f * (1.0f + std::erf(x * 0.70710678118654752f));
  const float pdf = 0.39894228040143268f * std::exp(-0.5f * x * x);
  return grad * (cdf + x * pdf);
}

FORESHARD_DEVICE float gelu_tanh(float x) {
  const float inner = 0.79788456080286536f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.0f + std::tanh(inner));
}
FORESHARD_DEVICE float gelu_tanh_backward(float grad, float x) {
  const float t = std::tanh(0.79788456080286536f * (x + 0.044715f * x * x * x));
  const float inner = 0.79788456080286536f * (1.0f + 3.0f * 0.044715f * x * x);
  return grad * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner);
}

/// Scalars of one AdamW step (torch.optim.AdamW), computed in double by the host and then used in
/// fp32.
struct AdamWStep {
  float decay;       ///< 1 - lr * weight_decay
  float beta1_rest;  ///< 1 - beta1
  float beta2, beta2_rest;
  float step_size;    ///< lr / (1 - beta1^t)
  float correction2;  ///< sqrt(1 - beta2^t)
  float eps;
};

FORESHARD_DEVICE void adamw(const AdamWStep& s, float grad, float* param, float* average,
                            float* square) {
  *param *= s.decay;
  *average += s.beta1_rest * (grad - *average);
  *square = *square * s.beta2 + s.beta2_rest * grad * grad;
  *param -= s.step_size * *average / (std::sqrt(*square) / s.correction2 + s.eps);
}

}  // namespace foreshard::scalar
