// Data parallelism with a sharded optimizer (ZeRO stage 1) as trainers write it themselves: whole 16-bit parameters on every
// rank, gradients reduced in buckets behind backward, each rank updates its part in fp32 and sends it to the others.
// Sources: nanotron src/nanotron/optim/{gradient_accumulator,zero}.py; InternEvo
// internlm/solver/optimizer/hybrid_zero_optim.py.

#include <algorithm>
#include <string>

#include "core/error.h"
#include "schedules/planner/clip.h"
#include "schedules/planner/frameworks/framework.h"
#include "schedules/planner/host/host_time.h"

namespace foreshard {
namespace {

/// Microseconds of the reference CPU in a tight loop (docs/host-time.md): a piece of a split, a view, a cat, a copy with its
/// view.
constexpr double kSplitUs = 1.0, kViewUs = 0.83, kCatUs = 1.9, kCopyUs = 1.75 + 0.83;

class ShardedOptimizer final : public Framework {
 public:
  explicit ShardedOptimizer(const ParallelConfig& config)
      : options_(config.sharded_optimizer), world_(config.world()), shard_(config.shard) {
    if (options_.reduce_scatter && config.replicate > 1) {
      throw InputError(Issue{"", "replicate", "gradients that are scattered have no replicas", "shard alone, or all-reduce"});
    }
  }

  void initialize(Host& host) override;
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
  };

  void flush(Host& host);
  /// The parts of `tensors` for each rank one after the other, in a new tensor (through one list of tensors for each rank).
  SymTensor flatten_for_ranks(Host& host, const TensorList& tensors);
  enum class Way : std::uint8_t { kIntoList, kOutOfList };
  void copy_lists(Host& host, const TensorList& tensors, const SymTensor& list, Way way, std::size_t kernels);
  void launch_copies(Host& host, const TensorList& from, const TensorList& to, std::size_t kernels);
  void scatter_gradients(Host& host);
  void gather_parameters(Host& host);
  void collective(Host& host, CollectiveKind kind, GroupId group, const SymTensor& input, const SymTensor& output);
  void unflatten(Host& host);
  void set_shard_gradients(Host& host);
  void send_parameters(Host& host);
  /// This rank's part of a whole tensor, flat.
  SymTensor part(Host& host, const SymTensor& whole) const {
    const std::int64_t n = whole->numel / shard_;
    return host.view_as(whole, {n}, whole->offset + host.options().rank % shard_ * n);
  }
  const SymTensor& gradient(std::size_t i) const {
    return options_.accumulate_in_float32 ? sums_[i] : parameters_[i]->grad;
  }

