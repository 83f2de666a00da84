// The sharded optimizer's setup, gradients and clipping.

#include "schedules/planner/frameworks/sharded_optimizer.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/integers.h"
#include "schedules/planner/clip.h"
#include "schedules/planner/host/host_time.h"

namespace foreshard {

/// Even shares of the update and of the lists stand for whole tensors and for each rank's own list:
/// right in time and memory, not in numbers.
void ShardedOptimizer::refuse_to_run() const {
  for (const auto& [given, option] : {std::pair(options_.owners_broadcast, "owners-broadcast"),
                                      std::pair(options_.gather_lists, "gather-lists")}) {
    if (given)
      throw InputError(Issue{"--sharded-" + std::string(option), "",
                             "is planned for simulation, not to be run", "--executable no"});
  }
}

void ShardedOptimizer::initialize(Host& host) {
  if (host.options().executable) refuse_to_run();
  data_group_ = host.add_group("data", world_, 1);
  shard_group_ = shard_ == world_ ? data_group_ : host.add_group("shard", shard_, 1);
  stream_ = host.program().add_stream("communicator", 0);
  std::vector<LocalParameter> whole;
  materialize_whole(host, whole);
  for (const LocalParameter& p : whole) {
    parameters_.push_back(p.local);
    accumulators_.push_back(host.grad_accumulator(p.local));
    host.register_accumulate_hook(accumulators_.back(),
                                  static_cast<std::uint32_t>(parameters_.size() - 1));
    const SymTensor own = part(host, p.local);
    SymTensor master = host.empty(own->shape, DType::kFloat32, BufferCategory::kShardedParameter);
    host.launch(OpKind::kCopy, {own}, {master});
    masters_.push_back({p.id, std::move(master), own->numel});
  }
  if (options_.accumulate_in_float32) allocate_sums(host);
}

/// Ranks that own as many elements of every tensor share a program.
std::uint64_t ShardedOptimizer::rank_class(const Model& model, const ParallelConfig&,
                                           std::int64_t rank) const {
  std::set<std::int64_t> larger;  // Remainders: how many first ranks own one element more.
  for (const ParameterDef& p : model.parameters) {
    std::int64_t numel = 1;
    for (const std::int64_t n : p.shape) numel *= n;
    if (rank % shard_ < numel % shard_) larger.insert(numel % shard_);
  }
  return larger.size();
}

void ShardedOptimizer::allocate_sums(Host& host) {
  std::int64_t numel = 0;
  for (const SymTensor& p : parameters_) numel += p->numel;
  all_sums_ = host.empty({numel}, DType::kFloat32, BufferCategory::kUnshardedGradient);
  host.launch(OpKind::kFill, {}, {all_sums_}, {0.0});
  std::int64_t offset = 0;
  for (const SymTensor& p : parameters_) {
    sums_.push_back(host.view_as(all_sums_, p->shape, offset));
    first_.push_back(offset);
    offset += p->numel;
  }
  if (wrapped_in_ddp())
    ddp_buckets_ = host.empty({numel}, parameters_[0]->dtype, BufferCategory::kBucket);
}

void ShardedOptimizer::add_to_sums(Host& host, std::size_t i, const SymTensor& grad) {
  host.launch(OpKind::kAddInPlace, {sums_[i], grad}, {sums_[i]});
}

/// torch/csrc/distributed/c10d/reducer.cpp without gradient_as_bucket_view (nanotron's default):
/// the gradient is copied into its bucket, where the hook finds it ...
void ShardedOptimizer::add_through_bucket(Host& host, std::size_t i) {
  const SymTensor& grad = parameters_[i]->grad;
  const SymTensor place = host.view_as(ddp_buckets_, grad->shape, first_[i]);
  host.launch(OpKind::kCopy, {grad}, {place});
  add_to_sums(host, i, place);
}

/// ... and copied back when backward is over (finalize_bucket_dense).
void ShardedOptimizer::copy_buckets_back(Host& host) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    SymTensor& grad = parameters_[i]->grad;
    if (!grad) continue;
    host.launch(OpKind::kCopy, {host.view_as(ddp_buckets_, grad->shape, first_[i])}, {grad});
    grad.reset();
  }
}

