#pragma once

// ZeRO stage 3: every parameter in W parts, gathered module by module along a recorded trace (rules
// Z3-*). Source: DeepSpeed 0.19.8
// zero/{stage3,parameter_offload,partitioned_param_coordinator,partition_parameters}.py.

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "schedules/planner/frameworks/zero.h"
#include "schedules/planner/host/pool.h"

namespace foreshard::zero {

enum class Status : std::uint8_t { kPartitioned, kInFlight, kAvailable };

/// One all-gather under way, held by its parameters.
struct GatherHandle {
  std::uint32_t refs = 0;
  Pool<GatherHandle>* pool = nullptr;
  std::vector<ParameterId> parameters;
  std::int64_t ranks = 1;  ///< Of the group that gathers: the job, or a secondary group (Z3-X).
  std::vector<std::int64_t> parts;  ///< Elements of one rank's part of each parameter.
  SymTensor flat;                   ///< Null if the parameter is gathered in place.
  SymTensor bytes, scales;          ///< What a quantised gather (qwZ) brings; else null.
  bool complete = false;
};
void destroy(GatherHandle* h);

struct PartitionedParameter {
  std::int64_t numel = 0, partition = 0;  ///< Elements; elements of one rank's part, padded.
  bool persistent = false, trainable = true;
  SymTensor full;     ///< The parameter; its data comes with each gather and goes with the release.
  SymTensor nothing;  ///< The data of a released parameter.
  SymTensor shard;    ///< On the device, or in host memory.
  SymTensor secondary;  ///< Part of the secondary group (hpZ), from a release until the next step.
  SymTensor gradient;   ///< This rank's part, in the static gradient buffer.
  std::size_t sub_group = 0;
  std::int64_t position = 0;  ///< Of the part in its sub-group.
  Status status = Status::kPartitioned;
  std::vector<ModuleId> active;  ///< Modules that use it now, each once.
  Ref<GatherHandle> handle;
};

/// A value for each parameter, by its number in the model.
template <typename T>
class ByParameter {
 public:
  bool empty() const { return values_.empty(); }
  void resize(std::size_t parameters) { values_.resize(parameters); }
  /// The same value for all of them.
  void assign(std::size_t parameters, const T& value) { values_.assign(parameters, value); }
  T& at(ParameterId id) { return values_.at(id.value); }
  const T& at(ParameterId id) const { return values_.at(id.value); }
  std::uint32_t size() const { return static_cast<std::uint32_t>(values_.size()); }

 private:
  std::vector<T> values_;
};

class Zero3 final : public Zero {
 public:
  Zero3(const ParallelConfig& config, Extras extras);

  void initialize(Host& host) override;
  void before_model(Host& host, bool training) override;
  void pre_forward(Host& host, ModuleId m, std::span<SymTensor> inputs) override;
  void post_forward(Host& host, ModuleId m, std::span<SymTensor> inputs,
                    std::span<SymTensor> outputs) override;
  bool sees_no_tensors() const override { return true; }
  void on_function_backward(Host& host, std::uint32_t payload) override;
  void on_accumulated(Host& host, std::uint32_t parameter) override;
  void end_micro_batch(Host& host) override;
  void before_optimizer(Host& host) override;
  void update(Host& host, Optimizer* optimizer) override;
  void after_optimizer(Host& host) override;

  const PartitionedParameter& parameter(ParameterId id) const { return parameters_.at(id); }
  const std::vector<std::vector<ParameterId>>& sub_groups() const { return sub_groups_; }
  bool overlaps() const { return overlap_; }

 private:
  enum class Trace : std::uint8_t { kInvalid, kRecord, kComplete };
  struct Use {
    ParameterId id;
    std::int64_t step;
  };

  // ------------------------------------------------------------ zero3.cc
  void describe_parameters(Host& host);
  void partition(Host& host, ParameterId id);
  void make_sub_groups();
  void find_leaves(const Model& model);
  void watch_modules(Host& host, ModuleId m);
  void move_parts(Host& host);
  bool steps_on_cpu(std::size_t sub_group) const;
  void make_masters(Host& host);
  void make_offloaded_gradients(Host& host);
  void make_gradients(Host& host);
  void publish(Host& host);
  void gather_once(Host& host);

  // ------------------------------------------------------------ zero3_coordinator.cc
  bool is_leaf(ModuleId m) const { return leaves_.count(m) != 0; }
  /// Direct parameters, or those of the subtree; sorted by position in the model.
  const std::vector<ParameterId>& parameters_of(const Model& model, ModuleId m, bool recurse) {
    const auto& known = parameters_of_[recurse ? 1 : 0];
    if (m.value < known.size() && known[m.value]) return *known[m.value];
    return find_parameters(model, m, recurse);
  }
  const std::vector<ParameterId>& find_parameters(const Model& model, ModuleId m, bool recurse);
  void reset_step(Host& host);
  void compare_integers(Host& host, std::int64_t count);
  void check_trace(Host& host, ModuleId m);
  void clean_in_flight(Host& host);
  void fetch(Host& host, ModuleId m, bool forward);
  void prefetch(Host& host, const std::vector<ParameterId>& fetched);
  bool release(Host& host, ParameterId id, bool record = true);
  void release_module(Host& host, ModuleId m, bool forward);
  const std::vector<ParameterId>& releasable(Host& host, ModuleId m);
  void release_leftovers(Host& host);
  void release_all(Host& host);
  void emit_released(EventKind kind, std::vector<ParameterId> ids, ModuleId m = {},
                     bool forward = true);

