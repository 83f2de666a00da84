#include <array>

#include <fmt/format.h>

#include "core/error.h"
#include "core/op_kind.h"
#include "exec/kernels/blas.h"
#include "exec/kernels/kernel_functions.h"
#include "exec/kernels/kernels.h"
#include "exec/kernels/rows.h"

namespace foreshard {

KernelFunction kernel_for(OpKind op) {
  using namespace kernels;
  switch (op) {
    case OpKind::kMatmul:
      return matmul;
    case OpKind::kMatmulBias:
      return matmul_bias;
    case OpKind::kGroupedMatmul:
      return grouped_matmul;
    case OpKind::kAdd:
    case OpKind::kSub:
    case OpKind::kMul:
    case OpKind::kDiv:
      return binary;
    case OpKind::kNeg:
    case OpKind::kAddScalar:
    case OpKind::kMulScalar:
    case OpKind::kSilu:
    case OpKind::kGelu:
    case OpKind::kRelu:
    case OpKind::kSigmoid:
    case OpKind::kTanh:
    case OpKind::kPow:
    case OpKind::kSqrt:
    case OpKind::kRsqrt:
    case OpKind::kCos:
    case OpKind::kSin:
    case OpKind::kExp:
    case OpKind::kClamp:
    case OpKind::kSign:
    case OpKind::kSoftplus:
      return unary;
    case OpKind::kAddInPlace:
      return add_in_place;
    case OpKind::kMulInPlace:
      return mul_in_place;
    case OpKind::kSiluBackward:
    case OpKind::kGeluBackward:
    case OpKind::kReluBackward:
    case OpKind::kSigmoidBackward:
    case OpKind::kTanhBackward:
    case OpKind::kSoftplusBackward:
      return activation_backward;
    case OpKind::kFill:
      return fill;
    case OpKind::kCopy:
      return copy;
    case OpKind::kCat:
      return cat;
    case OpKind::kWhere:
      return where;
    case OpKind::kCompare:
      return compare;
    case OpKind::kTril:
      return tril;
    case OpKind::kDropout:
      return dropout;
    case OpKind::kDropoutBackward:
      return dropout_backward;
    case OpKind::kSum:
    case OpKind::kMean:
      return sum;
    case OpKind::kNorm:
      return norm;
    case OpKind::kArange:
      return arange;
    case OpKind::kTopK:
      return topk;
    case OpKind::kSort:
      return sort;
    case OpKind::kCumsum:
      return cumsum;
    case OpKind::kGather:
      return gather;
    case OpKind::kScatter:
      return scatter;
    case OpKind::kIndexSelect:
      return index_select;
    case OpKind::kIndexAdd:
      return index_add;
    case OpKind::kHistogram:
      return histogram;
    case OpKind::kLayerNorm:
      return layer_norm;
    case OpKind::kLayerNormBackward:
      return layer_norm_backward;
    case OpKind::kLayerNormBackwardGamma:
      return layer_norm_backward_gamma;
    case OpKind::kRmsNorm:
      return rms_norm;
    case OpKind::kRmsNormBackward:
      return rms_norm_backward;
    case OpKind::kRmsNormBackwardGamma:
      return rms_norm_backward_gamma;
    case OpKind::kSoftmax:
    case OpKind::kLogSoftmax:
      return softmax;
    case OpKind::kSoftmaxBackward:
    case OpKind::kLogSoftmaxBackward:
      return softmax_backward;
    case OpKind::kFlashAttention:
    case OpKind::kEfficientAttention:
      return attention;
    case OpKind::kFlashAttentionBackward:
    case OpKind::kEfficientAttentionBackward:
      return attention_backward;
    case OpKind::kEmbedding:
      return embedding;
    case OpKind::kEmbeddingBackward:
      return embedding_backward;
    case OpKind::kNllLoss:
      return nll_loss;
    case OpKind::kNllLossBackward:
      return nll_loss_backward;
    case OpKind::kFusedCrossEntropy:
      return fused_cross_entropy;
    case OpKind::kMseLoss:
      return mse_loss;
    case OpKind::kMseLossBackward:
      return mse_loss_backward;
    case OpKind::kConv2d:
      return conv2d;
    case OpKind::kConv2dBackward:
      return conv2d_backward;
    case OpKind::kConv1dDepthwise:
      return conv1d_depthwise;
    case OpKind::kConv1dDepthwiseBackward:
      return conv1d_depthwise_backward;
    case OpKind::kAvgPool2d:
      return avg_pool2d;
    case OpKind::kAvgPool2dBackward:
      return avg_pool2d_backward;
    case OpKind::kSolveTriangular:
      return solve_triangular;
    case OpKind::kMaskedScatter:
      return masked_scatter;
    case OpKind::kMaskedSelect:
      return masked_select;
    case OpKind::kUniform:
      return uniform;
    case OpKind::kRelativeBucket:
      return relative_bucket;
    case OpKind::kForeachCopy:
      return foreach_copy;
    case OpKind::kSplitCopy:
      return split_copy;
    case OpKind::kChunkCat:
      return chunk_cat;
    case OpKind::kFlatten:
      return flatten;
    case OpKind::kUnflatten:
      return unflatten;
    case OpKind::kForeachAdd:
    case OpKind::kForeachMul:
    case OpKind::kForeachDiv:
      return foreach_arithmetic;
    case OpKind::kForeachSqrt:
      return foreach_sqrt;
    case OpKind::kForeachLerp:
      return foreach_lerp;
    case OpKind::kForeachAddcmul:
      return foreach_addcmul;
    case OpKind::kForeachAddcdiv:
      return foreach_addcdiv;
    case OpKind::kForeachNorm:
      return foreach_norm;
    case OpKind::kFusedAdamW:
    case OpKind::kAdamWUpdate:
      return adamw;
    case OpKind::kSgdUpdate:
      return sgd;
    case OpKind::kClipCoefficient:
      return clip_coefficient;
    case OpKind::kAmax:
      return amax;
    case OpKind::kCheckFinite:
      return check_finite;
    case OpKind::kInitialize:
      return initialize;
    case OpKind::kObserve:
      return observe;
    case OpKind::kQuantizeFp8:
    case OpKind::kFusedBlock:
    case OpKind::kNonzero:
    case OpKind::kDequantize4Bit:
    case OpKind::kQuantizeBlocks:
    case OpKind::kDequantizeBlocks:
      return nullptr;
  }
  return nullptr;
}

void prepare_kernels() { sgemm(); }

void run_kernel(const KernelCall& call) {
  const auto fail = [&](const std::string& what) {
    throw RunError(fmt::format("rank {} instruction {} ({}): {}", call.origin.rank,
                               call.origin.instruction, name_of(call.op), what));
  };
  const KernelFunction kernel = kernel_for(call.op);
  if (!kernel) fail("the CPU backend cannot execute this op");
  try {
    kernel(call);
  } catch (const RunError& e) {
    fail(e.what());
  }
}

void kernel_error(const std::string& what) { throw RunError(what); }

const TensorView& input(const KernelCall& call, std::size_t i) {
  if (!call.has_input(i)) kernel_error(fmt::format("input {} is missing", i));
  return call.inputs[i];
}

const TensorView& output(const KernelCall& call, std::size_t i) {
  if (!call.has_output(i)) kernel_error(fmt::format("output {} is missing", i));
  return call.outputs[i];
}

std::int64_t integer_attribute(const KernelCall& call, std::size_t i, std::int64_t otherwise) {
  return static_cast<std::int64_t>(call.attribute(i, static_cast<double>(otherwise)));
}

int dimension_attribute(const KernelCall& call, std::size_t i, int otherwise, int rank) {
  const std::int64_t d = integer_attribute(call, i, otherwise);
  const std::int64_t dim = d < 0 ? d + rank : d;
  if (dim < 0 || dim >= std::max(rank, 1))
    kernel_error(fmt::format("dimension {} of a tensor of rank {}", d, rank));
  return static_cast<int>(dim);
}

}  // namespace foreshard