void ShardedOptimizer::collective(Host& host, CollectiveKind kind, GroupId group,
                                  const SymTensor& input, const SymTensor& output, ReduceOp op,
                                  OneOfRanks one) {
  Collective c;
  c.kind = kind;
  c.root = static_cast<std::int32_t>(one.root);
  c.launched_together = one.launched_together;
  const bool reduces = kind != CollectiveKind::kAllGather && kind != CollectiveKind::kBroadcast;
  c.op = reduces ? op : ReduceOp::kNone;
  c.dtype = input->dtype;
  c.stream = stream_;
  c.group = group;
  c.input = host.id_of(input);
  c.output = host.id_of(output);
  c.bytes = Bytes(std::max(input->bytes(), output->bytes()));
  host.collective(c);
}

void ShardedOptimizer::collective_for_each_part(Host& host, CollectiveKind kind, GroupId group,
                                                const SymTensor& whole) {
  for (std::int64_t r = 0; r < shard_; ++r) {
    const SymTensor own = part(host, whole, r);
    if (own->numel > 0)
      collective(host, kind, group, own, own, ReduceOp::kAverage, {r, Bytes(whole->bytes())});
  }
}

// ----------------------------------------------------------------------------------------------
// gradients

void ShardedOptimizer::on_accumulated(Host& host, std::uint32_t index) {
  spend_host(host, kDdpHookUs, "gradient hooks");
  const std::int64_t bytes = parameters_[index]->grad->bytes();
  if (!sync_ || options_.reduce_after_backward) return;
  if (wrapped_in_ddp()) add_through_bucket(host, index);
  const double most = options_.bucket_mib * 1048576;
  const bool flat = !options_.one_collective_per_tensor;
  // InternEvo reduces a bucket when the next gradient would not fit, DDP when it is full.
  if (flat && static_cast<double>(bucket_bytes_ + bytes) > most) flush(host);
  bucket_.push_back(index);
  bucket_bytes_ += bytes;
  if (!flat && static_cast<double>(bucket_bytes_) >= most) flush(host);
}

void ShardedOptimizer::flush(Host& host) {
  if (bucket_.empty()) return;
  if (options_.one_collective_per_tensor) {
    host.wait_stream(stream_, host.stream());
    for (const std::size_t i : bucket_) {
      const SymTensor& g = gradient(i);
      if (!options_.reduce_scatter)
        collective(host, CollectiveKind::kAllReduce, data_group_, g, g);
      else if (divides(g))
        collective(host, CollectiveKind::kReduceScatter, data_group_, g, part(host, g));
      else
        collective_for_each_part(host, CollectiveKind::kReduce, data_group_, g);
    }
  } else {
    TensorList gradients;
    std::int64_t numel = 0;
    for (const std::size_t i : bucket_) {
      const SymTensor& g = gradient(i);
      gradients.push_back(host.view_as(g, {g->numel}, g->offset));
      numel += g->numel;
    }
    const TensorList flat{host.empty({numel}, gradients[0]->dtype, BufferCategory::kBucket)};
    launch_lists(host, OpKind::kCat, {&gradients}, {&flat}, {0.0});
    host.wait_stream(stream_, host.stream());
    collective(host, CollectiveKind::kAllReduce, data_group_, flat[0], flat[0]);
    unflatten(host);  // Backward waits for the bucket before: _reduce_grads_by_rank.
    in_flight_.push_back({bucket_, flat[0], host.record_event(stream_)});
  }
  if (options_.one_hardware_queue) {
    if (bucket_before_) host.wait_event(host.stream(), *bucket_before_);
    bucket_before_ = host.record_event(stream_);
  }
  bucket_.clear();
  bucket_bytes_ = 0;
}

