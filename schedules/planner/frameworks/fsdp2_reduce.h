#pragma once

// Gradients of a parameter group after its backward: collected, reduce-scattered, all-reduced,
// added to the sharded gradients (F2-B-6, F2-RS-1 .. F2-RS-8, F2-AR-1 .. F2-AR-3, F2-AC-1).

#include <optional>
#include <vector>

#include "schedules/planner/frameworks/fsdp2_gather.h"
#include "schedules/planner/frameworks/fsdp2_group.h"
#include "schedules/planner/host/host.h"

namespace foreshard::fsdp2 {

/// How a mean over ranks is taken: divisions apart from the collectives, and the collectives'
/// operations (F2-RS-8).
struct Division {
  std::optional<double> pre,
      post;  ///< Kernels before the reduce-scatter and after the last reduction.
  ReduceOp scatter = ReduceOp::kSum, all = ReduceOp::kSum;
  double premul = 1;  ///< kPreMulSum: factor before the sum.
};
Division division_of(std::int64_t shard, std::int64_t replicate, DType reduce_dtype,
                     std::optional<double> factor, bool force_sum);

class Reducer {
 public:
  Reducer(Host& host, Gatherer& gatherer) : host_(host), gatherer_(gatherer) {}

  /// F2-B-6. `final_callback`: run at the end of backward, not by autograd.
  void post_backward(ParamGroup& group, bool final_callback);
  /// Leaves gradients in the dtype that autograd produces, or casts them to the one they are kept
  /// in (F2-AC-1).
  void set_grad_dtypes(ParamGroup& group, bool defer_upcast);
  /// End of the last backward, for one group (F2-B-7).
  void finalize(ParamGroup& group);

 private:
  struct Gradients {
    std::vector<std::size_t> parameters;  ///< Indices in packing order.
    std::vector<SymTensor> tensors;
  };
  /// One reduction under way.
  struct Reduction {
    SymTensor partial;               ///< Sum over earlier micro-batches without an all-reduce.
    SymTensor output;                ///< Of the reduce-scatter, then of the all-reduce in place.
    StreamIndex stream = 0;          ///< Where its last kernel runs.
    std::optional<HeldBuffer> held;  ///< Kept until the all-reduce is done.
    bool pending = false;            ///< The all-reduce is left to a later micro-batch.
  };
  Gradients take_gradients(ParamGroup& group);
  bool in_partial_output(const ParamGroup& group, std::size_t i) const;
  void pop_reduce_inputs(ParamGroup& group);
  void wait_for_own_reduction(ParamGroup& group);
  DType reduce_dtype(const ParamGroup& group, const Gradients& g) const;
  SymTensor prepare_partial(ParamGroup& group, const Gradients& g, DType dtype);
  void reduce(ParamGroup& group, Gradients g);
  /// Tells the sink what will be reduced; returns what is to be told afterwards.
  Decision announce(const ParamGroup& group, const Gradients& g, DType dtype,
                    const Division& division);
  void reduce_over_replicas(ParamGroup& group, const Division& division, Reduction& r);
  void run_all_reduce_hook(ParamGroup& group, Reduction& r);
  void move_chunks_first(ParamGroup& group, Gradients& g);
  SymTensor copy_in(ParamGroup& group, Gradients& g, DType dtype);
  void chunk_cat(std::span<const SymTensor> tensors, const LaunchView& rows, std::int64_t kernels);
  void copy_in_one_by_one(const ParamGroup& group, const Gradients& g, const LaunchView& rows);
  SymTensor reduce_scatter(ParamGroup& group, const SymTensor& input, DType dtype,
                           const Division& division);
  void all_reduce(ParamGroup& group, const SymTensor& buffer, const Division& division);
  void divide(const SymTensor& t, std::optional<double> by);
  std::vector<SymTensor> sharded_gradients(ParamGroup& group, const SymTensor& output,
                                           const std::vector<std::size_t>& parameters);
  void accumulate(ParamGroup& group, const std::vector<std::size_t>& parameters,
                  std::vector<SymTensor> gradients, StreamIndex stream);
  void report_kept(const ParamGroup& group);

  Host& host_;
  Gatherer& gatherer_;
  std::vector<std::int64_t> part_bytes_;  ///< Of one reduction; kept to grow once.
};

}  // namespace foreshard::fsdp2
