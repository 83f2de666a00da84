// PowerSGD (torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py): a bucket's matrices go
// out as two thin factors, everything else whole.

#include <algorithm>
#include <utility>

#include "schedules/planner/foreach.h"
#include "schedules/planner/frameworks/ddp.h"
#include "schedules/planner/recipes/recipe.h"

namespace foreshard::ddp {
namespace {

/// A gradient as rows x columns that travels as P (rows x rank) and Q (columns x rank).
struct Factored {
  SymTensor matrix, p, q;
};

/// torch.bmm(a, b, out=c) of single matrices.
void product(Host& host, const SymTensor& a, const SymTensor& b, const SymTensor& c) {
  blas_workspace(host, false);
  const SymTensor inputs[] = {a, b};
  LaunchRequest q;
  q.op = OpKind::kMatmul;
  q.inputs = inputs;
  q.outputs = {&c, 1};
  q.dims = {c->shape[0], c->shape[1], a->shape[1], 1, 0, 0};
  host.launch(q);
}

SymTensor transposed(Host& host, const SymTensor& m) {
  const std::array<std::int64_t, 2> strides{m->stride[1], m->stride[0]};
  return host.view_as(m, Shape{m->shape[1], m->shape[0]}, strides, m->offset);
}

SymTensor columns(Host& host, const SymTensor& m, std::int64_t first, std::int64_t count) {
  const std::array<std::int64_t, 2> strides{m->stride[0], m->stride[1]};
  return host.view_as(m, Shape{m->shape[0], count}, strides, m->offset + first * m->stride[1]);
}

/// _orthogonalize_gram_schmidt. PyTorch takes torch.linalg.qr for fp32 matrices of more than two
/// columns: other kernels, as many passes over the matrix.
void orthogonalize(Host& host, const SymTensor& m, double epsilon) {
  const std::int64_t rank = m->shape[1];
  const auto temporary = [&](const Shape& shape) {
    return host.empty(shape, m->dtype, BufferCategory::kReduceTemporary);
  };
  for (std::int64_t i = 0; i < rank; ++i) {
    const SymTensor column = columns(host, m, i, 1);
    {
      const SymTensor norm = temporary({1, 1});
      host.launch(OpKind::kNorm, {column}, {norm}, {2.0});
      if (epsilon != 0) host.launch(OpKind::kAddScalar, {norm}, {norm}, {epsilon});
      host.launch(OpKind::kDiv, {column, norm}, {column});
    }
    if (i + 1 == rank) break;
    const SymTensor rest = columns(host, m, i + 1, rank - i - 1);
    SymTensor products = temporary(rest->shape);
    host.launch(OpKind::kMul, {column, rest}, {products});
    SymTensor shares = temporary({1, rest->shape[1]});
    host.launch(OpKind::kSum, {products}, {shares});
    products.reset();
    const SymTensor projection = temporary(rest->shape);
    host.launch(OpKind::kMul, {shares, column}, {projection});
    shares.reset();
    host.launch(OpKind::kSub, {rest, projection}, {rest});
  }
}

/// torch.randn on the CPU, alike on every rank, and a blocking copy.
void randomize(Host& host, const SymTensor& q) {
  host.launch(OpKind::kInitialize, {}, {q}, {-1.0});
  Copy up;
  up.bytes = Bytes(q->bytes());
  up.destination = host.id_of(q);
  up.blocks_host = true;
  host.copy(up);
}

/// Matrices of one shape after each other, shapes in the order of their first (shape_to_tensors).
void group_by_shape(std::vector<Factored>& list) {
  std::vector<Shape> shapes;
  const auto place = [&shapes](const Factored& f) {
    return std::find(shapes.begin(), shapes.end(), f.matrix->shape) - shapes.begin();
  };
  for (const Factored& f : list)
    if (place(f) == static_cast<std::ptrdiff_t>(shapes.size())) shapes.push_back(f.matrix->shape);
  std::stable_sort(list.begin(), list.end(),
                   [&](const Factored& a, const Factored& b) { return place(a) < place(b); });
}

/// A bucket's gradients by how they travel.
struct Split {
  std::vector<Factored> factored;
  TensorList whole;
  std::int64_t p_numel = 0, q_numel = 0, whole_numel = 0;
};

std::int64_t rank_of(const SymTensor& matrix, const PowerSgdOptions& o) {
  return std::min({matrix->shape[0], matrix->shape[1], o.rank});
}

/// _should_compress: matrices whose factors are so much smaller that it pays.
Split split_gradients(Host& host, const std::vector<SymTensor>& gradients,
                      const PowerSgdOptions& o) {
  Split s;
  for (const SymTensor& gradient : gradients) {
    const std::int64_t rows = gradient->shape[0], width = gradient->numel / rows;
    const std::int64_t rank = std::min({rows, width, o.rank});
    if (static_cast<double>((rows + width) * rank) * o.min_compression_rate <
        static_cast<double>(rows * width)) {
      s.factored.push_back({host.view_as(gradient, {rows, width}, gradient->offset), {}, {}});
      s.p_numel += rows * rank;
      s.q_numel += width * rank;
    } else {
      s.whole.push_back(host.view_as(gradient, {gradient->numel}, gradient->offset));
      s.whole_numel += gradient->numel;
    }
  }
  group_by_shape(s.factored);
  return s;
}

/// Each matrix's factors are views of the bucket's two memories.
void place_factors(Host& host, std::vector<Factored>& factored, const SymTensor& p_memory,
                   const SymTensor& q_memory, const PowerSgdOptions& o) {
  std::int64_t p_offset = 0, q_offset = 0;
  for (Factored& f : factored) {
    const std::int64_t rank = rank_of(f.matrix, o);
    f.p = host.view_as(p_memory, {f.matrix->shape[0], rank}, p_offset);
    f.q = host.view_as(q_memory, {f.matrix->shape[1], rank}, q_offset);
    p_offset += f.p->numel;
    q_offset += f.q->numel;
  }
}

/// What travelled whole goes back into its gradients, averaged.
void copy_back(Host& host, const SymTensor& flat, const TensorList& whole, double share) {
  host.launch(OpKind::kMulScalar, {flat}, {flat}, {share});
  std::int64_t offset = 0;
  for (const SymTensor& t : whole) {
    host.launch(OpKind::kCopy, {host.view_as(flat, t->shape, offset)}, {t});
    offset += t->numel;
  }
}

SymTensor bucket_tensor(Host& host, const Bucket& bucket, std::int64_t numel) {
  return host.empty({numel}, bucket.buffer->dtype, BufferCategory::kBucket, bucket.unit);
}

/// Adds what the iteration before left out, and keeps the sum to see what this one leaves out.
SymTensor keep_for_feedback(Host& host, Bucket& bucket) {
  const SymTensor& input = bucket.buffer;
  if (bucket.error) {
    host.launch(OpKind::kAddInPlace, {input, bucket.error}, {input});
  } else {
    bucket.error = bucket_tensor(host, bucket, input->numel);
    host.launch(OpKind::kFill, {}, {bucket.error}, {0.0});
  }
  SymTensor before = bucket_tensor(host, bucket, input->numel);
  host.launch(OpKind::kCopy, {input}, {before});
  return before;
}

}  // namespace

/// The callbacks of the hook's futures run at once on the host, on streams of a pool (here one),
/// and the last of them waits for the whole device.
void Ddp::run_power_sgd(Host& host, Bucket& bucket) {
  const PowerSgdOptions& o = options_.power_sgd;
  const bool compress = power_sgd_iteration_ >= o.start_iteration;
  if (&bucket == &buckets_.back()) ++power_sgd_iteration_;
  if (!compress) return run_average(host, bucket);

  const SymTensor& input = bucket.buffer;
  const double share = 1.0 / static_cast<double>(world_);
  const SymTensor before = o.error_feedback ? keep_for_feedback(host, bucket) : SymTensor();
  Split s = split_gradients(host, bucket.views, o);
  const TensorList flat{bucket_tensor(host, bucket, s.whole_numel)};
  if (!s.whole.empty()) launch_lists(host, OpKind::kCat, {&s.whole}, {&flat}, {0.0});
  const bool fresh = !o.warm_start || !bucket.p_memory;
  if (fresh) {
    bucket.p_memory = bucket_tensor(host, bucket, s.p_numel);
    bucket.q_memory = host.empty({s.q_numel}, input->dtype, BufferCategory::kBucket, bucket.unit,
                                 host.program().intern("power_sgd.q"));
  }
  place_factors(host, s.factored, bucket.p_memory, bucket.q_memory, o);
  for (const Factored& f : s.factored) {
    if (fresh) randomize(host, f.q);
    orthogonalize(host, f.q, o.orthogonalization_epsilon);
  }
  for (const Factored& f : s.factored) product(host, f.matrix, f.q, f.p);
  const auto reduce = [&](const SymTensor& t) {
    return collective(host, CollectiveKind::kAllReduce, t, t, bucket.unit);
  };
  const EventId sent = reduce(flat[0]);

  if (upcast_stream_ == 0) upcast_stream_ = host.program().add_stream("hook", 0);
  const StreamIndex compute = host.stream();
  const StreamGuard on_hook_stream(host, upcast_stream_);
  const auto await = [&](EventId done) { host.wait_event(upcast_stream_, done); };
  await(sent);
  copy_back(host, flat[0], s.whole, share);
  await(reduce(bucket.p_memory));
  for (const Factored& f : s.factored) orthogonalize(host, f.p, o.orthogonalization_epsilon);
  for (const Factored& f : s.factored) product(host, transposed(host, f.matrix), f.p, f.q);
  await(reduce(bucket.q_memory));
  host.launch(OpKind::kMulScalar, {bucket.q_memory}, {bucket.q_memory}, {share});
  for (const Factored& f : s.factored) product(host, f.p, transposed(host, f.q), f.matrix);
  host.program().sync_device();
  if (o.error_feedback) {
    SymTensor error = bucket_tensor(host, bucket, input->numel);
    host.launch(OpKind::kSub, {before, input}, {error});
    bucket.error = std::move(error);
    // `before` goes back to its pool with the callback. PyTorch lets the next kernel of backward
    // write there while the difference is still being taken.
    host.wait_stream(compute, upcast_stream_);
  }
  if (!o.warm_start) {
    bucket.p_memory.reset();
    bucket.q_memory.reset();
  }
  bucket.reduced = host.record_event(upcast_stream_);
  bucket.result = input;
}

}  // namespace foreshard::ddp
