// Source: transformers 5.24 integrations/moe.py (grouped_mm_experts_forward); PyTorch 2.15
// aten/src/ATen/native/cuda: Indexing.cu (index_put_with_sort_kernel), Sort.cpp, GroupMM.cu.

#include "schedules/planner/recipes/experts.h"

#include <array>
#include <utility>

#include "schedules/planner/recipes/scratch.h"

namespace foreshard {
namespace {

/// Sorting in one block up to this many keys; above, by CUB's radix sort of all 64 bits.
constexpr std::int64_t kMostSortedInBlock = 4096;
/// Workspace of a grouped product: pointers, shapes and strides of each group, and 512 bytes for
/// each multiprocessor.
constexpr std::int64_t kGroupBytes = 60;

SymTensor whole_numbers(Host& h, std::int64_t n) { return empty_result(h, {n}, DType::kInt64); }

/// self.index_put_((index,), source, accumulate=True), which sorts the indices first.
void index_put_accumulate(Host& h, const SymTensor& self, const SymTensor& index,
                          const SymTensor& source) {
  const std::int64_t n = index->numel;
  SymTensor linear;
  {
    SymTensor wrapped = whole_numbers(h, n);
    linear = whole_numbers(h, n);
  }
  SymTensor sorted = whole_numbers(h, n), original = whole_numbers(h, n);
  {
    SymTensor range = whole_numbers(h, n);
    empty_temporary(h, radix_sort_scratch_bytes(n, self->shape[0]));
  }
  LaunchRequest q;
  const std::array<SymTensor, 3> in{self, index, source};
  q.op = OpKind::kIndexAdd;
  q.inputs = in;
  q.outputs = {&self, 1};
  q.kernels = 6;
  h.launch(q);
  original.reset();
  sorted.reset();
  linear.reset();
}

/// Saved: index. Rows are added into zeros.
void index_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  SymTensor index = ctx.saved(0);
  SymTensor g = empty_result(h, ctx.node.shape, ctx.grad()->dtype);
  h.launch(OpKind::kFill, {}, {g}, {0.0});
  index_put_accumulate(h, g, index, ctx.grad());
  ctx.set(0, std::move(g));
}

/// torch.sort of int64 [n].
void sort(Host& h, const SymTensor& x, SymTensor& keys, SymTensor& order) {
  const std::int64_t n = x->numel;
  keys = whole_numbers(h, n);
  order = whole_numbers(h, n);
  SymTensor copy = whole_numbers(h, n);
  if (n > kMostSortedInBlock) empty_temporary(h, radix_sort_scratch_bytes(n, INT64_MAX));
  h.launch(OpKind::kSort, {x}, {keys, order});
}

/// The grouped kernel takes bf16 only; other dtypes are read group by group: the host waits for
/// where they end, then issues one product for each (_grouped_mm_fallback).
void launch_grouped(Host& h, const SymTensor& a, const SymTensor& w, const SymTensor& counts,
                    const SymTensor& c, std::array<std::int64_t, 3> dims) {
  SymTensor groups, workspace;
  LaunchRequest q;
  if (a->dtype == DType::kBFloat16) {
    groups = empty_temporary(h, kGroupBytes * counts->numel);
    workspace = empty_temporary(h, 512 * kMultiprocessors);
  } else {
    h.read_back(counts);
    if (!h.impl().idle_experts) blas_workspace(h, false);  // The next product's lies in its place.
    q.kernels = counts->numel;
  }
  const std::array<SymTensor, 3> operands{a, w, counts};
  q.op = OpKind::kGroupedMatmul;
  q.inputs = operands;
  q.outputs = {&c, 1};
  q.dims = {dims[0], dims[1], dims[2], 1, 0, 0};
  h.launch(q);
  workspace.reset();
  groups.reset();
}

/// Saved: weight, counts, a. Edges: a, weight [E, n, k]. The weight's gradient is one product a
/// group.
void grouped_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  SymTensor w = ctx.saved(0), counts = ctx.saved(1), a = ctx.saved(2);
  SymTensor g = contiguous(h, ctx.grad());
  if (ctx.needs(1)) {
    SymTensor gw = empty_result(h, w->shape, w->dtype);
    launch_grouped(h, g, a, counts, gw, {g->shape[0], g->shape[1], a->shape[1]});
    ctx.set(1, std::move(gw));
  }
  if (ctx.needs(0)) {
    SymTensor ga = empty_result(h, a->shape, a->dtype);
    launch_grouped(h, g, w, counts, ga, {g->shape[0], a->shape[1], g->shape[1]});
    ctx.set(0, std::move(ga));
  }
}

/// Rows of `rows`, in the weight's dtype, in groups, each times its expert's weight [n, k]
/// transposed.
SymTensor grouped(Host& h, const SymTensor& rows, const SymTensor& w, const SymTensor& counts) {
  const SymTensor a = cast(h, rows, w->dtype);
  Record r(h, grouped_backward, {&a, &w});
  if (r) {
    r->late_edge = 1;  // Through weight.transpose(-2, -1).
    r.save(w);
    r.save(counts);
    r.save(a);
  }
  SymTensor y = empty_result(h, {a->shape[0], w->shape[1]}, a->dtype);
  SymTensor wt = raw_view(h, w, {w->shape[0], w->shape[2], w->shape[1]},
                          {w->stride[0], w->stride[2], w->stride[1]}, w->offset);
  launch_grouped(h, a, wt, counts, y, {a->shape[0], w->shape[1], a->shape[1]});
  r.attach(y);
  return y;
}

}  // namespace