  ShardedOptimizerOptions options_;
  std::int64_t world_, shard_;
  GroupId data_group_, shard_group_;
  StreamIndex stream_ = 0;
  bool sync_ = true;
  std::vector<LocalParameter> masters_;    ///< fp32 parts that the optimizer updates.
  std::vector<SymTensor> parameters_, sums_;
  std::vector<Ref<AutogradNode>> accumulators_;
  std::vector<std::size_t> bucket_;
  std::int64_t bucket_bytes_ = 0;
  std::vector<Flat> in_flight_;
};

void ShardedOptimizer::initialize(Host& host) {
  data_group_ = host.add_group("data", world_, 1);
  shard_group_ = shard_ == world_ ? data_group_ : host.add_group("shard", shard_, 1);
  stream_ = host.program().add_stream("communicator", 0);
  std::vector<LocalParameter> whole;
  materialize_whole(host, whole);
  for (const LocalParameter& p : whole) {
    if (host.options().executable && p.local->numel % shard_ != 0) {
      throw InputError(Issue{host.model().at(p.id).name, "sharded-optimizer", "its elements do not divide by " + std::to_string(shard_),
                             "a number of ranks that divides every tensor, or no execution"});
    }
    parameters_.push_back(p.local);
    accumulators_.push_back(host.grad_accumulator(p.local));
    host.register_accumulate_hook(accumulators_.back(), static_cast<std::uint32_t>(parameters_.size() - 1));
    SymTensor master = host.empty({p.local->numel / shard_}, DType::kFloat32, BufferCategory::kShardedParameter);
    host.launch(OpKind::kCopy, {part(host, p.local)}, {master});
    masters_.push_back({p.id, std::move(master), p.local->numel / shard_});
    if (!options_.accumulate_in_float32) continue;
    sums_.push_back(host.empty(p.local->shape, DType::kFloat32, BufferCategory::kUnshardedGradient));
    host.launch(OpKind::kFill, {}, {sums_.back()}, {0.0});
  }
}

void ShardedOptimizer::collective(Host& host, CollectiveKind kind, GroupId group, const SymTensor& input,
                                  const SymTensor& output) {
  Collective c;
  c.kind = kind;
  const bool reduces = kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter;
  c.op = reduces ? ReduceOp::kAverage : ReduceOp::kNone;
  c.dtype = input->dtype;
  c.stream = stream_;
  c.group = group;
  c.input = host.id_of(input);
  c.output = host.id_of(output);
  c.bytes = Bytes(std::max(input->bytes(), output->bytes()));
  host.collective(c);
}

// ---------------------------------------------------------------------------------------------- gradients

void ShardedOptimizer::on_accumulated(Host& host, std::uint32_t index) {
  spend_host(host, kDdpHookUs, "gradient hooks");
  SymTensor& grad = parameters_[index]->grad;
  const std::int64_t bytes = grad->bytes();
  if (options_.accumulate_in_float32) {
    host.launch(OpKind::kAddInPlace, {sums_[index], grad}, {sums_[index]});
    grad.reset();
  }
  if (!sync_) return;
  bucket_.push_back(index);
  bucket_bytes_ += bytes;
  if (options_.reduce_scatter) return;      // Without DDP around the model: synchronised after backward.
  if (static_cast<double>(bucket_bytes_) >= options_.bucket_mib * 1048576) flush(host);
}

void ShardedOptimizer::flush(Host& host) {
  if (bucket_.empty()) return;
  if (options_.reduce_scatter) {
    scatter_gradients(host);
  } else if (options_.one_collective_per_tensor) {
    host.wait_stream(stream_, host.stream());
    for (const std::size_t i : bucket_) collective(host, CollectiveKind::kAllReduce, data_group_, gradient(i), gradient(i));
  } else {
    TensorList gradients;
    std::int64_t numel = 0;
    for (const std::size_t i : bucket_) {
      gradients.push_back(host.view_as(gradient(i), {gradient(i)->numel}));
      numel += gradient(i)->numel;
    }
    const TensorList flat{host.empty({numel}, gradients[0]->dtype, BufferCategory::kBucket)};
    launch_lists(host, OpKind::kCat, {&gradients}, {&flat}, {0.0});
    host.wait_stream(stream_, host.stream());
    collective(host, CollectiveKind::kAllReduce, data_group_, flat[0], flat[0]);
    in_flight_.push_back({bucket_, flat[0]});
  }
  bucket_.clear();
  bucket_bytes_ = 0;
}

SymTensor ShardedOptimizer::flatten_for_ranks(Host& host, const TensorList& tensors) {
  std::int64_t numel = 0;
  for (const SymTensor& t : tensors) numel += t->numel;
  const auto n = static_cast<double>(tensors.size());
  spend_host(host, static_cast<double>(world_) * (n * (kSplitUs + kViewUs) + kCatUs), "lists for each rank");
  // torch.cat takes 128 tensors a kernel; c10d then copies the list into one buffer.
  SymTensor lists = host.empty({numel}, tensors[0]->dtype, BufferCategory::kBucket);
  const std::size_t kernels = static_cast<std::size_t>(world_) * ((tensors.size() + 127) / 128);
  copy_lists(host, tensors, lists, Way::kIntoList, kernels);
  SymTensor flat = host.empty({numel}, tensors[0]->dtype, BufferCategory::kBucket);
  launch_copies(host, {lists}, {flat}, static_cast<std::size_t>(world_));
  return flat;
}

/// Between tensors and a list of their parts by rank. Plans that are only simulated name the whole tensors.
void ShardedOptimizer::copy_lists(Host& host, const TensorList& tensors, const SymTensor& list, Way way, std::size_t kernels) {
  TensorList whole = tensors, parts;
  if (host.options().executable) {
    whole.clear();
    std::int64_t offset = 0;
    for (std::int64_t r = 0; r < world_; ++r) {
      for (const SymTensor& t : tensors) {
        const std::int64_t n = t->numel / world_;
        whole.push_back(host.view_as(t, {n}, t->offset + r * n));
        parts.push_back(host.view_as(list, {n}, offset));
        offset += n;
      }
    }
  } else {
    parts.push_back(list);
    if (way == Way::kOutOfList) whole = parts;
  }
  if (way == Way::kIntoList) launch_copies(host, whole, parts, kernels);
  else launch_copies(host, parts, whole, kernels);
}

/// Copies that `kernels` kernels make together.
void ShardedOptimizer::launch_copies(Host& host, const TensorList& from, const TensorList& to, std::size_t kernels) {
  TensorList all = from;
  LaunchRequest q;
  q.op = OpKind::kForeachCopy;
  q.inputs = all;
  q.outputs = to;
  q.kernels = static_cast<std::uint16_t>(std::min<std::size_t>(kernels, UINT16_MAX));
  host.launch(q);
}

/// nanotron's reduce_scatter_coalesced: for each rank one flat tensor of its parts, one collective, this rank's parts back.
void ShardedOptimizer::scatter_gradients(Host& host) {
  TensorList sums, parts;
  for (const std::size_t i : bucket_) {
    sums.push_back(gradient(i));
    parts.push_back(part(host, gradient(i)));
  }
  const SymTensor flat = flatten_for_ranks(host, sums);
  const std::int64_t own = flat->numel / world_;
  const SymTensor mine = host.view_as(flat, {own}, host.options().rank % world_ * own);
  host.wait_stream(stream_, host.stream());
  collective(host, CollectiveKind::kReduceScatter, data_group_, flat, mine);
  host.wait_stream(host.stream(), stream_);
  spend_host(host, static_cast<double>(parts.size()) * kCopyUs, "parts from the list");
  TensorList received;
  std::int64_t offset = mine->offset;
  for (const SymTensor& p : parts) {
    received.push_back(host.view_as(flat, {p->numel}, offset));
    offset += p->numel;
  }
  launch_copies(host, received, parts, parts.size());
}

/// nanotron's all_gather_coalesced: as above, then a copy for each tensor of each rank.
void ShardedOptimizer::gather_parameters(Host& host) {
  const SymTensor flat = flatten_for_ranks(host, parameters_);
  const std::int64_t own = flat->numel / world_;
  host.wait_stream(stream_, host.stream());
  collective(host, CollectiveKind::kAllGather, shard_group_, host.view_as(flat, {own}, host.options().rank % world_ * own), flat);
  host.wait_stream(host.stream(), stream_);
  launch_copies(host, {flat}, {flat}, static_cast<std::size_t>(world_));
  // As many kernels as fit one record; a record for each rank would tell no more.
  const std::size_t copies = static_cast<std::size_t>(world_) * parameters_.size();
  spend_host(host, static_cast<double>(copies) * kCopyUs, "parts from the list");
  copy_lists(host, parameters_, flat, Way::kOutOfList, copies);
}

void ShardedOptimizer::unflatten(Host& host) {
  for (const Flat& f : in_flight_) {
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
  if (!sync_) return;
  host.set_phase(Phase::kBackward);
  flush(host);
  host.wait_stream(host.stream(), stream_);
  unflatten(host);
  set_shard_gradients(host);
}

void ShardedOptimizer::set_shard_gradients(Host& host) {
  TensorList parts, wide;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (options_.accumulate_in_float32) {
      masters_[i].local->grad = part(host, sums_[i]);
      continue;
    }
    parts.push_back(part(host, parameters_[i]->grad));
    wide.push_back(host.empty(parts.back()->shape, DType::kFloat32, BufferCategory::kShardedGradient));
    masters_[i].local->grad = wide.back();
  }
  if (!parts.empty()) launch_lists(host, OpKind::kForeachCopy, {&parts}, {&wide});
}

void ShardedOptimizer::clip_gradients(Host& host, double max_norm) {
  TensorList gradients;
  for (const LocalParameter& p : masters_) {
    if (p.local->grad && p.local->grad->numel > 0) gradients.push_back(p.local->grad);
  }
  SymTensor norm;
  {
    TensorList norms = foreach_norms(host, gradients);
    norm = vector_norm(host, stack_scalars(host, norms));
  }
  if (shard_ > 1) {
    host.wait_stream(stream_, host.stream());
    collective(host, CollectiveKind::kAllReduce, shard_group_, norm, norm);
    host.wait_stream(host.stream(), stream_);
  }
  observe_norm(host, norm);
  scale_gradients(host, gradients, norm, max_norm);
}

// ---------------------------------------------------------------------------------------------- parameters

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
  if (shard_ > 1 && options_.reduce_scatter) gather_parameters(host);
  else if (shard_ > 1) send_parameters(host);
}

