#pragma once

// FSDP2 (`fully_shard` of PyTorch 2.15) as a Framework: states with hooks around modules, parameter
// groups that gather and reduce, one communication context per root. docs/symbolic-host.md says
// when the host fires which hook.

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "schedules/planner/frameworks/framework.h"
#include "schedules/planner/frameworks/fsdp2_gather.h"
#include "schedules/planner/frameworks/fsdp2_reduce.h"
#include "schedules/planner/frameworks/fsdp2_wrap.h"

namespace foreshard::fsdp2 {

class Fsdp2 final : public Framework {
 public:
  explicit Fsdp2(const ParallelConfig& config, WrapExtras extras = {});
  ~Fsdp2() override;

  // Framework
  void initialize(Host& host) override;
  std::uint64_t rank_class(const Model& model, const ParallelConfig& config,
                           std::int64_t rank) const override;
  std::span<const LocalParameter> local_parameters() const override { return local_parameters_; }
  void pre_forward(Host& host, ModuleId module, std::span<SymTensor> inputs) override;
  void post_forward(Host& host, ModuleId module, std::span<SymTensor> inputs,
                    std::span<SymTensor> outputs) override;
  void forward_aborted(Host& host, ModuleId module) override;
  bool at_rest() const override;
  void on_tensor_hook(Host& host, std::uint32_t payload, SymTensor& gradient) override;
  void on_function_backward(Host& host, std::uint32_t payload) override;
  void on_backward_callback(Host& host, std::uint32_t payload) override;
  void begin_micro_batch(Host& host, std::int64_t index, bool sync) override;
  void clip_gradients(Host& host, double max_norm) override;
  void after_optimizer(Host& host) override;
  void zero_gradients(Host& host) override;

  // What a user's script can call on a wrapped module. Fsdp2Error where PyTorch refuses.
  void set_requires_gradient_sync(ModuleId m, bool on, bool recurse = true);
  void set_requires_all_reduce(ModuleId m, bool on, bool recurse = true);
  void set_reshard_after_forward(ModuleId m, Reshard reshard, bool recurse = true);
  void set_reshard_after_backward(ModuleId m, bool on, bool recurse = true);
  void set_reduce_scatter_max_inputs(ModuleId m, std::int64_t n, bool recurse = true);
  void set_reduce_unused(ModuleId m, bool on, bool recurse = true);
  void set_separate_reduce_group(ModuleId m, bool on, bool recurse = true);
  void set_keep_unsharded_storage(ModuleId m, bool on, bool recurse = true);
  void set_unshard_async(ModuleId m, bool on);
  void set_divide_factor(ModuleId m, double factor);
  void set_force_sum(ModuleId m, bool on);
  void set_unshard_in_backward(ModuleId m, bool on);
  void set_all_reduce_hook(ModuleId m);
  void set_is_last_backward(ModuleId m, bool on);
  // Manual finalisation (fsdp2_finalize.cc).
  void set_manual_backward_finalization(ModuleId m, bool on);
  /// Reduces what backward left. `async`: the wait for it is wait_for_gradient_reduction.
  void finalize_backward(ModuleId m, bool async);
  void wait_for_gradient_reduction(ModuleId m);
  void set_forward_prefetch(ModuleId m, const std::vector<ModuleId>& targets);
  void set_backward_prefetch(ModuleId m, const std::vector<ModuleId>& targets);
  void unshard(ModuleId m, bool async);
  void reshard(ModuleId m);
  /// parameter.requires_grad_() on every parameter under a module.
  void set_requires_grad(ModuleId m, bool on);

  const Wrapping& wrapping() const { return *wrapping_; }
  const ParamGroup& group_of(UnitId unit) const { return *wrapping_->groups()[unit.value]; }
  /// Parameters that the model sees whole now: no group owns them, or their group is gathered.
  std::vector<std::string> unsharded_parameters() const;

 private:
  // initialisation (fsdp2_initialize.cc)
  void mark_float8_weights();  // fsdp2_float8.cc
  void make_units();
  void make_shards();
  void publish_parameters();
  void apply_config();
  void list_prefetches();
  void lazy_init_root(State& state);
  void share_context(State& root);
  void refuse_shared_parameters(const State& root) const;
  void lazy_init_group(ParamGroup& group);

  // hooks (fsdp2_hooks.cc)
  void root_pre_forward(State& state);
  void state_pre_forward(State& state, std::span<SymTensor> inputs);
  void state_post_forward(State& state, std::span<SymTensor> outputs);
  void group_pre_forward(ParamGroup& group, std::span<SymTensor> inputs);
  void group_post_forward(ParamGroup& group);
  void group_pre_backward(ParamGroup& group, bool default_prefetch);
  void backward_prefetch(ParamGroup& group);
  void prefetch(ParamGroup& target, bool backward);
  void pre_backward(State& state);
  void final_callback(State& state);
  void end_backward(State& state);
  void check_finalizable(const State& state) const;  // fsdp2_finalize.cc
  void complete_incomplete_states(State& root, std::span<SymTensor> outputs);
  void cast_inputs(const State& state, std::span<SymTensor> inputs);
  void cast_outputs(const State& state, std::span<SymTensor> outputs);
  void register_pre_backward(const State& state, std::span<SymTensor> outputs);
  void decide_root(DecisionKind kind, const State& state);

  // clipping (fsdp2_clip.cc)
  struct OwnedPlace {
    ParameterId id;
    const Wrapping::Owner* owner;
  };
  const std::vector<OwnedPlace>& parameter_places() const;
  std::vector<std::pair<SymTensor, ParamGroup*>> gradients_in_order() const;
  SymTensor total_norm(Host& host, const std::vector<SymTensor>& norms, ParamGroup* owner,
                       bool offload);
  void all_reduce_norms(Host& host, ParamGroup& owner, const SymTensor& vector);
  void scale_gradients(Host& host, const std::vector<SymTensor>& gradients, const SymTensor& total,
                       double max_norm, bool offload);

  State& state_at(ModuleId m) const;
  template <typename Change>
  void for_groups(ModuleId m, bool recurse, Change change);

  const ParallelConfig& config_;
  WrapExtras extras_;
  Host* host_ = nullptr;
  std::unique_ptr<Meshes> meshes_;
  std::unique_ptr<Wrapping> wrapping_;
  std::optional<Gatherer> gatherer_;
  std::optional<Reducer> reducer_;
  std::vector<LocalParameter> local_parameters_;
  mutable std::optional<bool> rows_divide_;  ///< Ranks hold alike; known after the first asks.
  mutable std::set<std::pair<std::int64_t, std::int64_t>>
      cuts_;                                ///< Sizes that are cut, and over how many ranks.
  mutable std::vector<OwnedPlace> places_;  ///< Made on first use.
  std::vector<SymTensor> plain_;  ///< Unsharded parameters by id; null where a group owns it.
};

/// The `fully_shard` calls of a configuration, inner modules first (F2-G-5).
std::vector<WrapCall> wrap_calls(const Model& model, const ParallelConfig& config);

}  // namespace foreshard::fsdp2
