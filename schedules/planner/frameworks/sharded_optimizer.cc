// Data parallelism with a sharded optimizer (ZeRO stage 1) as trainers write it themselves: whole
// 16-bit parameters on every rank, gradients reduced in buckets behind backward, each rank updates
// its part in fp32 and sends it to the others. Sources: nanotron
// src/nanotron/optim/{gradient_accumulator,zero}.py; InternEvo
// internlm/solver/optimizer/hybrid_zero_optim.py.

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/integers.h"
#include "schedules/planner/clip.h"
#include "schedules/planner/frameworks/framework.h"
#include "schedules/planner/host/host_time.h"

namespace foreshard {
namespace {

/// Microseconds of the reference CPU (docs/host-time.md): a view, a cat, a copy; 1.2 times the
/// tight loop, as measured for the optimizer's calls in real models.
constexpr double kViewUs = 1.2 * 0.83, kCatUs = 1.2 * 1.9, kCopyUs = 1.2 * 1.75;
/// Tensors that one kernel of torch.cat takes.
constexpr std::int64_t kMostCatInputs = 128;

class ShardedOptimizer final : public Framework {
 public:
  explicit ShardedOptimizer(const ParallelConfig& config)
      : options_(config.sharded_optimizer), world_(config.world()), shard_(config.shard) {
    if (options_.reduce_after_backward && !options_.accumulate_in_float32) {
      throw InputError(Issue{"", "reduce_after_backward", "reduces the fp32 sums",
                             "also accumulate_in_float32"});
    }
    if (options_.reduce_scatter && config.replicate > 1) {
      throw InputError(Issue{"", "replicate", "gradients that are scattered have no replicas",
                             "shard alone, or all-reduce"});
    }
  }

  void initialize(Host& host) override;
  std::uint64_t rank_class(const Model& model, const ParallelConfig& config,
                           std::int64_t rank) const override;
  std::span<const LocalParameter> local_parameters() const override { return masters_; }
  void begin_micro_batch(Host&, std::int64_t, bool sync) override { sync_ = sync; }
  void on_accumulated(Host& host, std::uint32_t index) override;
  void end_micro_batch(Host& host) override;
  void clip_gradients(Host& host, double max_norm) override;
  void after_optimizer(Host& host) override;
  void zero_gradients(Host& host) override;

 private:
  struct Flat {
    std::vector<std::size_t> parameters;
    SymTensor buffer;
    EventId reduced;
  };

  void refuse_to_run() const;
  void allocate_sums(Host& host);
  void flush(Host& host);
  void collective(Host& host, CollectiveKind kind, GroupId group, const SymTensor& input,
                  const SymTensor& output, ReduceOp op = ReduceOp::kAverage, std::int64_t root = 0);
  void unflatten(Host& host);
  void set_shard_gradients(Host& host);
  void send_parameters(Host& host);
  void gather_through_lists(Host& host);
  void add_to_sums(Host& host, std::size_t i, const SymTensor& grad);
  void add_through_bucket(Host& host, std::size_t i);
  void copy_buckets_back(Host& host);
  /// The model is wrapped in DDP, whose communication hook adds to the fp32 sums.
  bool wrapped_in_ddp() const {
    return options_.accumulate_in_float32 && !options_.reduce_after_backward;
  }
  /// Elements that a rank of the shard group owns of a tensor: the first ones have one more where
  /// they do not divide (nanotron: ZeroDistributedOptimizer._partition_parameters).
  std::int64_t part_size(std::int64_t numel, std::int64_t index) const {
    return numel / shard_ + (index < numel % shard_ ? 1 : 0);
  }
  bool divides(const SymTensor& t) const { return t->numel % shard_ == 0; }
  std::int64_t own_index(const Host& host) const { return host.options().rank % shard_; }
  /// A rank's part of a whole tensor, flat.
  SymTensor part(Host& host, const SymTensor& whole, std::int64_t index) const {
    const std::int64_t start =
        whole->numel / shard_ * index + std::min(index, whole->numel % shard_);
    return host.view_as(whole, {part_size(whole->numel, index)}, whole->offset + start);
  }
  SymTensor part(Host& host, const SymTensor& whole) const {
    return part(host, whole, own_index(host));
  }
  /// A collective for each rank's part, as c10d issues where the parts differ
  /// (ProcessGroupNCCL::allgather and reduce_scatter of uneven lists: broadcasts, reductions).
  void collective_for_each_part(Host& host, CollectiveKind kind, GroupId group,
                                const SymTensor& whole);
  const SymTensor& gradient(std::size_t i) const {
    return options_.accumulate_in_float32 ? sums_[i] : parameters_[i]->grad;
  }