SymTensor activate(Host& h, std::int64_t code, const SymTensor& x) {
  switch (static_cast<Activation>(code)) {
    case Activation::kSilu:
      return unary(h, Function::kSilu, x);
    case Activation::kRelu:
      return unary(h, Function::kRelu, x);
    case Activation::kTanh:
      return unary(h, Function::kTanh, x);
    case Activation::kSigmoid:
      return unary(h, Function::kSigmoid, x);
    case Activation::kGelu:
      return unary(h, Function::kGelu, x, 0);
    default:
      return unary(h, Function::kGelu, x, 1);
  }
}

namespace {

/// act(gate) * up of x [n, 2 f].
SymTensor gate(Host& h, const SymTensor& x, std::int64_t activation) {
  std::array<SymTensor, 2> halves;
  const std::array<std::int64_t, 2> sizes{x->shape[1] / 2, x->shape[1] / 2};
  split(h, x, 1, sizes, halves);
  return mul(h, activate(h, activation, halves[0]), halves[1]);
}

/// inv_perm[perm] = arange(n).
SymTensor inverse(Host& h, const SymTensor& order) {
  SymTensor y = whole_numbers(h, order->numel), range = whole_numbers(h, order->numel);
  h.launch(OpKind::kArange, {}, {range});
  h.launch(OpKind::kScatter, {order, range}, {y}, {0.0, 0.0});
  return y;
}

}  // namespace

SymTensor index_rows(Host& h, const SymTensor& x, const SymTensor& index) {
  Record r(h, index_backward, {&x});
  if (r) {
    r->shape = x->shape;
    r.save(index);
  }
  Shape s = x->shape;
  s[0] = index->numel;
  SymTensor y = empty_result(h, s, x->dtype);
  h.launch(OpKind::kIndexSelect, {x, index}, {y}, {0.0});
  r.attach(y);
  return y;
}

namespace {

/// Locals of the library's function, dropped in their order when it returns or is left by an
/// exception.
struct ExpertLocals {
  SymTensor weights, ids, keys, order, selected, sorted_weights, histogram_keys, counts, ends, out,
      weighted, inverse_order, sum;
  ~ExpertLocals() {
    for (SymTensor* t : {&weights, &ids, &keys, &order, &selected, &sorted_weights, &histogram_keys,
                         &counts, &ends, &out, &weighted, &inverse_order, &sum}) {
      t->reset();
    }
  }
};

/// Rows for each expert, and where each expert's rows end.
void count_groups(Host& h, const SymTensor& sorted, std::int64_t experts, ExpertLocals& l) {
  l.histogram_keys = empty_result(h, sorted->shape, DType::kInt32);
  h.launch(OpKind::kCopy, {sorted}, {l.histogram_keys});
  l.counts = empty_result(h, {experts}, DType::kInt32);
  h.launch(OpKind::kHistogram, {l.histogram_keys}, {l.counts});
  l.ends = empty_result(h, {experts}, DType::kInt32);
  empty_temporary(h, scan_scratch_bytes(experts, 4));
  h.launch(OpKind::kCopy, {l.counts},
           {l.ends});  // The kernels of ours take the counts themselves, not their sums.
}

}  // namespace

SymTensor routed_experts(Host& h, const Statement& s, std::span<SymTensor> in) {
  const std::int64_t experts = s.ints[0], k = s.ints[1], tokens = in[0]->shape[0], n = tokens * k;
  const std::int64_t activation = s.ints.size() > 2 ? s.ints[2] : 0;
  const SymTensor &up_weight = h.parameter(s.parameters[0]),
                  &down_weight = h.parameter(s.parameters[1]);
  ExpertLocals l;
  l.weights = reshape(h, in[1], {n});
  l.ids = raw_view(h, contiguous(h, in[2]), {n});
  sort(h, l.ids, l.keys, l.order);
  {
    SymTensor token = whole_numbers(h, n);  // perm // k
    h.launch(OpKind::kMulScalar, {l.order}, {token}, {1.0 / static_cast<double>(k)});
    l.selected = index_rows(h, in[0], token);
  }
  l.sorted_weights = index_rows(h, l.weights, l.order);
  count_groups(h, l.keys, experts, l);
  l.out = grouped(h, l.selected, up_weight, l.ends);
  l.out = gate(h, l.out, activation);
  l.out = grouped(h, l.out, down_weight, l.ends);
  l.weighted = mul(h, l.out, view(h, l.sorted_weights, {n, 1}));
  l.inverse_order = inverse(h, l.order);
  l.weighted = index_rows(h, l.weighted, l.inverse_order);
  l.sum = sum_dim(h, view(h, l.weighted, {tokens, k, l.weighted->shape[1]}), 1, false);
  return cast(h, l.sum, in[0]->dtype);
}

}  // namespace foreshard
