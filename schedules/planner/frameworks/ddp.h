#pragma once

// DistributedDataParallel on the symbolic host: whole parameters on every rank, gradients
// all-reduced in buckets while backward runs (rules D-*). Sources: torch/nn/parallel/distributed.py
// and torch/csrc/distributed/c10d/reducer.cpp (2.15),
// torch/distributed/algorithms/ddp_comm_hooks/{default,mixed_precision}_hooks.py, powerSGD_hook.py.

#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "schedules/planner/frameworks/ddp_buckets.h"
#include "schedules/planner/frameworks/framework.h"

namespace foreshard::ddp {

/// PyTorch's class of exception for a job that DDP stops.
enum class Refusal : std::uint8_t { kRuntimeError, kAttributeError };

/// The job cannot run under DDP: wrong input for us, an exception of class `refusal` in PyTorch.
/// The message is ours.
class DdpError : public InputError {
 public:
  DdpError(Refusal refusal, std::string place, std::string message, std::string hint = {})
      : InputError(Issue{"", std::move(place), std::move(message), std::move(hint)}),
        refusal_(refusal) {}
  Refusal refusal() const { return refusal_; }

 private:
  Refusal refusal_;
};

/// "RuntimeError", ...
inline const char* name_of(Refusal r) {
  return r == Refusal::kRuntimeError ? "RuntimeError" : "AttributeError";
}

/// Gradients that are reduced together.
struct Bucket {
  Indices parameters;            ///< Into Ddp::parameters, in buffer order.
  SymTensor buffer;              ///< Flat, in the parameters' dtype (mixed precision: param dtype).
  std::vector<SymTensor> views;  ///< One for each parameter, in its shape: where gradients go in.
  std::int64_t numel = 0;        ///< Of `buffer`, which lazy allocation makes later.
  DType dtype = DType::kFloat32;
  UnitId unit;
  std::size_t pending = 0;  ///< Gradients of this iteration that are still missing.
  Indices deferred;       ///< Positions whose copy waits for the whole bucket (batched_grad_copy).
  bool launched = false;  ///< Was reduced at least once: finalize_backward looks at it.
  EventId reduced;        ///< The result is there.
  SymTensor result;       ///< What came back: `buffer`, or another tensor of a hook.
  SymTensor compressed;   ///< Copy in a hook's dtype, until the result was taken.
  /// PowerSGD: what compression left out, and the factors of the last iteration.
  SymTensor error, p_memory, q_memory;
};

class Ddp final : public Framework {
 public:
  explicit Ddp(const ParallelConfig& config);

  void initialize(Host& host) override;
  std::span<const LocalParameter> local_parameters() const override { return locals_; }

  void begin_micro_batch(Host&, std::int64_t, bool sync) override { sync_ = sync; }
  void before_model(Host& host, bool training) override;
  void after_model(Host& host, std::span<SymTensor> outputs) override;
  void pre_forward(Host& host, ModuleId module, std::span<SymTensor> inputs) override;
  void on_accumulated(Host& host, std::uint32_t payload) override;
  void on_function_backward(Host& host, std::uint32_t payload) override;
  void on_backward_callback(Host& host, std::uint32_t what) override;

