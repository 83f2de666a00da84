#pragma once

// `fully_shard` calls: which parameters form a group, on which mesh, in which order (F2-G-1 ..
// F2-G-10, F2-P-1 .. F2-P-3).

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "schedules/planner/frameworks/fsdp2_group.h"

namespace foreshard::fsdp2 {

/// What PyTorch lets a user do to a model before wrapping, beyond what Model and ParallelConfig
/// say.
struct WrapExtras {
  std::map<ParameterId, GradDtypePolicy> grad_dtype;
  std::vector<std::string> non_contiguous;  ///< Parameters stored with other strides: refused.
};

/// Meshes of the job and the groups of ranks behind them.
class Meshes {
 public:
  /// `rank` is the global rank, replicate_index * shard + shard_index.
  Meshes(std::int64_t shard, std::int64_t replicate, std::int64_t rank, std::vector<Group>& groups);

  Mesh& whole() { return *whole_; }
  /// Consecutive shard ranks, `size` of them; one object per size (per-parameter meshes, F2-G-9).
  Mesh& consecutive(std::int64_t size);
  /// Mesh of resharding to `size` ranks. A new object and new communicators for each call (F2-F-3).
  Mesh& post_forward(std::int64_t size);

 private:
  GroupId add_group(const std::string& name, std::int64_t size, std::int64_t stride);
  Mesh& add(Mesh mesh);

  std::int64_t shard_, replicate_, rank_;
  std::vector<Group>& groups_;
  std::vector<std::unique_ptr<Mesh>> all_;
  Mesh* whole_ = nullptr;
  std::map<std::int64_t, Mesh*> consecutive_;
};

/// The states of a model and who owns which module and parameter.
class Wrapping {
 public:
  Wrapping(const Model& model, Meshes& meshes, const WrapExtras& extras)
      : model_(model),
        meshes_(meshes),
        extras_(extras),
        state_of_(model.modules.size()),
        owners_(model.modules.size()) {}

  /// One call. Fsdp2Error where PyTorch refuses; a call that fails leaves no group.
  void apply(const WrapCall& call, const MixedPrecision& default_precision);

  /// nullptr if the module is not wrapped.
  State* state_of(ModuleId module) const { return state_of_[module.value]; }
  const std::vector<std::unique_ptr<State>>& states() const { return states_; }
  /// All groups in wrap order.
  const std::vector<ParamGroup*>& groups() const { return groups_; }
  /// Whether the parameter that `module` calls `name` has been sharded by a call so far.
  bool is_sharded(ModuleId module, const std::string& name) const {
    return owner_of(module, name) != nullptr;
  }
  /// Group and index inside it of the parameter that `module` calls `name`; nullptr if no group
  /// owns it.
  struct Owner {
    ParamGroup* group = nullptr;
    std::size_t index = 0;
  };
  const Owner* owner_of(ModuleId module, const std::string& name) const;
  const Model& model() const { return model_; }

 private:
  std::vector<ModuleId> root_modules(const WrapCall& call) const;
  std::vector<ModuleId> managed_modules(const std::vector<ModuleId>& roots) const;
  std::unique_ptr<ParamGroup> make_group(
      State& state, const WrapCall& call, Mesh& mesh, Mesh* post_forward,
      const std::vector<std::pair<ModuleId, OwnedParameter>>& owned);
  Mesh* post_forward_mesh(const Reshard& reshard, Mesh& mesh, const std::string& place);
  void find_places(ParamGroup& group,
                   const std::vector<std::pair<ModuleId, OwnedParameter>>& owned);

  const Model& model_;
  Meshes& meshes_;
  const WrapExtras& extras_;
  std::vector<std::unique_ptr<State>> states_;
  std::vector<ParamGroup*> groups_;
  std::vector<std::size_t> index_in_group_;  ///< By parameter, while find_places() runs.
  std::vector<State*> state_of_;             ///< By module.
  std::vector<std::vector<std::pair<std::string, Owner>>> owners_;  ///< By module: its parameters.
};

/// Every module under `root`, parents first, each once; with `repeat`, once for each name.
std::vector<ModuleId> modules_under(const Model& model, ModuleId root, bool repeat = false);

}  // namespace foreshard::fsdp2
