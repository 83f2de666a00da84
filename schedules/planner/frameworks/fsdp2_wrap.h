#pragma once

// `fully_shard` calls: which parameters form a group, on which mesh, in which order (F2-G-1 ..
// F2-G-10, F2-P-1 .. F2-P-3).

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "schedules/planner/frameworks/fsdp2_group.h"
#include "schedules/planner/parameter_places.h"

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
        places_(model),
        owners_(places_.count()) {}

  /// One call. Fsdp2Error where PyTorch refuses; a call that fails leaves no group.
  void apply(const WrapCall& call, const MixedPrecision& default_precision);

  /// nullptr if the module is not wrapped.
  State* state_of(ModuleId module) const { return state_of_[module.value]; }
  const std::vector<std::unique_ptr<State>>& states() const { return states_; }
  /// All groups in wrap order.
  const std::vector<ParamGroup*>& groups() const { return groups_; }
  /// Group and index inside it of a parameter of `module`, one of Module::parameters; nullptr if no
  /// group owns it by this place.
  struct Owner {
    ParamGroup* group = nullptr;
    std::size_t index = 0;
  };
  const Owner* owner_of(ModuleId module, const OwnedParameter& p) const {
    const Owner& owner = owners_[places_.number(module, p)];
    return owner.group != nullptr ? &owner : nullptr;
  }
  const Model& model() const { return model_; }

 private:
  std::vector<ModuleId> root_modules(const WrapCall& call) const;
  std::vector<ModuleId> managed_modules(const std::vector<ModuleId>& roots) const;
  /// Where a module uses a parameter.
  struct Place {
    ModuleId module;
    const OwnedParameter* parameter;  ///< One of Module::parameters.
  };
  /// Fully qualified; lives as long as this.
  std::string_view name_of(const Place& place);
  std::vector<std::pair<Mesh*, std::vector<Place>>> places_by_mesh(
      const WrapCall& call, const std::vector<ModuleId>& managed);
  std::unique_ptr<ParamGroup> make_group(State& state, const WrapCall& call, Mesh& mesh,
                                         Mesh* post_forward, const std::vector<Place>& owned);
  Mesh* post_forward_mesh(const Reshard& reshard, Mesh& mesh, const std::string& place);
  void find_places(ParamGroup& group, const std::vector<Place>& owned);

  const Model& model_;
  Meshes& meshes_;
  const WrapExtras& extras_;
  std::vector<std::unique_ptr<State>> states_;
  std::vector<ParamGroup*> groups_;
  std::vector<std::size_t> index_in_group_;  ///< By parameter, while find_places() runs.
  std::vector<State*> state_of_;             ///< By module.
  ParameterPlaces places_;
  std::vector<Owner> owners_;            ///< By place.
  std::deque<std::string> other_names_;  ///< Of places that the model does not name.
};

}  // namespace foreshard::fsdp2
