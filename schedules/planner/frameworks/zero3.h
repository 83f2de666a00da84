#pragma once

// ZeRO stage 3: every parameter in W parts, gathered module by module along a recorded trace (rules Z3-*). Source: DeepSpeed
// 0.19.8 zero/{stage3,parameter_offload,partitioned_param_coordinator,partition_parameters}.py.

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "schedules/planner/frameworks/zero.h"

namespace foreshard::zero {

enum class Status : std::uint8_t { kPartitioned, kInFlight, kAvailable };

/// One all-gather under way.
struct GatherHandle {
  std::vector<ParameterId> parameters;
  SymTensor flat;                          ///< Null if the parameter is gathered in place.
  bool complete = false;
};

struct PartitionedParameter {
  std::int64_t numel = 0, partition = 0;   ///< Elements; elements of one rank's part, padded.
  bool persistent = false, trainable = true;
  SymTensor full;                          ///< The parameter; its storage exists while it is gathered.
  SymTensor shard;
  SymTensor gradient;                      ///< This rank's part, in the static gradient buffer.
  Status status = Status::kPartitioned;
  std::set<ModuleId> active;               ///< Modules that use it now.
  std::shared_ptr<GatherHandle> handle;
};

class Zero3 final : public Zero {
 public:
  Zero3(const ParallelConfig& config, Extras extras);

  void initialize(Host& host) override;
  void before_model(Host& host, bool training) override;
  void pre_forward(Host& host, ModuleId m, std::span<SymTensor> inputs) override;
  void post_forward(Host& host, ModuleId m, std::span<SymTensor> inputs, std::span<SymTensor> outputs) override;
  void on_function_backward(Host& host, std::uint32_t payload) override;
  void on_accumulated(Host& host, std::uint32_t parameter) override;
  void end_micro_batch(Host& host) override;
  void before_optimizer(Host& host) override;
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
  void partition(Host& host);
  void make_sub_groups();
  void watch_modules(Host& host, ModuleId m);
  void gather_persistent(Host& host);

  // ------------------------------------------------------------ zero3_coordinator.cc
  bool is_leaf(ModuleId m) const { return leaves_.count(m) != 0; }
  /// Direct parameters, or those of the subtree; sorted by position in the model.
  std::vector<ParameterId> parameters_of(const Model& model, ModuleId m, bool recurse) const;
  void reset_step(Host& host);
  void compare_integers(Host& host, std::int64_t count);
  void check_trace(Host& host, ModuleId m);
  void fetch(Host& host, ModuleId m, bool forward);
  void prefetch(Host& host, const std::vector<ParameterId>& fetched);
  void start_gather(Host& host, std::vector<ParameterId> ids, const char* cause);
  void finish_gather(Host& host, GatherHandle& handle);
  void wait_for(Host& host, ParameterId id);
  bool release(Host& host, ParameterId id);
  void release_module(Host& host, ModuleId m, bool forward);
  const std::set<ParameterId>& releasable(Host& host, ModuleId m);
  void release_leftovers(Host& host);
  void release_all(Host& host);
  void emit_released(EventKind kind, std::vector<ParameterId> ids, ModuleId m = {}, bool forward = true);

  // ------------------------------------------------------------ zero3_reduce.cc
  void reduce_bucket(Host& host);
  void reduce_scatter(Host& host, std::vector<ParameterId> ids);
  void all_reduce_bucket(Host& host);
  void keep_partition(Host& host, ParameterId id, const SymTensor& part);

  bool overlap_;
  std::map<ParameterId, PartitionedParameter> parameters_;
  std::map<ParameterId, std::size_t> position_;       ///< In model.parameters(): DeepSpeed's ds_id.
  std::set<ModuleId> leaves_;
  std::vector<std::vector<ParameterId>> sub_groups_;
  std::vector<Ref<AutogradNode>> accumulators_;

  Trace trace_ = Trace::kInvalid;
  std::vector<ModuleId> module_order_;
  std::vector<Use> parameter_order_;
  std::deque<Use> queue_;
  std::map<ParameterId, std::int64_t> fetched_for_;   ///< Last step of the trace that a fetch has counted.
  std::map<std::pair<ModuleId, std::int64_t>, std::set<ParameterId>> releasable_;
  std::int64_t trace_step_ = 0, available_ = 0;
  std::deque<EventId> fetch_events_, reduce_events_;
  std::vector<ModuleId> active_backward_;

  SymTensor bucket_buffer_;
  std::vector<ParameterId> bucket_;
  std::int64_t elements_ = 0;
};

}  // namespace foreshard::zero
