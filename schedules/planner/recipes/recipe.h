#pragma once

// Building blocks of recipes: what one ATen function does on the host. A recipe allocates outputs
// and temporaries in PyTorch's order, launches, and records an autograd node with what it saves.
// Inputs are saved before the kernel runs, outputs after it; gradients of inputs are computed in
// the alphabetical order of their names, as generated code does.

#include <initializer_list>

#include "core/error.h"
#include "models/module_tree.h"
#include "schedules/planner/host/host_impl.h"

namespace foreshard {

/// The autograd node of one call; empty (false) if no input needs a gradient.
class Record {
 public:
  Record(Host& host, BackwardFunction backward, std::initializer_list<const SymTensor*> inputs);
  Record(Host& host, BackwardFunction backward, std::span<const SymTensor> inputs);

  explicit operator bool() const { return static_cast<bool>(node_); }
  AutogradNode* operator->() const { return node_.get(); }
  /// Input i needs a gradient.
  bool needs(int i) const { return node_ && node_->needs(i); }
  /// Saves an input; an output of the call itself with save_output (keeps no cycle).
  void save(const SymTensor& t);
  void save_output(const SymTensor& t);
  /// Makes `t` output number `nr` of the node.
  void attach(const SymTensor& t, int nr = 0) const;

 private:
  void start(BackwardFunction backward);
  Host& host_;
  Ref<AutogradNode> node_;
};

/// Category of a tensor made now: activation, recomputed activation, loss, temporary of backward or
/// of an evaluation.
BufferCategory result_category(const Host& host);
/// torch.empty for a result of a function.
SymTensor empty_result(Host& host, const Shape& shape, DType dtype);
/// A temporary that dies within the function.
SymTensor empty_temporary(Host& host, std::int64_t bytes);
/// cuBLAS workspace of one product: 32 MiB on Hopper, 1 MiB for cuBLASLt (bias epilogue);
/// memory-corrections, "A, new".
void blas_workspace(Host& host, bool lt);

/// View without autograd node whose base is `t` (keeps the base's storage shared, as
/// ADInplaceOrView does).
SymTensor raw_view(Host& host, const SymTensor& t, const Shape& shape);
SymTensor raw_view(Host& host, const SymTensor& t, const Shape& shape,
                   const std::array<std::int64_t, kMaxRank>& stride, std::int64_t offset);
/// A matrix seen transposed, without autograd node.
SymTensor swapped(Host& host, const SymTensor& matrix);
/// Can `t` be seen with this shape without a copy? Fills the strides.
bool view_strides(const SymTensorImpl& t, const Shape& shape,
                  std::array<std::int64_t, kMaxRank>& stride);

// ------------------------------------------------------------------ functions with autograd
SymTensor view(Host& h, const SymTensor& x,
               const Shape& shape);  ///< InternalError if it would copy.
SymTensor reshape(Host& h, const SymTensor& x, const Shape& shape);
SymTensor transpose(Host& h, const SymTensor& x, int a, int b);
SymTensor contiguous(Host& h, const SymTensor& x);
/// The copy that a kernel makes of a strided operand (expect_contiguous): autograd knows nothing of
/// it, what is saved is the operand itself.
SymTensor contiguous_operand(Host& h, const SymTensor& x);
/// Strides of to() and empty_like: a dense tensor's own, else dense ones in the same order of
/// dimensions (c10/core/TensorImpl: infer_dense_strides). Broadcast dimensions are left where they
/// are.
std::array<std::int64_t, kMaxRank> preserved_strides(const SymTensorImpl& x);
SymTensor expand(Host& h, const SymTensor& x, const Shape& shape);
SymTensor slice(Host& h, const SymTensor& x, int dim, std::int64_t start, std::int64_t end,
                std::int64_t step = 1);
SymTensor select(Host& h, const SymTensor& x, int dim, std::int64_t index);
void split(Host& h, const SymTensor& x, int dim, std::span<const std::int64_t> sizes,
           std::span<SymTensor> out);
SymTensor cat(Host& h, std::span<const SymTensor> xs, int dim);
/// `dense`: the result is contiguous (memory_format=torch.contiguous_format), else it keeps the
/// strides of a dense input.
SymTensor cast(Host& h, const SymTensor& x, DType dtype, bool dense = false);
/// constant_pad_nd: `count` zeros after the end of a dimension; copies even if there are none.
SymTensor pad_end(Host& h, const SymTensor& x, int dim, std::int64_t count);

SymTensor add(Host& h, const SymTensor& a, const SymTensor& b);
SymTensor sub(Host& h, const SymTensor& a, const SymTensor& b);
SymTensor mul(Host& h, const SymTensor& a, const SymTensor& b);
SymTensor div(Host& h, const SymTensor& a, const SymTensor& b);
SymTensor unary(Host& h, Function f, const SymTensor& x, double value = 0);
/// x * `number`, a tensor of rank 0 on the device that holds `value`.
SymTensor mul_number(Host& h, const SymTensor& x, const SymTensor& number, double value);
SymTensor clamp(Host& h, const SymTensor& x, double low, double high);
SymTensor dropout(Host& h, const SymTensor& x, double p);
SymTensor mean_last(Host& h, const SymTensor& x);
SymTensor sum_dim(Host& h, const SymTensor& x, int dim, bool keep);
SymTensor softmax(Host& h, const SymTensor& x, DType dtype);
/// torch.norm over the last dimension, kept; p is 1 or 2.
SymTensor vector_norm(Host& h, const SymTensor& x, double p);
SymTensor cumsum(Host& h, const SymTensor& x, int dim);

SymTensor linear(Host& h, const SymTensor& x, const SymTensor& weight, const SymTensor& bias);
/// Float8Kind applies to the linear layer whose forward runs now.
bool float8_applies(Host& h, const SymTensor& weight);
/// The same as linear() with 8-bit products. Saved: x and weight as they came, or with delayed
/// scaling their 8-bit columns.
SymTensor float8_linear(Host& h, const SymTensor& x, const SymTensor& weight,
                        const SymTensor& bias);
SymTensor conv1d_linear(Host& h, const SymTensor& x, const SymTensor& weight,
                        const SymTensor& bias);
/// `seen`: of attention, FLOPs that the mask lets through; 0: all.
SymTensor matmul(Host& h, const SymTensor& a, const SymTensor& b, std::int64_t seen = 0);

SymTensor rms_norm(Host& h, const SymTensor& x, const SymTensor& weight, double eps);
SymTensor layer_norm(Host& h, const SymTensor& x, const SymTensor& weight, const SymTensor& bias,
                     double eps);
/// `window`: keys that a query sees, itself included; 0: all before it. Only flash-attn's own
/// functions know it; elsewhere the mask says it.
SymTensor attention(Host& h, const SymTensor& q, const SymTensor& k, const SymTensor& v,
                    const SymTensor& mask, bool causal, double dropout_p, double scale,
                    std::int64_t window = 0);
SymTensor embedding(Host& h, const SymTensor& indices, const SymTensor& weight);
/// torch.nn.functional.cross_entropy over rows of [n, classes].
enum class LossReduction : std::uint8_t { kMean = 1, kSum = 2 };
SymTensor cross_entropy(Host& h, const SymTensor& logits, const SymTensor& targets,
                        LossReduction reduction = LossReduction::kMean);
/// Mean cross entropy of linear(x, weight) without storing the logits: their gradient is computed
/// chunk by chunk in forward (Liger-Kernel, ops/fused_linear_cross_entropy.py). x [.., h], targets
/// [tokens], weight [classes, h].
SymTensor fused_linear_cross_entropy(Host& h, const SymTensor& x, const SymTensor& targets,
                                     const SymTensor& weight);
SymTensor mse_loss(Host& h, const SymTensor& x, const SymTensor& y);
/// (x * x).mean(), a scalar.
SymTensor mean_square(Host& h, const SymTensor& x);

/// sum_to_size of a gradient after broadcasting; the same tensor if the shape fits.
SymTensor sum_to(Host& h, const SymTensor& g, const Shape& shape);
/// A device reduction over the leading `rows` of [rows, columns] with the scratch memory of
/// PyTorch's reduction kernel.
SymTensor sum_rows(Host& h, const SymTensor& x, std::int64_t rows, const Shape& result);
/// Scratch memory, in bytes, of the reduction of [rows, columns] over rows (the slow dimension);
/// sums of 16-bit values accumulate in four bytes, maxima in their own dtype.
struct ReductionScratch {
  std::int64_t buffer = 0, semaphores = 0;
  /// The reduction, and before it the semaphores are set to zero.
  std::int64_t kernels() const { return buffer > 0 ? 2 : 1; }
};
ReductionScratch scratch_of_row_reduction(std::int64_t rows, std::int64_t columns,
                                          std::int64_t accumulator_bytes);
/// Thread blocks that share the reduction of a contiguous vector to one value; more than one need
/// scratch memory.
std::int64_t blocks_of_vector_reduction(std::int64_t numel);
/// Result and scratch memory of x.sum(0) without the launch, for kernels of ours that do both
/// passes at once.
SymTensor sum_rows_scratch(Host& h, const SymTensor& x, const Shape& result);

}  // namespace foreshard