  // -------------------------------------------------------------- for readers of recordings
  /// Parameters that DDP reduces, in the reducer's order.
  std::vector<ParameterId> reduced_parameters() const;
  const Assignment& first_assignment() const { return first_assignment_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  bool has_rebuilt() const { return rebuilt_; }

 private:
  enum Callback : std::uint32_t { kFinalize, kDelayedReduction, kWaitForUpcast };
  /// Set in the payload of a further hook on an accumulator that has one: it reports no arrival.
  static constexpr std::uint32_t kSecondHook = std::uint32_t{1} << 31;

  // -------------------------------------------------------------- construction (ddp.cc)
  void choose_parameters(Host& host);
  void verify_parameters(Host& host);
  void broadcast_states(Host& host);
  void make_used_map(Host& host);

  // -------------------------------------------------------------- buckets (ddp_rebuild.cc)
  void make_buckets(Host& host, const std::vector<Indices>& assignment);
  void make_views(Host& host, Bucket& bucket);
  void make_storage(Host& host, Bucket& bucket);
  void release_storage();
  void rebuild(Host& host);
  void sync_indices(Host& host, std::int64_t count);
  bool should_rebuild() const {
    return (options_.static_graph || !options_.find_unused_parameters) && !rebuilt_;
  }

  // -------------------------------------------------------------- collectives (ddp_collectives.cc)
  EventId collective(Host& host, CollectiveKind kind, const SymTensor& input,
                     const SymTensor& output, UnitId unit = {});
  void broadcast(Host& host, const SymTensor& t);
  void broadcast_coalesced(Host& host, const std::vector<SymTensor>& tensors);

  // -------------------------------------------------------------- backward (ddp_reduce.cc)
  void ensure_prior_reduction_finished() const;
  void prepare_for_backward(Host& host, std::span<const SymTensor> outputs);
  void mark_ready(Host& host, std::size_t parameter);
  [[noreturn]] void refuse_ready_twice(const Model& model, std::size_t parameter) const;
  void copy_to_bucket(Host& host, std::size_t parameter);
  void flush_deferred(Host& host, Bucket& bucket);
  void launch_ready_buckets(Host& host);
  void reduce_bucket(Host& host, Bucket& bucket);
  void reduce_used_map(Host& host);
  void delayed_reduction(Host& host);
  void finalize(Host& host);
  void finalize_bucket(Host& host, Bucket& bucket);
  bool globally_unused(Host& host, std::size_t parameter);
  bool all_unused(const Bucket& bucket) const;
  /// A graph that may change: unused parameters are searched in every iteration
  /// (dynamic_graph_find_unused).
  bool searches() const { return options_.find_unused_parameters && !options_.static_graph; }
  /// A static graph's first iteration only counts (static_graph_first_iteration).
  bool counts_hooks() const { return options_.static_graph && backward_calls_ == 1; }

  // -------------------------------------------------------------- communication hooks
  // (ddp_hooks.cc)
  bool has_hook() const {
    return options_.comm_hook != DdpCommHook::kNone || options_.mixed_precision;
  }
  void run_hook(Host& host, Bucket& bucket);
  void run_average(Host& host, Bucket& bucket);
  void run_compression(Host& host, Bucket& bucket, DType dtype);
  void run_upcast(Host& host, Bucket& bucket);
  void upcast_gradient(Host& host, SymTensor& grad, const SymTensor& reduced, DType full);
  void run_power_sgd(Host& host, Bucket& bucket);  // ddp_power_sgd.cc
  void prepare_mixed_precision(Host& host);
  void lower_parameters(Host& host);
  void restore_frozen(Host& host);

  DdpOptions options_;
  std::int64_t world_;
  GroupId group_;
  StreamIndex stream_ = 0;              ///< The communicator's.
  std::vector<LocalParameter> locals_;  ///< All trainable parameters.
  Indices reduced_;                     ///< Index into locals_ of each parameter that DDP reduces.
  std::vector<std::size_t> place_in_reduced_;  ///< The other way round; kNotReduced if ignored.
  std::vector<SymTensor> parameters_;          ///< Of reduced_.
  std::vector<SymTensor> buffers_;
  std::vector<Ref<AutogradNode>> accumulators_;
  std::vector<Bucket> buckets_;
  Assignment first_assignment_;
  std::vector<std::pair<std::size_t, std::size_t>>
      place_;  ///< Bucket and position of each parameter.

  SymTensor used_map_;              ///< int32 on the device, one element a parameter.
  std::vector<std::uint8_t> used_;  ///< Host copy: the parameter got a gradient.
  bool used_map_reduced_ = false;   ///< used_ holds the sum over ranks.
  EventId used_map_done_;

  Indices arrival_;  ///< Order in which gradients became ready, until the rebuild.
  Indices unused_;
  std::vector<std::uint8_t> ready_;  ///< Marked in this iteration, by parameter.
  std::vector<std::int64_t> hook_count_,
      hooks_left_;  ///< static_graph: firings per parameter and iteration.
  std::size_t next_bucket_ = 0;
  std::int64_t backward_calls_ = 0;
  bool sync_ = true;             ///< require_backward_grad_sync.
  bool broadcasts_next_ = true;  ///< require_forward_param_sync.
  bool rebuilt_ = false, expects_hooks_ = false, must_finalize_ = false, first_hook_called_ = false;
  bool marked_unused_ = false, delay_queued_ = false;
  std::int64_t power_sgd_iteration_ = 0;  ///< Iterations whose last bucket went out.

  // Mixed precision.
  StreamIndex lower_stream_ = 0, upcast_stream_ = 0;
  bool upcast_queued_ = false;
  struct LowPrecision {
    ParameterId id;
    SymTensor parameter, full, low;  ///< The parameter object; its memory in either precision.
  };
  std::vector<LowPrecision>
      low_;  ///< In order of modules() and their own parameters, tied ones once.
  std::vector<std::int32_t> low_of_;  ///< By ParameterId; -1: none.
  std::vector<EventId> lowered_;  ///< By module: its copies are done. Invalid: waited for, or none.
  std::vector<std::uint8_t> lowered_valid_;
};

/// Steps until the last one repeats: buckets are rebuilt in the second, with a static graph in the
/// third (D-4).
std::int64_t steady_steps(const ParallelConfig& config);

}  // namespace foreshard::ddp
