// ZeRO-1 of public trainers other than DeepSpeed. InternEvo (core/trainer
// optimizer/hybrid_zero_optim.py): whole tensors belong to ranks. nanotron (optim/zero.py,
// optim/gradient_accumulator.py): every parameter is cut flat over the ranks.

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "schedules/planner/clip.h"
#include "schedules/planner/frameworks/zero.h"
#include "schedules/planner/frameworks/zero1_styles.h"
#include "schedules/planner/optimizer.h"

namespace foreshard::zero {
namespace {

constexpr std::int64_t kOwnersBucketBytes = 512LL << 20;  ///< InternEvo's reduce_bucket_size.
constexpr std::int64_t kShardsBucketBytes = 25LL << 20;   ///< torch DDP's bucket_cap_mb.

/// What both have: whole 16-bit parameters, gradients reduced in buckets at the last micro-batch,
/// one flat fp32 master.
class Zero1Style : public Zero {
 public:
  Zero1Style(const ParallelConfig& config, std::int64_t bucket_bytes)
      : Zero(config, {}), bucket_bytes_(bucket_bytes) {}

  void before_model(Host&, bool) override {}
  void on_accumulated(Host& host, std::uint32_t parameter) override {
    const ParameterId id(parameter);
    take_gradient(host, id);
    if (!boundary_) return;
    bucket_.push_back(id);
    bytes_ += gradient(host, id)->bytes();
    if (bytes_ >= bucket_bytes_) flush(host);
  }
  void end_micro_batch(Host& host) override {
    host.set_phase(Phase::kBackward);
    if (boundary_) flush(host);
    wait(host, host.stream(), reduce_stream_);
  }
  void update(Host& host, Optimizer* optimizer) override {
    const LocalParameter& master = masters_[0];
    if (master.local->numel > 0) {
      SymTensor flat = own_gradient(host);
      const SymTensor norm = global_norm(host, {flat}, DType::kFloat32);
      read_back(host, norm);
      observe_norm(host, norm);
      unscale_and_clip(host, flat, norm, false);
      master.local->grad = std::move(flat);
      if (optimizer != nullptr) optimizer->step(host, {&master, 1});
      master.local->grad.reset();
    } else {
      read_back(host, global_norm(host, {}, DType::kFloat32));
    }
  }

 protected:
  virtual void take_gradient(Host& host, ParameterId id) = 0;
  virtual SymTensor& gradient(Host& host, ParameterId id) = 0;
  virtual void reduce(Host& host, const TensorList& gradients) = 0;
  virtual SymTensor own_gradient(Host& host) = 0;

  void start(Host& host) {
    reduce_stream_ = host.program().add_stream("reduce", 0);
    make_parameters(host);
    for (const ParameterId id : ids_) broadcast(host, id);
  }
  void hook(Host& host) {
    for (const ParameterId id : trainable_) {
      accumulators_.push_back(host.grad_accumulator(host.parameter(id)));
      host.register_accumulate_hook(accumulators_.back(), id.value);
    }
  }
  void flush(Host& host) {
    if (bucket_.empty()) return;
    wait(host, reduce_stream_, host.stream());
    TensorList gradients;
    for (const ParameterId id : bucket_) gradients.push_back(gradient(host, id));
    {
      const StreamGuard guard(host, reduce_stream_);
      reduce(host, gradients);
    }
    bucket_.clear();
    bytes_ = 0;
  }
  /// A parameter becomes a view of `flat`.
  void move_into(Host& host, ParameterId id, const SymTensor& flat, std::int64_t offset) {
    SymTensor view = host.view_as(flat, host.parameter(id)->shape, offset);
    host.launch(OpKind::kCopy, {host.parameter(id)}, {view});
    host.set_requires_grad(view, true);
    host.program().program().parameters[id.value].local = host.id_of(view);
    host.set_parameter(id, std::move(view));
  }

  std::int64_t bucket_bytes_, bytes_ = 0;
  std::vector<ParameterId> bucket_;
  std::vector<Ref<AutogradNode>> accumulators_;
};

// ----------------------------------------------------------------------------------------------
// whole tensors

class TensorOwners final : public Zero1Style {
 public:
  explicit TensorOwners(const ParallelConfig& config) : Zero1Style(config, kOwnersBucketBytes) {}