  ShardedOptimizerOptions options_;
  std::int64_t world_, shard_;
  GroupId data_group_, shard_group_;
  StreamIndex stream_ = 0;
  bool sync_ = true;
  std::vector<LocalParameter> masters_;  ///< fp32 parts that the optimizer updates.
  std::vector<SymTensor> parameters_, sums_;
  SymTensor all_sums_;               ///< One buffer; sums_ are its views.
  SymTensor ddp_buckets_;            ///< The reducer's 16-bit buckets, where DDP wraps the model.
  std::vector<std::int64_t> first_;  ///< Element of each parameter in the sums and buckets.
  std::vector<Ref<AutogradNode>> accumulators_;
  std::vector<std::size_t> bucket_;
  std::int64_t bucket_bytes_ = 0;
  std::optional<EventId> bucket_before_;  ///< Its collectives are done; one hardware queue.
  std::vector<Flat> in_flight_;
};

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
                                  std::int64_t root) {
  Collective c;
  c.kind = kind;
  c.root = static_cast<std::int32_t>(root);
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
    if (own->numel > 0) collective(host, kind, group, own, own, ReduceOp::kAverage, r);
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

// ----------------------------------------------------------------------------------------------
// parameters

void ShardedOptimizer::after_optimizer(Host& host) {
  TensorList updated, places;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    updated.push_back(masters_[i].local);
    places.push_back(part(host, parameters_[i]));
    masters_[i].local->grad.reset();
  }
  launch_lists(host, OpKind::kForeachCopy, {&updated}, {&places});
  updated.clear();
  places.clear();
  if (shard_ > 1) send_parameters(host);
}

void ShardedOptimizer::send_parameters(Host& host) {
  if (options_.gather_lists) return gather_through_lists(host);
  host.wait_stream(stream_, host.stream());
  if (options_.owners_broadcast) {
    // Owners hold whole tensors, as even a load as these allow: what each owns goes out in one
    // broadcast.
    const auto tensors = static_cast<std::int64_t>(parameters_.size());
    const std::int64_t owners = std::min(shard_, tensors);
    for (std::int64_t o = 0; o < owners; ++o) {
      Collective c;
      c.kind = CollectiveKind::kBroadcast;
      c.stream = stream_;
      c.group = shard_group_;
      c.root = static_cast<std::int32_t>(o);
      c.dtype = parameters_[0]->dtype;
      for (std::int64_t i = o; i < tensors; i += owners)
        c.bytes += Bytes(parameters_[static_cast<std::size_t>(i)]->bytes());
      c.input = c.output = host.id_of(parameters_[static_cast<std::size_t>(o)]);
      host.collective(c);
    }
  } else {
    for (const SymTensor& p : parameters_) {
      if (divides(p))
        collective(host, CollectiveKind::kAllGather, shard_group_, part(host, p), p);
      else
        collective_for_each_part(host, CollectiveKind::kBroadcast, shard_group_, p);
    }
  }
  host.wait_stream(host.stream(), stream_);
}

/// nanotron's all_gather_coalesced (distributed.py): the present parts of all tensors are copied
/// into one flat tensor for each rank, c10d gathers into another buffer and copies the flat tensors
/// out, and each part of each tensor is copied back. Flat tensors of different sizes are broadcast
/// one by one, without that buffer.
void ShardedOptimizer::gather_through_lists(Host& host) {
  const auto tensors = static_cast<std::int64_t>(parameters_.size());
  const auto ranks = static_cast<double>(shard_);
  TensorList own, whole = parameters_;
  std::int64_t numel = 0, part_numel = 0;
  for (const SymTensor& p : parameters_) {
    own.push_back(part(host, p));
    numel += p->numel;
    part_numel += own.back()->numel;
  }
  const DType dtype = parameters_[0]->dtype;
  const auto copies = [&](const TensorList& from, const TensorList& to, std::int64_t kernels) {
    LaunchRequest q;
    q.op = OpKind::kForeachCopy;
    q.inputs = from;
    q.outputs = to;
    q.kernels = kernels;
    host.launch(q);
  };
  spend_host(host, ranks * (static_cast<double>(tensors) * kViewUs + kCatUs), "lists for each rank");
  const TensorList mine{host.empty({part_numel}, dtype, BufferCategory::kBucket)};
  copies(own, mine, 1);
  const TensorList lists{host.empty({numel}, dtype, BufferCategory::kBucket)};
  copies(whole, lists, shard_ * ceil_div(tensors, kMostCatInputs));
  if (std::all_of(whole.begin(), whole.end(), [&](const SymTensor& p) { return divides(p); })) {
    const TensorList gathered{host.empty({numel}, dtype, BufferCategory::kBucket)};
    host.wait_stream(stream_, host.stream());
    collective(host, CollectiveKind::kAllGather, shard_group_, mine[0], gathered[0]);
    host.wait_stream(host.stream(), stream_);
    spend_host(host, ranks * kCopyUs, "lists from the collective");
    copies(gathered, lists, shard_);
  } else {
    host.wait_stream(stream_, host.stream());
    std::int64_t start = 0;
    for (std::int64_t r = 0; r < shard_; ++r) {
      std::int64_t n = 0;
      for (const SymTensor& p : whole) n += part_size(p->numel, r);
      const SymTensor list = host.view_as(lists[0], {n}, start);
      const SymTensor& source = r == own_index(host) ? mine[0] : list;
      collective(host, CollectiveKind::kBroadcast, shard_group_, source, list, ReduceOp::kNone, r);
      start += n;
    }
    host.wait_stream(host.stream(), stream_);
  }
  spend_host(host, ranks * static_cast<double>(tensors) * (kViewUs + kCopyUs), "parts from the lists");
  copies(lists, whole, shard_ * tensors);
}

void ShardedOptimizer::zero_gradients(Host& host) {
  for (const SymTensor& p : parameters_) p->grad.reset();
  if (!options_.accumulate_in_float32) return;
  host.launch(OpKind::kFill, {}, {all_sums_}, {0.0});
  // nanotron ends each step with dist.barrier(), for which the host waits (train_step_logs): an
  // all-reduce of one zero (ProcessGroupNCCL::barrier).
  const SymTensor token = host.empty({1}, DType::kFloat32, BufferCategory::kWorkspace);
  host.launch(OpKind::kFill, {}, {token}, {0.0});
  host.wait_stream(stream_, host.stream());
  collective(host, CollectiveKind::kAllReduce, data_group_, token, token);
  host.wait_stream(host.stream(), stream_);
  host.program().sync_stream(host.stream());
}

}  // namespace

std::unique_ptr<Framework> make_sharded_optimizer(const ParallelConfig& config) {
  return std::make_unique<ShardedOptimizer>(config);
}

}  // namespace foreshard
