#pragma once

// FSDP1 (FullyShardedDataParallel of PyTorch 2.15, flat parameters) as a Framework. Source of the
// rules: torch/distributed/fsdp/{_runtime_utils,_flat_param,_exec_order_utils,_limiter_utils}.py;
// rule ids F1-*. docs/fsdp1.md gives the state machine.

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "schedules/planner/frameworks/framework.h"
#include "schedules/planner/frameworks/fsdp1_event.h"
#include "schedules/planner/frameworks/fsdp1_unit.h"

namespace foreshard::fsdp1 {

/// What a run is watched by and where it differs from a GPU job.
struct Extras {
  Observer* observer = nullptr;  ///< May be null; must outlive the framework.
  /// The compute device is the CPU, as in recordings: offloaded parameters are on it already,
  /// nothing is copied.
  bool computes_on_cpu = false;
};

enum class TrainingState : std::uint8_t { kIdle, kForward, kBackwardPre, kBackwardPost };

/// An original parameter as the optimizer sees it (use_orig_params): a view of the local shard, its
/// gradient a view too.
struct OriginalParameter {
  SymTensor parameter;  ///< numel 0 if this rank stores none of it.
  /// The tracked view that the running forward used (FlatParameter._tensors).
  SymTensor forward_view;
  bool gradient_none = false;  ///< FlatParameter._is_grad_none_mask.
};

/// FlatParamHandle: a unit's flat parameter at run time. `flat_param` is one leaf whose data is
/// exchanged.
struct Handle {
  const FlatLayout* layout = nullptr;
  UnitId unit;
  SymTensor flat_param;
  SymTensor local_shard;  ///< Full precision; in pinned host memory with offload.
  /// Its storage lives from pre-unshard to post-unshard (NO_SHARD: to reshard).
  SymTensor low_precision_shard;
  SymTensor full, full_precision;  ///< Padded gathered storages, allocated while unsharded.
  SymTensor cpu_gradient;
  /// FlatParameter._saved_grad_shard; the attribute may exist and be null.
  std::optional<SymTensor> saved_gradient;
  std::vector<SymTensor> views;  ///< What the modules' attributes are, by entry (null: padding).
  /// What the tracked views of the constructor keep alive, until others take their place.
  Ref<AutogradNode> constructed_accumulator;
  std::vector<OriginalParameter> originals;  ///< By entry; empty without original parameters.
  bool skipped_sharded_views = false;

  TrainingState state = TrainingState::kIdle;
  bool prefetched = false, needs_pre_forward_unshard = false, needs_pre_backward_unshard = false;
  bool ran_pre_backward = false, post_backward_called = false;
  std::optional<std::size_t> pre_forward_index, post_forward_index;
  bool hook_registered = false;
  Ref<AutogradNode> hooked_accumulator;  ///< Null if the hook is one on the inputs' gradients.

  bool mixed_parameters() const { return layout->forward_dtype != layout->dtype; }
};

/// _FSDPState of one instance.
struct State {
  Unit unit;
  int index = 0;
  bool is_root = false;
  std::optional<Handle> handle;
};

class Fsdp1 final : public Framework {
 public:
  Fsdp1(const ParallelConfig& config, Extras extras);
  ~Fsdp1() override;

  void initialize(Host& host) override;
  std::uint64_t rank_class(const Model& model, const ParallelConfig& config,
                           std::int64_t rank) const override;
  std::span<const LocalParameter> local_parameters() const override { return local_parameters_; }
  void pre_forward(Host& host, ModuleId module, std::span<SymTensor> inputs) override;
  void post_forward(Host& host, ModuleId module, std::span<SymTensor> inputs,
                    std::span<SymTensor> outputs) override;
  void forward_aborted(Host& host, ModuleId module) override;
  void on_tensor_hook(Host& host, std::uint32_t payload, SymTensor& gradient) override;
  void on_accumulated(Host& host, std::uint32_t payload) override;
  void on_backward_callback(Host& host, std::uint32_t payload) override;
  void begin_micro_batch(Host& host, std::int64_t index, bool sync) override;
  void clip_gradients(Host& host, double max_norm) override;
  void zero_gradients(Host& host) override;