  void initialize(Host& host) override {
    start(host);
    owners_group_ = host.add_group("zero1", config_.shard, 1);
    own_ = rank_ % config_.shard;
    assign(host);
    for (std::int64_t r = 0; r < config_.shard; ++r) {
      std::int64_t offset = 0;
      const SymTensor flat =
          host.empty({numel_[static_cast<std::size_t>(r)]}, dtype_, BufferCategory::kParameter);
      for (const ParameterId id : trainable_) {
        if (owner_.at(id) != r) continue;
        move_into(host, id, flat, offset);
        offset += host.model().at(id).numel();
      }
      if (r == own_) flat_ = flat;
    }
    SymTensor master = host.cast(flat_, DType::kFloat32, BufferCategory::kShardedParameter);
    if (master == flat_) master = host.clone(flat_);
    masters_.push_back({trainable_[0], std::move(master), flat_->numel});
    hook(host);
  }
  void after_optimizer(Host& host) override {
    if (flat_->numel > 0) host.launch(OpKind::kCopy, {masters_[0].local}, {flat_});
    if (config_.shard == 1) return;
    for (const ParameterId id :
         trainable_) {  // Broadcasts are issued together and waited for together.
      const SymTensor flat = flat_view(host, host.parameter(id), 0, host.parameter(id)->numel);
      send(host, flat, owner_.at(id));
    }
    for (const ParameterId id : trainable_) host.parameter(id)->grad.reset();
  }

 private:
  /// Largest tensors first, each to the rank that has the least.
  void assign(Host& host) {
    numel_.assign(static_cast<std::size_t>(config_.shard), 0);
    std::vector<ParameterId> sorted = trainable_;
    const auto numel = [&](ParameterId id) { return host.model().at(id).numel(); };
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](ParameterId a, ParameterId b) { return numel(a) > numel(b); });
    for (const ParameterId id : sorted) {
      const auto least = std::min_element(numel_.begin(), numel_.end());
      *least += numel(id);
      owner_[id] = static_cast<int>(least - numel_.begin());
    }
  }
  void send(Host& host, const SymTensor& t, int root) {
    Collective c;
    c.kind = CollectiveKind::kBroadcast;
    c.dtype = t->dtype;
    c.stream = host.stream();
    c.group = owners_group_;
    c.input = c.output = host.id_of(t);
    c.bytes = Bytes(t->bytes());
    c.root = root;
    host.collective(c);
  }
  void take_gradient(Host&, ParameterId) override {}
  SymTensor& gradient(Host& host, ParameterId id) override { return host.parameter(id)->grad; }
  void reduce(Host& host, const TensorList& gradients) override {
    TensorList parts;
    for (const SymTensor& g : gradients) parts.push_back(flat_view(host, g, 0, g->numel));
    const SymTensor flat = flatten(host, parts, BufferCategory::kBucket);
    host.launch(OpKind::kMulInPlace, {flat}, {flat}, {1.0 / static_cast<double>(world_)});
    collective(host, CollectiveKind::kAllReduce, flat, flat, -1, ReduceOp::kSum);
    std::int64_t offset = 0;
    for (const SymTensor& p : parts) {
      host.launch(OpKind::kCopy, {flat_view(host, flat, offset, p->numel)}, {p});
      offset += p->numel;
    }
  }
  SymTensor own_gradient(Host& host) override {
    TensorList parts;
    for (const ParameterId id : trainable_) {
      const SymTensor& g = host.parameter(id)->grad;
      if (owner_.at(id) == own_) parts.push_back(flat_view(host, g, 0, g->numel));
    }
    const SymTensor flat = flatten(host, parts, BufferCategory::kShardedGradient);
    for (const ParameterId id : trainable_) host.parameter(id)->grad.reset();
    return host.cast(flat, DType::kFloat32, BufferCategory::kShardedGradient);
  }

  GroupId owners_group_;
  std::int64_t own_ = 0;
  std::map<ParameterId, int> owner_;
  std::vector<std::int64_t> numel_;
  SymTensor flat_;  ///< This rank's own parameters, side by side.
};

// ----------------------------------------------------------------------------------------------
// flat shards

class FlatShards final : public Zero1Style {
 public:
  explicit FlatShards(const ParallelConfig& config) : Zero1Style(config, kShardsBucketBytes) {}