void ShardedOptimizer::send_parameters(Host& host) {
  host.wait_stream(stream_, host.stream());
  if (options_.owners_broadcast) {
    // Owners hold whole tensors, as even a load as these allow: what each owns goes out in one broadcast.
    const auto tensors = static_cast<std::int64_t>(parameters_.size());
    const std::int64_t owners = std::min(shard_, tensors);
    for (std::int64_t o = 0; o < owners; ++o) {
      Collective c;
      c.kind = CollectiveKind::kBroadcast;
      c.stream = stream_;
      c.group = shard_group_;
      c.root = static_cast<std::int32_t>(o);
      c.dtype = parameters_[0]->dtype;
      for (std::int64_t i = o; i < tensors; i += owners) c.bytes += Bytes(parameters_[static_cast<std::size_t>(i)]->bytes());
      c.input = c.output = host.id_of(parameters_[static_cast<std::size_t>(o)]);
      host.collective(c);
    }
  } else {
    for (const SymTensor& p : parameters_) {
      if (p->numel >= shard_) collective(host, CollectiveKind::kAllGather, shard_group_, part(host, p), p);
    }
  }
  host.wait_stream(host.stream(), stream_);
}

void ShardedOptimizer::zero_gradients(Host& host) {
  for (const SymTensor& p : parameters_) p->grad.reset();
  for (const SymTensor& s : sums_) host.launch(OpKind::kFill, {}, {s}, {0.0});
}

}  // namespace

std::unique_ptr<Framework> make_sharded_optimizer(const ParallelConfig& config) {
  return std::make_unique<ShardedOptimizer>(config);
}

}  // namespace foreshard