  /// The instances in the order of root.modules().
  const std::vector<std::unique_ptr<State>>& states() const { return states_; }

 private:
  // construction (fsdp1_initialize.cc)
  void make_states();
  void construct_all();
  /// Parameters as the model was built with them, and how many units have yet to flatten each.
  struct WholeParameters {
    std::vector<SymTensor> tensors;
    std::vector<int> units;
  };
  void construct(State& state, WholeParameters& whole);
  std::vector<SymTensor> make_padding(const Handle& h);
  void make_local_shard(State& state);
  void keep_device_views(State& state);
  void place_local_shard(State& state);
  void make_flat_parameter(State& state);
  void make_originals(State& state);
  void publish(State& state);
  void make_plain(ParameterId id);
  void find_contested();
  void find_outside();
  /// Says what PyTorch accepts and does not train as it reads.
  void remark_on_untrained();
  void list_local_parameters();
  // first forward (fsdp1_lazy_init.cc)
  void lazy_init();
  void make_streams();
  void cast_buffers();
  void init_flat_param_attributes(State& state);

  // one flat parameter (fsdp1_handle.cc)
  bool pre_unshard(State& state);
  void use_low_precision_shard(State& state);
  void to_device(State& state);
  bool needs_unshard(const State& state) const;
  void unshard_handle(State& state);
  void use_unsharded_flat_param(State& state, const SymTensor& padded);
  void use_unsharded_views(State& state);
  void post_unshard(State& state);
  void free_low_precision_shard(State& state);
  void use_sharded_flat_param(State& state);
  void use_sharded_views(State& state);
  void free_full(State& state);

  // gradients of original parameters (fsdp1_gradients.cc)
  void use_sharded_gradient_views(State& state);
  void use_unsharded_gradient_views(State& state);
  void set_gradient_view(Handle& handle, std::size_t entry, const SymTensor& view,
                         bool always_placeholder);
  void write_back_gradients(State& state);
  SymTensor like_local_shard(const Handle& handle);
  void reset_gradient_info();
  void prepare_gradient_for_backward(State& state);
  void prepare_gradient_for_optimizer(State& state);
  SymTensor sharded_gradient(const Handle& handle) const;

  // hooks (fsdp1_hooks.cc)
  void unshard(State& state, UnshardCause cause);
  void reshard(State& state, bool free_full_storage);
  void unit_pre_forward(State& state, std::span<SymTensor> inputs);
  void root_pre_forward(State& root, std::span<SymTensor> inputs);
  void pre_forward_unshard(State& state);
  void register_post_backward(State& state, std::span<SymTensor> inputs);
  void register_pre_backward(State& state, std::span<SymTensor> outputs);
  void record_pre_forward(State& state);
  void record_post_forward(State& state);
  void prefetch(State& state, bool backward);
  State* prefetch_target(State& state);
  void pre_backward(State& state);
  void post_backward(State& state);
  void post_backward_reshard(State& state);
  bool frees_in_backward(const State& state) const;
  void final_callback();
  void finalize(State& state);

  // gradient reduction (fsdp1_reduce.cc)
  void reduce_gradient(State& state);
  void reduce_sharded(State& state);
  void reduce_unsharded(State& state);
  SymTensor save_sharded_gradient(State& state, SymTensor gradient);
  SymTensor cast_gradient(State& state, const SymTensor& gradient, DType dtype);
  void after_reduction(State& state, const SymTensor& to_offload);
  void divide(State& state, const SymTensor& gradient, double factor);

