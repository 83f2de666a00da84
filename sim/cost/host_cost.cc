#include "sim/cost/host_cost.h"

#include <algorithm>
#include <cmath>

#include "sim/cost/kernel_cost.h"

namespace foreshard {
namespace {

/// One row of the measured table: forward with autograd; backward, divided by the launches that the
/// call makes there.
struct Dispatch {
  double forward_us, backward_us;
};

Dispatch table(OpKind op) {
  switch (op) {
    case OpKind::kMatmul:
      return {5.6, 13.9 / 2};  // nn.Linear without bias; backward launches two products
    case OpKind::kMatmulBias:
      return {5.7, 18.6 / 3};  // with bias: two products and a sum
    case OpKind::kGroupedMatmul:
    case OpKind::kConv2d:
      return {5.7, 18.6 / 3};
    case OpKind::kConv2dBackward:
      return {18.6, 18.6};
    case OpKind::kRmsNorm:
      return {5.2, 5.2};
    case OpKind::kRmsNormBackward:
    case OpKind::kRmsNormBackwardGamma:
      return {6.5 / 2, 6.5 / 2};
    case OpKind::kLayerNorm:
      return {5.7, 5.7};
    case OpKind::kLayerNormBackward:
    case OpKind::kLayerNormBackwardGamma:
      return {8.6 / 2, 8.6 / 2};
    case OpKind::kFlashAttention:
    case OpKind::kEfficientAttention:
      return {6.0, 6.0};
    case OpKind::kFlashAttentionBackward:
    case OpKind::kEfficientAttentionBackward:
      return {14.9, 14.9};
    case OpKind::kEmbedding:
      return {5.0, 5.0};
    case OpKind::kEmbeddingBackward:
      return {8.5, 8.5};
    case OpKind::kLogSoftmax:
    case OpKind::kNllLoss:
    case OpKind::kMseLoss:
      return {3.8 / 2, 3.8 / 2};
    case OpKind::kLogSoftmaxBackward:
    case OpKind::kNllLossBackward:
    case OpKind::kMseLossBackward:
      return {11.3 / 3, 11.3 / 3};
    case OpKind::kDropout:
      return {3.9, 3.9};
    case OpKind::kDropoutBackward:
      return {3.3, 3.3};
    case OpKind::kCat:
      return {1.9, 1.9};
    case OpKind::kCopy:
      return {1.75, 3.0};  // cast
    case OpKind::kAdd:
    case OpKind::kAddInPlace:
      return {1.55, 0.8};  // backward: a gradient used twice
    case OpKind::kMul:
      return {1.6, 4.5 / 2};
    case OpKind::kSiluBackward:
    case OpKind::kGeluBackward:
    case OpKind::kReluBackward:
    case OpKind::kSigmoidBackward:
    case OpKind::kTanhBackward:
    case OpKind::kSoftmaxBackward:
      return {3.4, 3.4};
    case OpKind::kInitialize:
    case OpKind::kObserve:
      return {0, 0};
    default:
      return {1.55, 2.5};  // element-wise calls
  }
}

/// Calls on lists of n tensors.
double list_us(const Launch& l) {
  const double outputs = static_cast<double>(l.outputs);
  switch (l.op) {
    case OpKind::kFusedAdamW:
      return 20 + 1.35 * outputs / 3;  // outputs: parameters and two moments
    case OpKind::kAdamWUpdate:
    case OpKind::kSgdUpdate:
      return 15;  // for-loop: one tensor
    case OpKind::kForeachNorm:
      return 10 + 1.0 * static_cast<double>(l.inputs);  // clipping: 30 + 2.5 n over three calls
    case OpKind::kClipCoefficient:
      return 10;
    default:
      return (40 + 4.5 * outputs) / 10;  // foreach: ten launches for an update
  }
}

Time from_us(double us) { return Time(std::llround(us * 1e6)); }

}  // namespace

double HostCostModel::dispatch_us(const Launch& l) {
  switch (kernel_class_of(l.op)) {
    case KernelClass::kShardingCopies:
      return 0;
    case KernelClass::kOptimizer:
      return list_us(l);
    default:
      break;
  }
  const Dispatch d = table(l.op);
  return l.phase == Phase::kBackward ? d.backward_us : d.forward_us;
}

Time HostCostModel::launch(const Launch& l) const {
  if (l.op == OpKind::kObserve) return Time(0);
  double warm = p_.cold_forward;
  if (l.phase == Phase::kBackward) warm = p_.cold_backward;
  if (l.phase == Phase::kOptimizer || l.phase == Phase::kClip) warm = p_.optimizer;
  return from_us(dispatch_us(l) * warm * cpu_factor_ + p_.launch_us * std::max<int>(l.kernels, 1));
}

Time HostCostModel::collective() const { return from_us(p_.collective_us); }
Time HostCostModel::copy() const { return from_us(p_.copy_us); }

}  // namespace foreshard
