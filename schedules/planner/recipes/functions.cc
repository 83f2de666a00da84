// One case per function of a forward program: unpacks the statement and calls the building blocks.

#include <fmt/format.h>

#include <algorithm>

#include "models/model_checks.h"
#include "models/ops/op_flops.h"
#include "schedules/planner/host/host_impl.h"
#include "schedules/planner/host/host_refusal.h"
#include "schedules/planner/recipes/masks.h"
#include "schedules/planner/recipes/recipe.h"
#include "schedules/planner/recipes/recipes.h"
#include "schedules/planner/recipes/special.h"

namespace foreshard {
namespace {

static_assert(kMostDimensions == kMaxRank, "graph files state shapes of tensors");

/// Everything one statement may ask for.
struct Call {
  Host& h;
  const Module& module;
  const Statement& s;
  std::span<SymTensor> in, out;

  std::int64_t i(std::size_t k, std::int64_t fallback = 0) const {
    return k < s.ints.size() ? s.ints[k] : fallback;
  }
  double f(std::size_t k, double fallback = 0) const {
    return k < s.floats.size() ? s.floats[k] : fallback;
  }
  /// Of a tensor's dimensions; what none has stays so.
  int dim(std::size_t k) const {
    return static_cast<int>(std::clamp<std::int64_t>(i(k), -kMaxRank - 2, kMaxRank + 2));
  }
  SymTensor parameter(std::size_t k) const {
    if (k >= s.parameters.size()) return {};
    const SymTensor& p = h.parameter(s.parameters[k]);
    const ParameterDef& def = h.model().at(s.parameters[k]);
    if (!p || p->shape != Shape(std::span<const std::int64_t>(def.shape))) {
      throw HostRefusal(def.name, "is used while it is sharded",
                        "wrap a module whose forward runs");
    }
    return p;
  }
};

/// ints of view and reshape: 0 keeps the input's size, -1 (once) is what remains.
Shape target_shape(const SymTensor& x, std::span<const std::int64_t> ints) {
  Shape s(ints);
  std::int64_t known = 1;
  int open = -1;
  for (int d = 0; d < s.rank; ++d) {
    if (s[d] == 0 && d < x->shape.rank) s[d] = x->shape[d];
    if (s[d] == -1)
      open = d;
    else
      known *= s[d];
  }
  if (open >= 0) s[open] = known > 0 ? x->numel / known : 0;
  return s;
}

void do_split(const Call& c) {
  split(c.h, c.in[0], c.dim(0), std::span(c.s.ints).subspan(1), c.out);
}

/// torch.chunk: parts of equal size, the last one smaller.
void do_chunk(const Call& c) {
  const int dim = static_cast<int>(c.in[0]->shape.index(c.dim(0)));
  const std::int64_t size = c.in[0]->shape[dim], part = (size + c.i(1) - 1) / c.i(1);
  std::vector<std::int64_t> sizes;
  for (std::size_t k = 0; k < c.out.size(); ++k)
    sizes.push_back(std::min(part, size - static_cast<std::int64_t>(k) * part));
  split(c.h, c.in[0], dim, sizes, c.out);
}

/// q, k, v as [b, s, heads * d]: split into heads, attend, put together (ints: heads, kv heads,
/// causal).
SymTensor packed_attention(const Call& c) {
  Host& h = c.h;
  const auto heads = [&](const SymTensor& t, std::int64_t n) {
    SymTensor v = view(h, t, {t->shape[0], t->shape[1], n, t->shape[2] / n});
    return transpose(h, v, 1, 2);
  };
  const std::int64_t b = c.in[0]->shape[0], s = c.in[0]->shape[1], width = c.in[0]->shape[2];
  SymTensor q = heads(c.in[0], c.i(0)), k = heads(c.in[1], c.i(1)), v = heads(c.in[2], c.i(1));
  SymTensor o = attention(h, q, k, v, {}, c.i(2) != 0, 0, 0);
  q.reset();
  k.reset();
  v.reset();
  SymTensor t = transpose(h, o, 1, 2);
  return reshape(h, t, {b, s, width});
}

SymTensor buffer(const Call& c, std::int64_t index) { return c.h.buffer(c.module, index); }

SymTensor repeat_kv(const Call& c) {
  const SymTensor& x = c.in[0];
  const std::int64_t n = c.i(0);
  if (n == 1) return x;
  SymTensor five = view(c.h, x, {x->shape[0], x->shape[1], 1, x->shape[2], x->shape[3]});
  SymTensor wide = expand(c.h, five, {x->shape[0], x->shape[1], n, x->shape[2], x->shape[3]});
  return reshape(c.h, wide, {x->shape[0], x->shape[1] * n, x->shape[2], x->shape[3]});
}

/// What a module that reads `parameter.dtype` sees now; a sharded parameter has its own.
DType dtype_now(const Host& h, ParameterId id) {
  const SymTensor& p = h.parameter(id);
  return p ? p->dtype : h.model().at(id).dtype;
}

SymTensor do_cast(const Call& c) {
  if (c.i(0) != 0 && c.h.impl().autocast) return c.in[0];
  // FSDP2's CPUOffloadPolicy leaves buffers on the host; one of rank 0 is used from there.
  const ParallelConfig& config = c.h.config();
  if (c.in[0]->shape.rank == 0 && config.framework == FrameworkKind::kFsdp2 &&
      config.offload == OffloadKind::kParameters)
    return c.in[0];
  if (c.in.size() > 1) return cast(c.h, c.in[0], c.in[1]->dtype);
  return cast(c.h, c.in[0], c.s.parameters.empty() ? c.s.dtype : dtype_now(c.h, c.s.parameters[0]));
}

/// Of a causal attention's product, which its ints name; 0: nothing is hidden.
std::int64_t seen_flops(const Call& c) {
  if (c.i(0) == 0) return 0;
  const SymTensor &a = c.in[0], &b = c.in[1];
  const bool scores = c.i(0) == 1;
  const std::int64_t queries = a->shape[-2], keys = scores ? b->shape[-1] : a->shape[-1];
  const std::int64_t inner = scores ? a->shape[-1] : b->shape[-1];
  return saturated_product(
      {2, a->numel / (queries * a->shape[-1]), attended_pairs(queries, keys, true, c.i(1)), inner});
}

SymTensor dtype_of(const Call& c) {
  return c.h.unallocated(Shape{0}, c.in[0]->dtype, 0, result_category(c.h));
}

SymTensor arange(const Call& c) {
  const std::int64_t n = c.in.empty() ? c.i(0) : c.in[0]->shape[-1];
  SymTensor y = empty_result(c.h, {n}, DType::kInt64);
  c.h.launch(OpKind::kArange, {}, {y});
  if (c.in.empty()) return y;
  return c.i(0) != 0 ? y : raw_view(c.h, y, {1, n});
}

SymTensor cut_like(const Call& c) {
  // ints: dimension of x, dimension of y (the same if absent).
  return slice(c.h, c.in[0], c.dim(0), 0, c.in[1]->shape[c.dim(c.s.ints.size() > 1 ? 1 : 0)]);
}

SymTensor expand_like(const Call& c) {
  Shape s = c.in[0]->shape;
  s[c.dim(0)] = c.in[1]->shape[c.dim(0)];
  return expand(c.h, c.in[0], s);
}

SymTensor transpose_of(const Call& c) { return transpose(c.h, c.in[0], c.dim(0), c.dim(1)); }

SymTensor unsqueeze(const Call& c) {
  const SymTensor& x = c.in[0];
  Shape s = x->shape;
  s.append(1);
  const int dim = static_cast<int>(s.index(c.dim(0)));
  for (int d = s.rank - 1; d > dim; --d) s[d] = s[d - 1];
  s[dim] = 1;
  return view(c.h, x, s);
}

/// Layers with parameters, attention, products and what stands between them in a block. Null: none of these.
SymTensor layer(const Call& c) {
  Host& h = c.h;
  const std::span<SymTensor> in = c.in;
  switch (c.s.function) {
    case Function::kLinear:
      if (in.size() > 1)
        return autocast_linear(h, in[0], in[1], in.size() > 2 ? in[2] : SymTensor());
      return autocast_linear(h, in[0], c.parameter(0), c.parameter(1));
    case Function::kConv1D:
      return autocast_conv1d(h, in[0], c.parameter(0), c.parameter(1));
    case Function::kEmbedding:
      return embedding(h, in[0], c.parameter(0));
    case Function::kLayerNorm:
      return autocast_layer_norm(h, in[0], c.parameter(0), c.parameter(1), c.f(0, 1e-5));
    case Function::kRmsNorm:
      return autocast_rms_norm(h, in[0], c.parameter(0), c.f(0, 1e-5));
    case Function::kAttention:
      return autocast_attention(h, in[0], in[1], in[2], in.size() > 3 ? in[3] : SymTensor(),
                                c.i(0) != 0, c.f(0), c.f(1), c.i(1));
    case Function::kPackedAttention:
      return packed_attention(c);
    case Function::kFusedLinearCrossEntropy:
      return fused_linear_cross_entropy(h, in[0], in[1], c.parameter(0));
    case Function::kSoftmax:
      return softmax(h, in[0], c.i(0) != 0 ? autocast_sum_dtype(h, in[0]->dtype) : c.s.dtype);
    case Function::kDropout:
      return dropout(h, in[0], c.f(0));
    case Function::kMatmul:
      return autocast_matmul(h, in[0], in[1], seen_flops(c));
    case Function::kRepeatKv:
      return repeat_kv(c);
    case Function::kExperts:
      return dense_experts(h, in[0], c.parameter(0), c.parameter(1), c.parameter(2));
    default:
      return {};
  }
}

/// Element-wise functions, sums and norms of elements, casts. Null: none of these.
SymTensor element_wise(const Call& c) {
  Host& h = c.h;
  const std::span<SymTensor> in = c.in;
  switch (c.s.function) {
    case Function::kAdd:
      return add(h, in[0], in[1]);
    case Function::kSub:
      return sub(h, in[0], in[1]);
    case Function::kMul:
      return mul(h, in[0], in[1]);
    case Function::kDiv:
      return div(h, in[0], in[1]);
    case Function::kPowScalar:
    case Function::kRsqrt:
    case Function::kExp:
    case Function::kSoftplus:
      return unary(h, c.s.function, autocast_float(h, in[0]), c.f(0));
    case Function::kMulScalar:
      if (in.size() > 1) return mul_number(h, in[0], in[1], c.f(0));
      [[fallthrough]];
    case Function::kNeg:
    case Function::kAddScalar:
    case Function::kSilu:
    case Function::kRelu:
    case Function::kSigmoid:
    case Function::kTanh:
      return unary(h, c.s.function, in[0], c.f(0));
    case Function::kClamp:
      return clamp(h, in[0], c.f(0), c.f(1));
    case Function::kGelu:
      return unary(h, Function::kGelu, in[0], static_cast<double>(c.i(0)));
    case Function::kMeanLast:
      return mean_last(h, in[0]);
    case Function::kVectorNorm:
      return vector_norm(h, in[0], c.f(0));
    case Function::kSumDim:
      return sum_dim(h, in[0], c.dim(0), c.i(1) != 0);
    case Function::kCast:
      return do_cast(c);
    case Function::kDtypeOf:
      return dtype_of(c);
    case Function::kAddParameter:
      return add(h, in[0], sum_all(h, c.parameter(0)));
    case Function::kAddBuffer:
      return add(h, in[0], buffer(c, c.i(0)));
    default:
      return {};
  }
}

/// The same elements in another shape, order or selection. Null: none of these.
SymTensor rearranged(const Call& c) {
  Host& h = c.h;
  const std::span<SymTensor> in = c.in;
  switch (c.s.function) {
    case Function::kView:
      return view(h, in[0], target_shape(in[0], c.s.ints));
    case Function::kReshape:
      return reshape(h, in[0], target_shape(in[0], c.s.ints));
    case Function::kViewLike:
      return view(h, in[0], in[1]->shape);
    case Function::kTranspose:
      return transpose_of(c);
    case Function::kContiguous:
      return contiguous(h, in[0]);
    case Function::kClone:
      return h.clone(in[0]);
    case Function::kPad:
      return pad_end(h, in[0], c.dim(0), c.i(1));
    case Function::kExpand:
      return expand(h, in[0], Shape(std::span<const std::int64_t>(c.s.ints)));
    case Function::kExpandLike:
      return expand_like(c);
    case Function::kUnsqueeze:
      return unsqueeze(c);
    case Function::kSlice:
      return slice(h, in[0], c.dim(0), c.i(1), c.i(2, -1), c.i(3, 1));
    case Function::kSliceLike:
      return cut_like(c);
    case Function::kSelect:
      return select(h, in[0], c.dim(0), c.i(1));
    case Function::kCat:
      return cat(h, in, c.dim(0));
    case Function::kDetach:
      return h.detach(in[0]);
    default:
      return {};
  }
}

/// What no other tensor is computed from: parameters, buffers, positions. Null: none of these.
SymTensor without_input(const Call& c) {
  Host& h = c.h;
  const std::span<SymTensor> in = c.in;
  switch (c.s.function) {
    case Function::kParameter:
      return c.parameter(0);
    case Function::kBuffer:
      return buffer(c, c.i(0));
    case Function::kArange:
      return arange(c);
    case Function::kPositionIds:
      return position_ids(h, in[0]->shape[1]);
    default:
      return {};
  }
}

/// Functions with one result.
SymTensor single(const Call& c) {
  for (const auto recipe : {layer, element_wise, rearranged, without_input})
    if (SymTensor y = recipe(c)) return y;
  throw InputError(Issue{"", c.module.name,
                         "function '" + std::string(name_of(c.s.function)) +
                             "' cannot be planned yet",
                         "models without it"});
}

}  // namespace

namespace {

void dispatch(Host& host, const Module& module, const Statement& s, std::span<SymTensor> in,
              std::span<SymTensor> out) {
  const Call c{host, module, s, in, out};
  switch (s.function) {
    case Function::kSplit:
      do_split(c);
      return;
    case Function::kChunk:
      do_chunk(c);
      return;
    case Function::kAssign:
      std::copy(in.begin(), in.end(), out.begin());
      return;
    default:
      if (run_special(host, module, s, in, out)) return;
      out[0] = single(c);
  }
}

/// A cast takes a parameter's dtype alone.
bool reads_parameters(Function f) { return f != Function::kCast && f != Function::kDtypeOf; }

}  // namespace

void run_function(Host& host, const Module& module, const Statement& s, std::span<SymTensor> in,
                  std::span<SymTensor> out) {
  if (host.grad_enabled() && reads_parameters(s.function)) {
    HostImpl& impl = host.impl();
    const ScopeId anywhere(static_cast<std::uint32_t>(impl.ran_backward.size() - 1));
    for (const ParameterId p : s.parameters)
      impl.read_in[p.value] = s.function == Function::kParameter ? anywhere : host.scope();
  }
  try {
    dispatch(host, module, s, in, out);
  } catch (const DimensionError& e) {
    throw HostRefusal(
        module.name.empty() ? "root" : module.name,
        fmt::format("{} makes or asks for {}", name_of(s.function), e.issues()[0].message),
        e.issues()[0].hint);
  }
}

}  // namespace foreshard
