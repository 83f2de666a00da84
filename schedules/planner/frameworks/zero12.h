#pragma once

// ZeRO stages 1 and 2: 16-bit parameters whole in a flat buffer per optimizer group, fp32 partitions and optimizer states on
// one rank each, gradients reduced in buckets (rules Z12-*, Z1-*, Z2-*). Source: DeepSpeed 0.19.8 zero/stage_1_and_2.py.

#include <map>
#include <vector>

#include "schedules/planner/frameworks/zero.h"

namespace foreshard::zero {

/// One optimizer group (Z12-P-1).
struct FlatGroup {
  std::vector<ParameterId> order;          ///< In the flat buffer; round_robin_gradients deals them out to partitions.
  std::vector<ParameterId> registered;     ///< As the optimizer got them.
  std::vector<std::int64_t> first;         ///< First element of each of `order`.
  std::int64_t numel = 0, partition = 0;   ///< Real elements; elements of one rank's partition.
  SymTensor flat;
};

/// Where a parameter is.
struct Place {
  std::size_t group = 0;
  std::int64_t first = 0, numel = 0;       ///< In the flat buffer.
  bool mine = false;                       ///< Touches this rank's partition.
};

class Zero12 final : public Zero {
 public:
  Zero12(const ParallelConfig& config, Extras extras);

  void initialize(Host& host) override;
  void on_accumulated(Host& host, std::uint32_t parameter) override;
  void end_micro_batch(Host& host) override;
  void before_optimizer(Host& host) override;
  void after_optimizer(Host& host) override;

  const std::vector<FlatGroup>& groups() const { return groups_; }
  std::vector<int> owners(ParameterId id) const;
  bool overlaps() const { return overlap_; }
  std::int64_t own_first_offset(std::size_t group) const;
  const Place& place(ParameterId id) const { return places_.at(id); }

 private:
  struct Slice {
    int owner;
    std::int64_t offset, numel;            ///< In the bucket.
  };

  void make_groups(Host& host);
  void make_flat(Host& host, FlatGroup& group);
  void setup_buckets(Host& host);
  void add_to_bucket(Host& host, ParameterId id);
  void reduce_bucket(Host& host);
  void average(Host& host, const SymTensor& tensor);
  std::vector<Slice> slices() const;
  void reduce_slices(Host& host, const SymTensor& tensor, const std::vector<Slice>& slices, int root);
  void reduce_pieces(Host& host, const SymTensor& tensor, const std::vector<Slice>& pieces, int root);
  void average_apart(Host& host);
  void copy_to_partition(Host& host, ParameterId id);
  void keep_gradients(Host& host);
  /// This rank's slices of a group's gradients, in flat order.
  TensorList own_slices(Host& host, std::size_t group, std::int64_t& covered);

  bool stage2_, overlap_;
  std::vector<FlatGroup> groups_;
  std::map<ParameterId, Place> places_;
  std::vector<Ref<AutogradNode>> accumulators_;

  bool ready_ = false;                     ///< Bucket buffers exist.
  SymTensor buffers_[2];
  int index_ = 0;
  std::vector<ParameterId> bucket_;
  std::int64_t elements_ = 0;
  bool oversized_ = false;
  SymTensor partition_gradients_;
  std::int64_t partition_offset_ = 0;
  std::map<ParameterId, SymTensor> averaged_;   ///< Of own parameters, over micro-batches.
};

}  // namespace foreshard::zero