  // helpers (fsdp1.cc): the instruction and its event
  State* state_of(ModuleId m) const;
  void emit(const Event& e) {
    if (extras_.observer != nullptr) extras_.observer->on_event(e);
  }
  void emit(EventKind kind, const State& state, bool flag = false);
  std::string stream_name(StreamIndex s) const;
  void wait(StreamIndex stream, StreamIndex on);
  void record_stream(const State& state, const SymTensor& t, FlatBuffer buffer, StreamIndex stream);
  void allocate(const State& state, const SymTensor& t, FlatBuffer buffer);
  void release(const State& state, const SymTensor& t, FlatBuffer buffer);
  void collective(const State* state, CollectiveKind kind, const SymTensor& input,
                  const SymTensor& output, GroupId group);
  void spend(const State& state, double us, double us_each);

  // clipping (fsdp1_clip.cc)
  SymTensor cast_scalar(const SymTensor& t, DType dtype);
  SymTensor norm_on_host(const std::vector<SymTensor>& gradients);
  SymTensor gradient_norm(const std::vector<SymTensor>& gradients);
  void make_zero_scalar();
  void clip_whole(const std::vector<SymTensor>& gradients, double max_norm);
  SymTensor scalar(MemorySpace space = MemorySpace::kDevice);
  SymTensor moved(const SymTensor& t, MemorySpace space);
  std::pair<SymTensor, SymTensor> scale(const std::vector<SymTensor>& gradients,
                                        const SymTensor& norm, double max_norm);

  // full-precision classes (F1-G-5)
  void cast_floating(std::span<SymTensor> tensors, DType dtype);

  ParallelConfig config_;
  Extras extras_;
  Host* host_ = nullptr;
  std::int64_t shard_rank_ = 0;
  GroupId shard_group_, replicate_group_;
  StreamIndex unshard_stream_ = 0, pre_unshard_stream_ = 0, post_backward_stream_ = 0,
              all_reduce_stream_ = 0;
  // For rank_class.
  mutable std::optional<bool> rows_divide_;
  mutable std::vector<Unit> wrapped_;
  std::vector<std::unique_ptr<State>> states_;
  std::vector<State*> state_of_module_;  ///< By module id; null: not wrapped.
  std::vector<LocalParameter> local_parameters_;
  std::vector<SymTensor> plain_;  ///< Parameters that no unit manages, by id.
  /// By module: casts inputs to fp32 and outputs back.
  std::vector<std::uint8_t> full_precision_;
  /// Running full-precision modules and the dtype to go back to.
  std::vector<std::pair<ModuleId, DType>> casts_;
  /// Parameters stored in several units (F1-G-6): the modules that use them take their own unit's
  /// view.
  std::vector<std::pair<ModuleId, std::pair<State*, std::size_t>>> contested_;
  /// Modules that use a parameter which a unit without them stores: with original parameters they
  /// see its shard, whatever that unit has gathered.
  std::vector<std::pair<ModuleId, std::string>> outside_;  ///< And the parameter's name.
  bool initialized_ = false;                               ///< Lazy initialisation is done.
  SymTensor zero_scalar_;  ///< FullyShardedDataParallel._zero_scalar, made by the first clipping.
  bool sync_ = true;       ///< False inside no_sync.
  bool callback_queued_ = false;

  // execution order (_exec_order_utils.py)
  std::int64_t iteration_ = 0;
  std::vector<State*> pre_forward_order_, post_forward_order_;
  // rate limiter (_limiter_utils.py)
  struct FreeEvent {
    EventId event;
    int unit;
    std::int64_t number;
  };
  std::deque<FreeEvent> free_events_;
  std::int64_t pushed_ = 0;

  /// register_multi_grad_hook of an all-frozen unit: fires when the gradients of all inputs are
  /// there.
  struct InputHook {
    State* state;
    std::vector<Ref<AutogradNode>> nodes;  ///< Of the inputs; no node once it is removed.
    std::size_t seen = 0;
  };
  std::vector<InputHook> input_hooks_;
};

std::unique_ptr<Framework> make_fsdp1(const ParallelConfig& config, Extras extras = {});

}  // namespace foreshard::fsdp1