void ShardedOptimizer::unflatten(Host& host) {
  for (const Flat& f : in_flight_) {
    host.wait_event(host.stream(), f.reduced);
    TensorList views, gradients;
    std::int64_t offset = 0;
    for (const std::size_t i : f.parameters) {
      const SymTensor& g = gradient(i);
      views.push_back(host.view_as(f.buffer, g->shape, offset));
      gradients.push_back(g);
      offset += g->numel;
    }
    launch_lists(host, OpKind::kForeachCopy, {&views}, {&gradients});
  }
  in_flight_.clear();
}

void ShardedOptimizer::end_micro_batch(Host& host) {
  host.set_phase(Phase::kBackward);
  if (sync_ && wrapped_in_ddp()) {
    copy_buckets_back(host);
  } else if (options_.accumulate_in_float32) {  // FP32GradientAccumulator.backward
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      SymTensor& grad = parameters_[i]->grad;
      if (grad) add_to_sums(host, i, grad);
      grad.reset();
    }
  }
  if (!sync_) return;
  if (options_.reduce_after_backward) {
    host.wait_stream(stream_, host.stream());
    collective(host, CollectiveKind::kAllReduce, data_group_, all_sums_, all_sums_);
  }
  flush(host);
  bucket_before_.reset();
  unflatten(host);
  host.wait_stream(host.stream(), stream_);
  set_shard_gradients(host);
}

void ShardedOptimizer::set_shard_gradients(Host& host) {
  TensorList parts, wide;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (options_.accumulate_in_float32) {
      masters_[i].local->grad = part(host, sums_[i]);
      continue;
    }
    if (!parameters_[i]->grad) continue;  // Nothing of it reaches the loss.
    parts.push_back(part(host, parameters_[i]->grad));
    wide.push_back(
        host.empty(parts.back()->shape, DType::kFloat32, BufferCategory::kShardedGradient));
    masters_[i].local->grad = wide.back();
  }
  if (!parts.empty()) launch_lists(host, OpKind::kForeachCopy, {&parts}, {&wide});
}

/// Each rank has the final gradients of its part only: the squares of the parts' norms are summed
/// over the ranks, then the root (InternEvo: compute_norm of internlm/solver/optimizer/utils.py;
/// nanotron: clip_grad_norm of src/nanotron/optim/clip_grads.py).
void ShardedOptimizer::clip_gradients(Host& host, double max_norm) {
  // nanotron takes the norm of whole fp32 sums and scales them, sharded or not (clip_grads.py), so
  // that no rank needs another's.
  const bool whole = options_.accumulate_in_float32 && !options_.reduce_scatter;
  TensorList gradients;
  if (whole) gradients = sums_;
  for (const LocalParameter& p : masters_) {
    if (!whole && p.local->grad && p.local->grad->numel > 0) gradients.push_back(p.local->grad);
  }
  SymTensor norm;
  {
    TensorList norms = foreach_norms(host, gradients);
    norm = vector_norm(host, stack_scalars(host, norms));
  }
  if (shard_ > 1 && !whole) {
    const SymTensor square = host.empty(Shape(), norm->dtype, BufferCategory::kClipTemporary);
    host.launch(OpKind::kPow, {norm}, {square}, {2.0});
    host.wait_stream(stream_, host.stream());
    collective(host, CollectiveKind::kAllReduce, shard_group_, square, square, ReduceOp::kSum);
    host.wait_stream(host.stream(), stream_);
    norm = host.empty(Shape(), norm->dtype, BufferCategory::kClipTemporary);
    host.launch(OpKind::kSqrt, {square}, {norm});
  }
  observe_norm(host, norm);
  scale_gradients(host, gradients, norm, max_norm);
}

std::unique_ptr<Framework> make_sharded_optimizer(const ParallelConfig& config) {
  return std::make_unique<ShardedOptimizer>(config);
}

}  // namespace foreshard
