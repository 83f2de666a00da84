#include "schedules/planner/compiled_ops.h"

namespace foreshard {

bool compiler_generates(OpKind op) {
  switch (op) {
    case OpKind::kAdd:
    case OpKind::kSub:
    case OpKind::kMul:
    case OpKind::kDiv:
    case OpKind::kNeg:
    case OpKind::kAddScalar:
    case OpKind::kMulScalar:
    case OpKind::kAddInPlace:
    case OpKind::kMulInPlace:
    case OpKind::kFill:
    case OpKind::kCopy:
    case OpKind::kCat:
    case OpKind::kSilu:
    case OpKind::kSiluBackward:
    case OpKind::kGelu:
    case OpKind::kGeluBackward:
    case OpKind::kRelu:
    case OpKind::kReluBackward:
    case OpKind::kSigmoid:
    case OpKind::kSigmoidBackward:
    case OpKind::kTanh:
    case OpKind::kTanhBackward:
    case OpKind::kExp:
    case OpKind::kClamp:
    case OpKind::kSoftplus:
    case OpKind::kSoftplusBackward:
    case OpKind::kPow:
    case OpKind::kSqrt:
    case OpKind::kRsqrt:
    case OpKind::kCos:
    case OpKind::kSin:
    case OpKind::kWhere:
    case OpKind::kCompare:
    case OpKind::kTril:
    case OpKind::kDropout:
    case OpKind::kDropoutBackward:
    case OpKind::kSum:
    case OpKind::kMean:
    case OpKind::kSoftmax:
    case OpKind::kSoftmaxBackward:
    case OpKind::kLayerNorm:
    case OpKind::kLayerNormBackward:
    case OpKind::kLayerNormBackwardGamma:
    case OpKind::kRmsNorm:
    case OpKind::kRmsNormBackward:
    case OpKind::kRmsNormBackwardGamma:
    case OpKind::kFusedBlock:
      return true;
    default:
      return false;
  }
}

bool may_run_again(OpKind op) {
  return compiler_generates(op) && op != OpKind::kCat && op != OpKind::kTril;
}

}  // namespace foreshard