  // ------------------------------------------------------------ zero3_gather.cc
  void start_gather(Host& host, const std::vector<ParameterId>& wanted, const char* cause);
  void start_gather_of(Host& host, const std::vector<ParameterId>& ids, bool secondary);
  void gather_parts(Host& host, GatherHandle& handle, const TensorList& parts, GroupId group);
  void finish_gather(Host& host, GatherHandle& handle);
  void wait_for(Host& host, ParameterId id, bool fast);
  /// parameter.data = a new tensor on the current stream; returns it flat, padded.
  SymTensor new_data(Host& host, PartitionedParameter& p);
  void make_secondary(Host& host, PartitionedParameter& p);
  void gather_persistent(Host& host);

  // ------------------------------------------------------------ zero3_quantised.cc
  void gather_quantised(Host& host, GatherHandle& handle, const TensorList& parts, GroupId group);
  void finish_quantised(Host& host, GatherHandle& handle);
  bool reduces_quantised() const;
  bool exchanged_quantised(ParameterId id) const;
  void reduce_scatter_quantised(Host& host, const std::vector<ParameterId>& ids);
  SymTensor reduce_one_quantised(Host& host, const SymTensor& gradient);

  // ------------------------------------------------------------ zero3_reduce.cc
  void add_to_bucket(Host& host, ParameterId id);
  void reduce_leaf(Host& host, ModuleId m);
  void reduce_bucket(Host& host);
  void reduce_scatter(Host& host, const std::vector<ParameterId>& ids);
  /// Returns this rank's parts, one after the other.
  SymTensor scattered(Host& host, const std::vector<ParameterId>& ids);
  void all_reduce_bucket(Host& host);
  void keep_partition(Host& host, ParameterId id, const SymTensor& part);
  void offload_partition(Host& host, ParameterId id, const SymTensor& part, const SymTensor& kept);

  // ------------------------------------------------------------ zero3_step.cc
  void copy_back(Host& host, const SymTensor& master, const SymTensor& parts);

  bool overlap_;
  Pool<GatherHandle> handles_;  ///< Before what holds them.
  ByParameter<PartitionedParameter> parameters_;
  ByParameter<std::size_t> position_;  ///< In model.parameters(): DeepSpeed's ds_id.
  /// Answers of parameters_of(), by module: direct ones, those of the subtree.
  std::array<std::vector<std::optional<std::vector<ParameterId>>>, 2> parameters_of_;
  std::set<ModuleId> leaves_;
  bool fast_leaves_ = false;  ///< Leaves by granularity: no events, no record_stream (Z3-P-3).
  std::map<ParameterId, ModuleId> leaf_of_;  ///< Parameters reduced with their leaf module.
  std::vector<std::vector<ParameterId>> sub_groups_;
  std::vector<Ref<AutogradNode>> accumulators_;
  GroupId secondary_group_, node_group_, across_nodes_group_;  ///< The last two: of qgZ.

  Trace trace_ = Trace::kInvalid;
  std::vector<ModuleId> module_order_;
  std::vector<Use> parameter_order_;
  std::deque<Use> queue_;
  static constexpr std::int64_t kNever = -1;
  ByParameter<std::int64_t> fetched_for_;  ///< Last step of the trace that a fetch has counted.
  std::map<std::pair<ModuleId, std::int64_t>, std::vector<ParameterId>> releasable_;
  std::vector<ParameterId> releasing_;  ///< Of one module; kept to grow once.
  std::int64_t trace_step_ = 0, available_ = 0;
  std::deque<EventId> fetch_events_, reduce_events_;
  std::vector<ModuleId> active_backward_;
  std::vector<int> grads_remaining_;  ///< By module: its inputs whose gradients are to come.
  std::map<ModuleId, std::set<ParameterId>>
      recompute_;  ///< Frozen parameters that a recomputation fetched for it.

  SymTensor bucket_buffer_;
  std::vector<ParameterId> bucket_;
  std::int64_t elements_ = 0;
  SymTensor gradients_;  ///< Static buffer of this rank's parts.
  /// Of each sub-group: 16-bit parts; with an offloaded optimizer its fp32 gradients.
  std::vector<SymTensor> sub_group_parts_, offloaded_gradients_;
  std::map<ParameterId, SymTensor> parameter_norms_;
  TensorList norms_;
  std::vector<std::pair<ParameterId, BufferId>>
      carried_;  ///< Persistent parameters whole at the start of this step.
};

}  // namespace foreshard::zero
