#pragma once

// ZeRO stages 1 and 2: 16-bit parameters whole in a flat buffer per optimizer group, fp32
// partitions and optimizer states on one rank each, gradients reduced in buckets (rules Z12-*,
// Z1-*, Z2-*). Source: DeepSpeed 0.19.8 zero/stage_1_and_2.py.

#include <map>
#include <optional>
#include <vector>

#include "schedules/planner/frameworks/zero.h"

namespace foreshard::zero {

/// One optimizer group (Z12-P-1).
struct FlatGroup {
  std::vector<ParameterId>
      order;  ///< In the flat buffer; round_robin_gradients deals them out to partitions.
  std::vector<ParameterId> registered;    ///< As the optimizer got them.
  std::vector<std::int64_t> first;        ///< First element of each of `order`.
  std::int64_t numel = 0, partition = 0;  ///< Real elements; elements of one rank's partition.
  SymTensor flat;
  SymTensor compact;  ///< fp32 gradients of the own partition (grad_accum_dtype fp32, stage 2).
  SymTensor host_gradient,
      host_half;  ///< Offloaded: fp32 gradients and the 16-bit copy on its way up.
};

/// Where a parameter is.
struct Place {
  std::size_t group = 0;
  std::int64_t first = 0, numel = 0;  ///< In the flat buffer.
  bool mine = false;                  ///< Touches this rank's partition.
};

class Zero12 final : public Zero {
 public:
  Zero12(const ParallelConfig& config, Extras extras);

  void initialize(Host& host) override;
  std::uint64_t rank_class(const Model& model, const ParallelConfig& config,
                           std::int64_t rank) const override;
  std::vector<std::string> not_modelled(const Model& model) const override;
  void begin_micro_batch(Host& host, std::int64_t index, bool sync) override;
  void on_accumulated(Host& host, std::uint32_t parameter) override;
  void end_micro_batch(Host& host) override;
  void before_optimizer(Host& host) override;
  void update(Host& host, Optimizer* optimizer) override;
  void after_optimizer(Host& host) override;

  const std::vector<FlatGroup>& groups() const { return groups_; }
  std::vector<int> owners(ParameterId id) const;
  bool overlaps() const { return overlap_; }
  std::int64_t own_first_offset(std::size_t group) const;
  const Place& place(ParameterId id) const { return places_.at(id); }

 private:
  struct Slice {
    int owner;
    std::int64_t offset, numel;  ///< In the bucket.
    SymTensor output;  ///< Where the reduced slice is added in fp32, if it is kept that way.
  };
  /// What of a parameter lies in the own partition: first element of the parameter, place in the
  /// partition, elements.
  struct Overlap {
    std::int64_t source = 0, destination = 0, numel = 0;
  };

  // ------------------------------------------------------------ zero12.cc
  std::vector<FlatGroup> flat_groups(const Model& model) const;
  void make_groups(const Model& model);
  void make_flat(Host& host, FlatGroup& group);
  void flatten_on_device(Host& host, FlatGroup& group);
  Overlap overlap_of(ParameterId id, std::int64_t rank) const;
  Overlap overlap_of(ParameterId id) const { return overlap_of(id, rank_); }
  /// Gradients in fp32 while those of the model are narrower: in the own partition (stage 2), or of
  /// the whole model (stage 1).
  bool wide() const { return grad_accum_dtype() != dtype_; }
  bool compact() const { return wide() && grad_accum_dtype() == DType::kFloat32; }

  // ------------------------------------------------------------ zero12_ranks.cc
  bool own_programs(const Model& model) const;
  /// Some programs stand for all ranks, and copies to host memory follow one another.
  bool chains_copies(const Model& model) const;
  std::vector<std::uint64_t> rank_classes(const Model& model) const;
  std::int64_t heaviest_rank(const Model& model) const;
  std::vector<std::vector<ParameterId>> expected_buckets(const Model& model) const;
  std::map<ParameterId, std::int64_t> awaited_owners(const Model& model) const;
  std::vector<std::vector<std::int64_t>> copying_groups(
      const std::map<ParameterId, std::int64_t>& awaited) const;
  std::map<ParameterId, std::int64_t> guests_of(const Model& model, std::int64_t rank) const;

  // ------------------------------------------------------------ zero12_reduce.cc
  void setup_buckets(Host& host);
  void add_to_bucket(Host& host, ParameterId id);
  void reduce_bucket(Host& host);
  void average(Host& host, const SymTensor& tensor);
  std::vector<Slice> slices(Host& host);
  void reduce_slices(Host& host, const SymTensor& tensor, const std::vector<Slice>& slices,
                     int root);
  void reduce_pieces(Host& host, const SymTensor& tensor, const std::vector<Slice>& pieces,
                     int root);
  void average_whole(Host& host, const SymTensor& tensor);
  void average_apart(Host& host);
  void copy_to_partition(Host& host, ParameterId id);
  void keep_gradients(Host& host);
  SymTensor& gradient(Host& host, ParameterId id);
  SymTensor compact_slice(Host& host, ParameterId id);
  void accumulate_wide(Host& host, ParameterId id);

  // ------------------------------------------------------------ zero12_step.cc
  /// This rank's slices of a group's gradients, in flat order.
  TensorList own_slices(Host& host, std::size_t group, std::int64_t& covered);
  SymTensor flat_gradient(Host& host, std::size_t group);

  // ------------------------------------------------------------ zero12_offload.cc
  void offload_gradient(Host& host, ParameterId id);
  void offload_guest(Host& host, ParameterId id);
  void send_down(Host& host, const SymTensor& tested, const SymTensor& source,
                 const SymTensor& destination);
  /// Gradients of micro-batches add up in host memory, in two more copies.
  bool adds_on_host() const { return !compact() && ((stage2_ && micro_ > 0) || !boundary_); }
  void accumulate_on_host(Host& host, ParameterId id);
  void add_through_host(Host& host, const SymTensor& gradient, const SymTensor& sum);
  void record_copy(Host& host);
  void wait_for_copies(Host& host);

  bool stage2_, overlap_;
  std::vector<FlatGroup> groups_;
  mutable std::vector<std::uint64_t> classes_;  ///< Of the ranks; filled on first use.
  /// Parameters of which this rank makes another one's copies to host memory, too.
  std::map<ParameterId, std::int64_t> guests_;
  std::map<ParameterId, Place> places_;
  std::vector<Ref<AutogradNode>> accumulators_;

  bool ready_ = false;  ///< Bucket buffers exist.
  SymTensor buffers_[2];
  int index_ = 0;
  std::vector<ParameterId> bucket_, previous_;
  std::int64_t elements_ = 0;
  bool oversized_ = false;
  SymTensor partition_gradients_;
  std::int64_t partition_offset_ = 0;
  std::map<ParameterId, SymTensor> averaged_;        ///< Of own parameters, over micro-batches.
  std::map<ParameterId, SymTensor> wide_gradients_;  ///< grad_accum of stage 1.
  TensorList norms_;  ///< Of the groups, on the device or (offloaded) the host.

  // Offloaded optimizer.
  std::map<ParameterId, SymTensor> host_sums_;  ///< Gradients over micro-batches, in host memory.
  std::map<ParameterId, SymTensor> parameter_norms_;
  SymTensor device_staging_, host_staging_;  ///< Of the largest parameter.
  std::optional<EventId> pending_copy_, ready_event_;
  std::optional<EventId> reuse_events_[2];
};

}  // namespace foreshard::zero
