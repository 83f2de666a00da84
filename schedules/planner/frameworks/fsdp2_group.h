#pragma once

// States and parameter groups of FSDP2: what one `fully_shard` call makes (F2-G-1), the switches a
// user can set on it, and where it stands in an iteration.

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "schedules/planner/frameworks/fsdp2_parameter.h"
#include "schedules/planner/frameworks/fsdp2_runtime.h"

namespace foreshard::fsdp2 {

enum class TrainingState : std::uint8_t { kIdle, kForward, kPreBackward, kPostBackward };
enum class ShardedState : std::uint8_t { kSharded, kShardedPostForward, kUnsharded };

struct State;
struct CommContext;
struct StateContext;

/// What a user can set on a group after wrapping it.
struct GroupSwitches {
  bool reduce_grads = true;      ///< set_requires_gradient_sync
  bool all_reduce_grads = true;  ///< set_requires_all_reduce
  bool reshard_after_backward = true;
  std::int64_t reduce_scatter_max_inputs = 1;  ///< F2-RS-4
  std::optional<double> divide_factor;         ///< F2-RS-8
  bool reduce_unused = false;                  ///< Zero gradients for parameters that got none.
  bool force_sum = false;
  bool unshard_async = false;       ///< F2-AG-10
  bool unshard_in_backward = true;  ///< F2-AG-3
  bool all_reduce_hook = false;     ///< F2-AR-3
  GroupId separate_reduce_group;    ///< Valid: reduce-scatters have a communicator of their own
                                    ///< (F2-AG-13).
};

/// Parameters that communicate together (one mesh of one `fully_shard` call).
struct ParamGroup {
  State* state = nullptr;
  std::vector<ModuleId> modules;
  std::vector<ShardedParameter> parameters;
  Mesh* mesh = nullptr;
  /// Where parameters go after forward: nullptr = they stay, `mesh` = back to the shards, another =
  /// a smaller group.
  Mesh* post_forward_mesh = nullptr;
  GroupSwitches switches;
  std::size_t wrap_index = 0;  ///< Position in wrap order.
  UnitId unit;
  /// Own context until a root adopts the group.
  std::shared_ptr<CommContext> comm;

  // Set when the root first runs.
  int index = 0, group_count = 1;  ///< Among the groups of the state (F2-G-9).
  bool initialised = false;
  std::optional<DType> reduce_dtype;      ///< Absent: decided per reduction.
  std::vector<std::size_t> reduce_order;  ///< Packing order of the reduce-scatter.
  std::vector<std::size_t>
      wider_gradients;  ///< Parameters whose gradient is kept in a wider dtype (F2-AC-1).

  // Where it stands.
  TrainingState training = TrainingState::kIdle;
  ShardedState sharded = ShardedState::kSharded;
  std::vector<std::size_t> post_forward_indices;
  bool post_backward_pending = false;  ///< Its reduction is left to finalize_backward.
  GroupRuntime runtime;

  bool uses_smaller_mesh() const {
    return post_forward_mesh != nullptr && post_forward_mesh != mesh;
  }
  GroupId reduce_group() const {
    return switches.separate_reduce_group.valid() ? switches.separate_reduce_group
                                                  : mesh->shard_group;
  }
  Mesh& gather_mesh() const {
    return sharded == ShardedState::kShardedPostForward ? *post_forward_mesh : *mesh;
  }
};

/// One `fully_shard` call.
struct State {
  std::uint32_t index = 0;  ///< In wrap order.
  std::vector<ModuleId> modules;
  std::vector<std::unique_ptr<ParamGroup>> groups;
  MixedPrecision precision;
  bool auto_reshard = true;  ///< The user left resharding to the default (F2-F-4).
  std::vector<State*> forward_prefetch, backward_prefetch;
  std::optional<bool> is_root;  ///< Absent until a root ran over it.
  TrainingState training = TrainingState::kIdle;
  std::set<ModuleId>
      modules_to_run;  ///< Grouped calls: listed modules still to run in this pass (F2-G-3).
  std::shared_ptr<StateContext> context;
  std::shared_ptr<CommContext> comm;
};

/// Names a group as people do: "layers.0", "norm,head", "(root)", "layers.0#1".
std::string unit_name(const Model& model, const ParamGroup& group);
std::string state_name(const Model& model, const State& state);

}  // namespace foreshard::fsdp2