  void initialize(Host& host) override {
    start(host);
    std::int64_t offset = 0, shards = 0;
    for (const ParameterId id : trainable_) {
      Piece p;
      p.numel = host.model().at(id).numel();
      p.shard = (p.numel + world_ - 1) / world_;
      p.place = shards;
      offset += world_ * p.shard;
      shards += p.shard;
      pieces_.emplace(id, std::move(p));
    }
    const SymTensor sums =
        host.empty({offset}, DType::kFloat32, BufferCategory::kUnshardedGradient);
    host.launch(OpKind::kFill, {}, {sums}, {0.0});
    master_ = host.empty({shards}, DType::kFloat32, BufferCategory::kShardedParameter);
    gradient_ = host.empty({shards}, DType::kFloat32, BufferCategory::kShardedGradient);
    offset = 0;
    for (const ParameterId id : trainable_) {
      Piece& p = pieces_.at(id);
      p.sum = flat_view(host, sums, offset, world_ * p.shard);
      offset += world_ * p.shard;
      const std::int64_t begin = std::min(rank_ * p.shard, p.numel),
                         n = std::min(p.shard, p.numel - begin);
      const SymTensor own = flat_view(host, master_, p.place, p.shard);
      host.launch(OpKind::kFill, {}, {own}, {0.0});
      if (n > 0)
        host.launch(OpKind::kCopy, {flat_view(host, host.parameter(id), begin, n)},
                    {flat_view(host, own, 0, n)});
    }
    masters_.push_back({trainable_[0], master_, shards});
    hook(host);
  }
  /// Shards go back to 16 bit, side by side in one buffer, and everybody's come.
  void after_optimizer(Host& host) override {
    for (auto& [id, p] : pieces_) host.launch(OpKind::kFill, {}, {p.sum}, {0.0});
    if (world_ == 1) {
      for (const auto& [id, p] : pieces_) {
        host.launch(OpKind::kCopy, {flat_view(host, master_, p.place, p.numel)},
                    {flat_view(host, host.parameter(id), 0, p.numel)});
      }
      return;
    }
    const std::int64_t row = master_->numel;
    const SymTensor whole = host.empty({world_ * row}, dtype_, BufferCategory::kGatherOutput);
    const SymTensor own = flat_view(host, whole, rank_ * row, row);
    host.launch(OpKind::kCopy, {master_}, {own});
    collective(host, CollectiveKind::kAllGather, own, whole);
    for (const auto& [id, p] : pieces_) {
      const SymTensor flat = flat_view(host, host.parameter(id), 0, p.numel);
      if (p.numel % world_ == 0) {
        const std::array<std::int64_t, 2> strides{row, 1};
        const Shape shape{world_, p.shard};
        host.launch(OpKind::kCopy, {host.view_as(whole, shape, strides, p.place)},
                    {host.view_as(flat, shape, flat->offset)});
        continue;
      }
      for (std::int64_t r = 0; r * p.shard < p.numel; ++r) {
        const std::int64_t n = std::min(p.shard, p.numel - r * p.shard);
        host.launch(OpKind::kCopy, {flat_view(host, whole, r * row + p.place, n)},
                    {flat_view(host, flat, r * p.shard, n)});
      }
    }
  }

 private:
  struct Piece {
    std::int64_t numel = 0, shard = 0,
                 place = 0;  ///< Elements; of one rank; where the shard stands in the master.
    SymTensor sum;           ///< fp32 gradient accumulator, padded.
  };

  /// FP32GradientAccumulator: the 16-bit gradient is added to the fp32 buffer and dropped.
  void take_gradient(Host& host, ParameterId id) override {
    SymTensor& grad = host.parameter(id)->grad;
    const Piece& p = pieces_.at(id);
    const SymTensor sum = flat_view(host, p.sum, 0, p.numel);
    host.launch(OpKind::kAddInPlace, {sum, flat_view(host, grad, 0, p.numel)}, {sum});
    grad.reset();
  }
  SymTensor& gradient(Host&, ParameterId id) override { return pieces_.at(id).sum; }
  /// Of each parameter this rank's slice of the sum over ranks.
  void reduce(Host& host, const TensorList& gradients) override {
    TensorList rows;
    std::int64_t total = 0;
    for (const SymTensor& g : gradients) {
      rows.push_back(host.view_as(g, {world_, g->numel / world_}, g->offset));
      total += g->numel / world_;
    }
    const TensorList out{
        host.empty({world_, total}, DType::kFloat32, BufferCategory::kReduceInput)};
    launch_lists(host, OpKind::kCat, {&rows}, {&out}, {1.0});
    const SymTensor flat = flat_view(host, out[0], 0, world_ * total),
                    own = flat_view(host, flat, rank_ * total, total);
    host.launch(OpKind::kMulInPlace, {flat}, {flat}, {1.0 / static_cast<double>(world_)});
    collective(host, CollectiveKind::kReduceScatter, flat, own, -1, ReduceOp::kSum);
    std::int64_t offset = 0;
    for (const ParameterId id : bucket_) {
      const Piece& p = pieces_.at(id);
      host.launch(OpKind::kCopy, {flat_view(host, own, offset, p.shard)},
                  {flat_view(host, gradient_, p.place, p.shard)});
      offset += p.shard;
    }
  }
  SymTensor own_gradient(Host& host) override { return host.detach(gradient_); }

  std::map<ParameterId, Piece> pieces_;
  SymTensor master_, gradient_;
};

}  // namespace

std::unique_ptr<Framework> make_tensor_owners(const ParallelConfig& config) {
  return std::make_unique<TensorOwners>(config);
}
std::unique_ptr<Framework> make_flat_shards(const ParallelConfig& config) {
  return std::make_unique<FlatShards>(config);
}

}  // namespace foreshard::zero
