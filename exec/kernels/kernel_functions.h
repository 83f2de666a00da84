#pragma once

// The kernels by file; exec/kernels/table.cc assigns them to op kinds. Operands:
// docs/formats/op_operands.md.

#include "exec/calls.h"

namespace foreshard::kernels {

// elementwise.cc
void unary(const KernelCall&);
void binary(const KernelCall&);
void add_in_place(const KernelCall&);
void mul_in_place(const KernelCall&);
void activation_backward(const KernelCall&);
void where(const KernelCall&);
void compare(const KernelCall&);
void tril(const KernelCall&);
void dropout(const KernelCall&);
void dropout_backward(const KernelCall&);
void uniform(const KernelCall&);

// structure.cc
void fill(const KernelCall&);
void copy(const KernelCall&);
void cat(const KernelCall&);
void arange(const KernelCall&);
void foreach_copy(const KernelCall&);
void split_copy(const KernelCall&);
void chunk_cat(const KernelCall&);
void flatten(const KernelCall&);
void unflatten(const KernelCall&);

// reductions.cc
void sum(const KernelCall&);
void norm(const KernelCall&);
void foreach_norm(const KernelCall&);
void amax(const KernelCall&);
void check_finite(const KernelCall&);
void cumsum(const KernelCall&);
void topk(const KernelCall&);
void sort(const KernelCall&);

// indexing.cc
void embedding(const KernelCall&);
void embedding_backward(const KernelCall&);
void gather(const KernelCall&);
void scatter(const KernelCall&);
void index_select(const KernelCall&);
void index_add(const KernelCall&);
void histogram(const KernelCall&);

// matmul.cc
void matmul(const KernelCall&);
void matmul_bias(const KernelCall&);
void grouped_matmul(const KernelCall&);

// normalisation.cc
void layer_norm(const KernelCall&);
void layer_norm_backward(const KernelCall&);
void layer_norm_backward_gamma(const KernelCall&);
void rms_norm(const KernelCall&);
void rms_norm_backward(const KernelCall&);
void rms_norm_backward_gamma(const KernelCall&);

// softmax.cc
void softmax(const KernelCall&);
void softmax_backward(const KernelCall&);
void nll_loss(const KernelCall&);
void nll_loss_backward(const KernelCall&);
void fused_cross_entropy(const KernelCall&);
void mse_loss(const KernelCall&);
void mse_loss_backward(const KernelCall&);

// attention.cc
void attention(const KernelCall&);
void attention_backward(const KernelCall&);

// convolution.cc
void conv2d(const KernelCall&);
void conv2d_backward(const KernelCall&);
void conv1d_depthwise(const KernelCall&);
void conv1d_depthwise_backward(const KernelCall&);
void avg_pool2d(const KernelCall&);
void avg_pool2d_backward(const KernelCall&);

// masked.cc
void masked_scatter(const KernelCall&);
void masked_select(const KernelCall&);
void relative_bucket(const KernelCall&);

// triangular.cc
void solve_triangular(const KernelCall&);

// optimizer.cc
void foreach_arithmetic(const KernelCall&);
void foreach_sqrt(const KernelCall&);
void foreach_lerp(const KernelCall&);
void foreach_addcmul(const KernelCall&);
void foreach_addcdiv(const KernelCall&);
void adamw(const KernelCall&);
void sgd(const KernelCall&);
void clip_coefficient(const KernelCall&);

// host_values.cc
void initialize(const KernelCall&);
void observe(const KernelCall&);

}  // namespace foreshard::kernels
