#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace foreshard {

/// Classes of kernels: what reports add up, and how a launch is timed if its kind has no rule of
/// its own (sim/cost/kernel_cost.cc: by bytes; sim/cost/host_cost.cc).
enum class KernelClass : std::uint8_t {
  kMatmul,
  kAttention,
  kNormalisation,
  kElementwise,
  kLossAndEmbedding,
  kOptimizer,
  kShardingCopies,
  kOther,
};
inline constexpr int kKernelClassCount = static_cast<int>(KernelClass::kOther) + 1;
std::string_view name_of(KernelClass kernel_class);

// Values of Launch::dims (docs/formats/op_operands.md). dims[4] of a product: libraries run a
// weight gradient, which sums over tokens, a little slower. dims[5]: 8-bit operands with a scale
// for each row.
inline constexpr std::int64_t kWeightGradientProduct = 1, kRowScales = 1;

// Every kind of device work that a schedule can launch. The planner's recipes
// (schedules/planner/recipes) launch it with its shapes and bytes, models/ops/op_flops.cc counts
// its FLOPs, sim/cost gives it a time, exec/kernels computes it; docs/formats/op_operands.md holds
// operands and `Launch::dims`. One row for each kind:
//   X(enumerator, "text name", class of kernel)
#define FORESHARD_OP_KINDS(X)                                                                     \
  /* matrix products */                                                                           \
  X(kMatmul, "matmul", kMatmul)                                                                   \
  X(kMatmulBias, "matmul_bias", kMatmul)                                                          \
  /* element-wise; any strides, broadcasting by stride 0 */                                       \
  X(kAdd, "add", kElementwise)                                                                    \
  X(kSub, "sub", kElementwise)                                                                    \
  X(kMul, "mul", kElementwise)                                                                    \
  X(kDiv, "div", kElementwise)                                                                    \
  X(kNeg, "neg", kElementwise)                                                                    \
  X(kAddScalar, "add_scalar", kElementwise)                                                       \
  X(kMulScalar, "mul_scalar", kElementwise)                                                       \
  X(kAddInPlace, "add_", kElementwise)                                                            \
  X(kMulInPlace, "mul_", kElementwise)                                                            \
  X(kFill, "fill", kElementwise)                                                                  \
  X(kCopy, "copy", kElementwise) /* also dtype conversion and making contiguous */                \
  X(kCat, "cat", kElementwise)                                                                    \
  X(kSilu, "silu", kElementwise)                                                                  \
  X(kSiluBackward, "silu_backward", kElementwise)                                                 \
  X(kGelu, "gelu", kElementwise)                                                                  \
  X(kGeluBackward, "gelu_backward", kElementwise)                                                 \
  X(kRelu, "relu", kElementwise)                                                                  \
  X(kReluBackward, "relu_backward", kElementwise)                                                 \
  X(kSigmoid, "sigmoid", kElementwise)                                                            \
  X(kSigmoidBackward, "sigmoid_backward", kElementwise)                                           \
  X(kTanh, "tanh", kElementwise)                                                                  \
  X(kTanhBackward, "tanh_backward", kElementwise)                                                 \
  X(kExp, "exp", kElementwise)                                                                    \
  X(kClamp, "clamp", kElementwise)                                                                \
  X(kSoftplus, "softplus", kElementwise)                                                          \
  X(kSoftplusBackward, "softplus_backward", kElementwise)                                         \
  X(kPow, "pow", kElementwise)                                                                    \
  X(kSqrt, "sqrt", kElementwise)                                                                  \
  X(kRsqrt, "rsqrt", kElementwise)                                                                \
  X(kCos, "cos", kElementwise)                                                                    \
  X(kSin, "sin", kElementwise)                                                                    \
  X(kSign, "sign", kElementwise)                                                                  \
  X(kUniform, "uniform", kElementwise)                /* random values of an interval */          \
  X(kRelativeBucket, "relative_bucket", kElementwise) /* T5's bucket of a distance */             \
  X(kWhere, "where", kElementwise)                                                                \
  X(kCompare, "compare", kElementwise)                                                            \
  X(kTril, "tril", kElementwise)                                                                  \
  X(kDropout, "dropout", kElementwise)                                                            \
  X(kDropoutBackward, "dropout_backward", kElementwise)                                           \
  /* reductions */                                                                                \
  X(kSum, "sum", kElementwise)                                                                    \
  X(kMean, "mean", kElementwise)                                                                  \
  X(kNorm, "norm", kElementwise)                                                                  \
  X(kArange, "arange", kElementwise)                                                              \
  X(kTopK, "topk", kElementwise)                                                                  \
  X(kSort, "sort", kElementwise)                                                                  \
  X(kCumsum, "cumsum", kElementwise)                                                              \
  X(kGather, "gather", kElementwise)                                                              \
  X(kScatter, "scatter", kElementwise)                                                            \
  X(kIndexSelect, "index_select", kElementwise)                                                   \
  X(kIndexAdd, "index_add", kElementwise)                                                         \
  X(kHistogram, "histogram", kElementwise)                                                        \
  X(kNonzero, "nonzero", kElementwise) /* its size depends on data: no executor kernel */         \
  X(kMaskedScatter, "masked_scatter", kElementwise)                                               \
  X(kMaskedSelect, "masked_select", kElementwise)                                                 \
  /* normalisation, attention, embedding, loss */                                                 \
  X(kLayerNorm, "layer_norm", kNormalisation)                                                     \
  X(kLayerNormBackward, "layer_norm_backward", kNormalisation)                                    \
  X(kLayerNormBackwardGamma, "layer_norm_backward_gamma", kNormalisation)                         \
  X(kRmsNorm, "rms_norm", kNormalisation)                                                         \
  X(kRmsNormBackward, "rms_norm_backward", kNormalisation)                                        \
  X(kRmsNormBackwardGamma, "rms_norm_backward_gamma", kNormalisation)                             \
  X(kSoftmax, "softmax", kNormalisation)                                                          \
  X(kSoftmaxBackward, "softmax_backward", kNormalisation)                                         \
  X(kFlashAttention, "flash_attention", kAttention)                                               \
  X(kFlashAttentionBackward, "flash_attention_backward", kAttention)                              \
  X(kEfficientAttention, "efficient_attention", kAttention)                                       \
  X(kEfficientAttentionBackward, "efficient_attention_backward", kAttention)                      \
  X(kEmbedding, "embedding", kLossAndEmbedding)                                                   \
  X(kEmbeddingBackward, "embedding_backward", kLossAndEmbedding)                                  \
  X(kLogSoftmax, "log_softmax", kLossAndEmbedding)                                                \
  X(kLogSoftmaxBackward, "log_softmax_backward", kLossAndEmbedding)                               \
  X(kNllLoss, "nll_loss", kLossAndEmbedding)                                                      \
  X(kNllLossBackward, "nll_loss_backward", kLossAndEmbedding)                                     \
  X(kFusedCrossEntropy, "fused_cross_entropy",                                                    \
    kLossAndEmbedding) /* losses, and the gradient over the logits */                             \
  X(kMseLoss, "mse_loss", kLossAndEmbedding)                                                      \
  X(kMseLossBackward, "mse_loss_backward", kLossAndEmbedding)                                     \
  X(kConv2d, "conv2d", kMatmul)                                                                   \
  X(kConv2dBackward, "conv2d_backward", kMatmul)                                                  \
  X(kConv1dDepthwise, "conv1d_depthwise", kElementwise)                                           \
  X(kConv1dDepthwiseBackward, "conv1d_depthwise_backward", kElementwise)                          \
  X(kAvgPool2d, "avg_pool2d", kElementwise)                                                       \
  X(kAvgPool2dBackward, "avg_pool2d_backward", kElementwise)                                      \
  X(kSolveTriangular, "solve_triangular", kElementwise)                                           \
  X(kGroupedMatmul, "grouped_matmul", kMatmul)                                                    \
  /* lists of tensors in one launch: sharding copies and optimizers */                            \
  X(kForeachCopy, "foreach_copy", kShardingCopies)                                                \
  X(kSplitCopy, "split_copy", kShardingCopies) /* one gathered buffer -> parameters */            \
  X(kChunkCat, "chunk_cat", kShardingCopies)   /* gradients -> padded rank-interleaved buffer */  \
  X(kForeachAdd, "foreach_add", kOptimizer)                                                       \
  X(kForeachMul, "foreach_mul", kOptimizer)                                                       \
  X(kForeachDiv, "foreach_div", kOptimizer)                                                       \
  X(kForeachSqrt, "foreach_sqrt", kOptimizer)                                                     \
  X(kForeachLerp, "foreach_lerp", kOptimizer)                                                     \
  X(kForeachAddcmul, "foreach_addcmul", kOptimizer)                                               \
  X(kForeachAddcdiv, "foreach_addcdiv", kOptimizer)                                               \
  X(kForeachNorm, "foreach_norm", kOptimizer)                                                     \
  X(kFusedAdamW, "fused_adamw", kOptimizer)                                                       \
  X(kAdamWUpdate, "adamw_update",                                                                 \
    kOptimizer) /* the whole AdamW update of one tensor or list, unfused */                       \
  X(kSgdUpdate, "sgd_update", kOptimizer)                                                         \
  X(kClipCoefficient, "clip_coefficient", kOptimizer)                                             \
  X(kFlatten, "flatten", kShardingCopies)     /* tensors -> one flat buffer */                    \
  X(kUnflatten, "unflatten", kShardingCopies) /* one flat buffer -> tensors */                    \
  X(kQuantizeFp8, "quantize_fp8", kElementwise)                                                   \
  X(kDequantize4Bit, "dequantize_4bit", kElementwise)                                             \
  X(kQuantizeBlocks, "quantize_blocks", kElementwise)                                             \
  X(kDequantizeBlocks, "dequantize_blocks", kElementwise)                                         \
  X(kAmax, "amax", kElementwise)                                                                  \
  X(kCheckFinite, "check_finite", kOptimizer)                                                     \
  X(kInitialize, "initialize", kOther) /* parameter values; executor asks its initializer */      \
  X(kObserve, "observe",                                                                          \
    kOther) /* hands a value (loss, gradient norm) to the reader of the run; no device time */    \
  X(kFusedBlock, "fused_block", kElementwise) /* a compiler-fused element-wise region: bytes only \
                                               */

enum class OpKind : std::uint8_t {
#define FORESHARD_X(enumerator, text, kernel_class) enumerator,
  FORESHARD_OP_KINDS(FORESHARD_X)
#undef FORESHARD_X
};

#define FORESHARD_X(enumerator, text, kernel_class) +1
inline constexpr int kOpKindCount = 0 FORESHARD_OP_KINDS(FORESHARD_X);
#undef FORESHARD_X

std::string_view name_of(OpKind kind);
KernelClass kernel_class_of(OpKind kind);
std::optional<OpKind> parse_op_kind(std::string_view text);

}  // namespace foreshard
