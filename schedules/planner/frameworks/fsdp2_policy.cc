// Wrap policies: the `fully_shard` calls that a training recipe makes (torchtitan's order, F2-G-5).

#include <algorithm>

#include "schedules/planner/frameworks/fsdp2.h"
#include "schedules/planner/frameworks/fsdp2_error.h"
#include "schedules/planner/wrap_policy.h"

namespace foreshard::fsdp2 {
namespace {

class CallList {
 public:
  CallList(const Model& model, const ParallelConfig& config) : model_(model), config_(config) {}

  void add(const std::vector<ModuleId>& modules, Reshard reshard) {
    if (modules.empty()) return;
    WrapCall call;
    for (const ModuleId m : modules) call.modules.push_back(model_.at(m).name);
    call.reshard = reshard;
    call.offload = config_.offload == OffloadKind::kParameters;
    calls_.push_back(std::move(call));
  }

  bool tied_roles() const {
    for (const ModuleId e : model_.roles.embeddings) {
      for (const OwnedParameter& p : model_.at(e).parameters) {
        for (const ModuleId t : model_.roles.tail) {
          const auto& others = model_.at(t).parameters;
          if (std::any_of(others.begin(), others.end(),
                          [&](const OwnedParameter& o) { return o.id == p.id; }))
            return true;
        }
      }
    }
    return false;
  }

  std::vector<WrapCall> take() { return std::move(calls_); }

 private:
  const Model& model_;
  const ParallelConfig& config_;
  std::vector<WrapCall> calls_;
};

}  // namespace

std::vector<WrapCall> wrap_calls(const Model& model, const ParallelConfig& config) {
  if (config.wrap.kind == WrapPolicy::Kind::kCalls) return config.calls;
  if (config.wrap.kind == WrapPolicy::Kind::kSize)
    throw InputError(
        Issue{"", "wrap", "FSDP2 has no size-based wrap policy", wrap_forms_without("size:N")});
  CallList list(model, config);
  const std::vector<std::vector<ModuleId>> groups = wrapped_groups(model, config.wrap);
  const ModelRoles& roles = model.roles;
  const bool split = splits_root(config.wrap);
  const bool tied = split && list.tied_roles();
  if (tied) {
    std::vector<ModuleId> both = roles.embeddings;
    both.insert(both.end(), roles.tail.begin(), roles.tail.end());
    list.add(both, config.reshard);
  } else if (split) {
    // An embedding inside another unit stays with it: recipes wrap that one first, and PyTorch
    // refuses a module whose parameters are sharded already.
    for (const ModuleId e : roles.embeddings)
      if (!inside_any(model, e, groups)) list.add({e}, config.reshard);
  }
  for (const std::vector<ModuleId>& group : groups) list.add(group, config.reshard);
  if (split && !tied) list.add(roles.tail, Reshard::no());
  list.add({ModuleId(0)}, config.root_reshard);
  return list.take();
}

}  // namespace foreshard::fsdp2
