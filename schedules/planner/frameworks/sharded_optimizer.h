#pragma once

// Data parallelism with a sharded optimizer (ZeRO stage 1) as trainers write it themselves: whole
// 16-bit parameters on every rank, gradients reduced in buckets behind backward, each rank updates
// its part in fp32 and sends it to the others. Sources: nanotron
// src/nanotron/optim/{gradient_accumulator,zero}.py; InternEvo
// internlm/solver/optimizer/hybrid_zero_optim.py.

#include <optional>
#include <set>
#include <vector>

#include "core/error.h"
#include "schedules/planner/frameworks/framework.h"

namespace foreshard {

/// A broadcast or reduction among those of the other ranks (Collective's fields).
struct OneOfRanks {
  std::int64_t root = 0;
  Bytes launched_together{0};
};

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
                  const SymTensor& output, ReduceOp op = ReduceOp::kAverage, OneOfRanks one = {});
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
  /// A collective for each rank's part, as c10d issues in one NCCL group where the parts differ
  /// (ProcessGroupNCCL::allgather and reduce_scatter of uneven lists: broadcasts, reductions between
  /// startCoalescing and endCoalescing).
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

}  // namespace foreshard
