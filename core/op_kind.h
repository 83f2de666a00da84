#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace foreshard {

// Every kind of device work that a schedule can launch: the key shared by the op registry
// (models/ops: shapes, FLOPs, bytes), the simulator's cost models (sim/cost) and the executor's
// kernels (exec/kernels). One row per kind:
//   X(enumerator, "text name")
// Layout conventions of tensors and `Launch::dims` stand beside the registry rows in
// models/ops/op_registry.cc.
#define FORESHARD_OP_KINDS(X)                                                                     \
  /* matrix products; dims = {m, n, k, batch} */                                                  \
  X(kMatmul, "matmul")                                                                            \
  X(kMatmulBias, "matmul_bias")                                                                   \
  /* element-wise; any strides, broadcasting by stride 0 */                                       \
  X(kAdd, "add")                                                                                  \
  X(kSub, "sub")                                                                                  \
  X(kMul, "mul")                                                                                  \
  X(kDiv, "div")                                                                                  \
  X(kNeg, "neg")                                                                                  \
  X(kAddScalar, "add_scalar")                                                                     \
  X(kMulScalar, "mul_scalar")                                                                     \
  X(kAddInPlace, "add_")                                                                          \
  X(kMulInPlace, "mul_")                                                                          \
  X(kFill, "fill")                                                                                \
  X(kCopy, "copy") /* also dtype conversion and making contiguous */                              \
  X(kCat, "cat")                                                                                  \
  X(kSilu, "silu")                                                                                \
  X(kSiluBackward, "silu_backward")                                                               \
  X(kGelu, "gelu")                                                                                \
  X(kGeluBackward, "gelu_backward")                                                               \
  X(kRelu, "relu")                                                                                \
  X(kReluBackward, "relu_backward")                                                               \
  X(kSigmoid, "sigmoid")                                                                          \
  X(kSigmoidBackward, "sigmoid_backward")                                                         \
  X(kTanh, "tanh")                                                                                \
  X(kTanhBackward, "tanh_backward")                                                               \
  X(kExp, "exp")                                                                                  \
  X(kClamp, "clamp")                                                                              \
  X(kSoftplus, "softplus")                                                                        \
  X(kSoftplusBackward, "softplus_backward")                                                       \
  X(kPow, "pow")                                                                                  \
  X(kSqrt, "sqrt")                                                                                \
  X(kRsqrt, "rsqrt")                                                                              \
  X(kCos, "cos")                                                                                  \
  X(kSin, "sin")                                                                                  \
  X(kSign, "sign")                                                                                \
  X(kUniform, "uniform")                /* random values of an interval */                        \
  X(kRelativeBucket, "relative_bucket") /* T5's bucket of a distance */                           \
  X(kWhere, "where")                                                                              \
  X(kCompare, "compare")                                                                          \
  X(kDropout, "dropout")                                                                          \
  X(kDropoutBackward, "dropout_backward")                                                         \
  /* reductions */                                                                                \
  X(kSum, "sum")                                                                                  \
  X(kMean, "mean")                                                                                \
  X(kNorm, "norm")                                                                                \
  X(kArange, "arange")                                                                            \
  X(kTopK, "topk")                                                                                \
  X(kSort, "sort")                                                                                \
  X(kCumsum, "cumsum")                                                                            \
  X(kGather, "gather")                                                                            \
  X(kScatter, "scatter")                                                                          \
  X(kIndexSelect, "index_select")                                                                 \
  X(kIndexAdd, "index_add")                                                                       \
  X(kHistogram, "histogram")                                                                      \
  X(kNonzero, "nonzero") /* its size depends on data: no executor kernel */                       \
  X(kMaskedScatter, "masked_scatter")                                                             \
  X(kMaskedSelect, "masked_select")                                                               \
  /* normalisation, attention, embedding, loss */                                                 \
  X(kLayerNorm, "layer_norm")                                                                     \
  X(kLayerNormBackward, "layer_norm_backward")                                                    \
  X(kLayerNormBackwardGamma, "layer_norm_backward_gamma")                                         \
  X(kRmsNorm, "rms_norm")                                                                         \
  X(kRmsNormBackward, "rms_norm_backward")                                                        \
  X(kRmsNormBackwardGamma, "rms_norm_backward_gamma")                                             \
  X(kSoftmax, "softmax")                                                                          \
  X(kSoftmaxBackward, "softmax_backward")                                                         \
  X(kFlashAttention, "flash_attention")                                                           \
  X(kFlashAttentionBackward, "flash_attention_backward")                                          \
  X(kEfficientAttention, "efficient_attention")                                                   \
  X(kEfficientAttentionBackward, "efficient_attention_backward")                                  \
  X(kEmbedding, "embedding")                                                                      \
  X(kEmbeddingBackward, "embedding_backward")                                                     \
  X(kLogSoftmax, "log_softmax")                                                                   \
  X(kLogSoftmaxBackward, "log_softmax_backward")                                                  \
  X(kNllLoss, "nll_loss")                                                                         \
  X(kNllLossBackward, "nll_loss_backward")                                                        \
  X(kFusedCrossEntropy, "fused_cross_entropy") /* losses, and the gradient over the logits */     \
  X(kMseLoss, "mse_loss")                                                                         \
  X(kMseLossBackward, "mse_loss_backward")                                                        \
  X(kConv2d, "conv2d")                                                                            \
  X(kConv2dBackward, "conv2d_backward")                                                           \
  X(kConv1dDepthwise, "conv1d_depthwise")                                                         \
  X(kConv1dDepthwiseBackward, "conv1d_depthwise_backward")                                        \
  X(kAvgPool2d, "avg_pool2d")                                                                     \
  X(kAvgPool2dBackward, "avg_pool2d_backward")                                                    \
  X(kSolveTriangular, "solve_triangular")                                                         \
  X(kGroupedMatmul, "grouped_matmul")                                                             \
  /* lists of tensors in one launch: sharding copies and optimizers */                            \
  X(kForeachCopy, "foreach_copy")                                                                 \
  X(kSplitCopy, "split_copy") /* one gathered buffer -> parameters */                             \
  X(kChunkCat, "chunk_cat")   /* gradients -> padded rank-interleaved buffer */                   \
  X(kForeachAdd, "foreach_add")                                                                   \
  X(kForeachMul, "foreach_mul")                                                                   \
  X(kForeachDiv, "foreach_div")                                                                   \
  X(kForeachSqrt, "foreach_sqrt")                                                                 \
  X(kForeachLerp, "foreach_lerp")                                                                 \
  X(kForeachAddcmul, "foreach_addcmul")                                                           \
  X(kForeachAddcdiv, "foreach_addcdiv")                                                           \
  X(kForeachNorm, "foreach_norm")                                                                 \
  X(kFusedAdamW, "fused_adamw")                                                                   \
  X(kAdamWUpdate, "adamw_update") /* the whole AdamW update of one tensor or list, unfused */     \
  X(kSgdUpdate, "sgd_update")                                                                     \
  X(kClipCoefficient, "clip_coefficient")                                                         \
  X(kFlatten, "flatten")     /* tensors -> one flat buffer */                                     \
  X(kUnflatten, "unflatten") /* one flat buffer -> tensors */                                     \
  X(kQuantizeFp8, "quantize_fp8")                                                                 \
  X(kDequantize4Bit, "dequantize_4bit")                                                           \
  X(kAmax, "amax")                                                                                \
  X(kCheckFinite, "check_finite")                                                                 \
  X(kInitialize, "initialize") /* parameter values; executor asks its initializer */              \
  X(kObserve,                                                                                     \
    "observe") /* hands a value (loss, gradient norm) to the reader of the run; no device time */ \
  X(kFusedBlock, "fused_block") /* a compiler-fused element-wise region: bytes only */

enum class OpKind : std::uint8_t {
#define FORESHARD_X(enumerator, text) enumerator,
  FORESHARD_OP_KINDS(FORESHARD_X)
#undef FORESHARD_X
};

#define FORESHARD_X(enumerator, text) +1
inline constexpr int kOpKindCount = 0 FORESHARD_OP_KINDS(FORESHARD_X);
#undef FORESHARD_X

std::string_view name_of(OpKind kind);
std::optional<OpKind> parse_op_kind(std::string_view text);

}  // namespace foreshard
