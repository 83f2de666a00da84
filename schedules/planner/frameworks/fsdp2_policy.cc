// Wrap policies: the `fully_shard` calls that a training recipe makes (torchtitan's order, F2-G-5).

#include <algorithm>

#include "schedules/planner/frameworks/fsdp2.h"
#include "schedules/planner/frameworks/fsdp2_error.h"

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

/// Modules whose name or class is listed, deepest first so that inner units exist before outer
/// ones.
std::vector<ModuleId> listed_modules(const Model& model, const std::vector<std::string>& wanted) {
  std::vector<ModuleId> found;
  for (const ModuleId m : modules_under(model, ModuleId(0))) {
    const Module& module = model.at(m);
    if (m != ModuleId(0) && std::any_of(wanted.begin(), wanted.end(), [&](const std::string& w) {
          return w == module.name || w == module.class_name;
        })) {
      found.push_back(m);
    }
  }
  const auto depth = [&](ModuleId m) {
    return std::count(model.at(m).name.begin(), model.at(m).name.end(), '.');
  };
  std::stable_sort(found.begin(), found.end(),
                   [&](ModuleId a, ModuleId b) { return depth(a) > depth(b); });
  return found;
}

void check_listed(const Model& model, const std::vector<std::string>& wanted) {
  std::vector<Issue> issues;
  std::vector<std::string> known;
  for (const Module& m : model.modules) {
    known.push_back(m.name);
    known.push_back(m.class_name);
  }
  for (const std::string& w : wanted) {
    if (std::find(known.begin(), known.end(), w) != known.end()) continue;
    const std::string near = nearest_name(w, known);
    issues.push_back({"", "wrap", "the model has no module or class '" + w + "'",
                      near.empty() ? "" : "did you mean '" + near + "'?"});
  }
  if (!issues.empty()) throw InputError(std::move(issues));
}

}  // namespace

std::vector<WrapCall> wrap_calls(const Model& model, const ParallelConfig& config) {
  if (config.wrap.kind == WrapPolicy::Kind::kCalls) return config.calls;
  CallList list(model, config);
  const ModelRoles& roles = model.roles;
  const bool split = config.wrap.root_split && config.wrap.kind != WrapPolicy::Kind::kModules;
  const bool tied = split && list.tied_roles();
  if (tied) {
    std::vector<ModuleId> both = roles.embeddings;
    both.insert(both.end(), roles.tail.begin(), roles.tail.end());
    list.add(both, config.reshard);
  } else if (split) {
    for (const ModuleId e : roles.embeddings) list.add({e}, config.reshard);
  }
  switch (config.wrap.kind) {
    case WrapPolicy::Kind::kBlocks:
    case WrapPolicy::Kind::kEveryK: {
      const std::int64_t k = config.wrap.kind == WrapPolicy::Kind::kEveryK
                                 ? std::max<std::int64_t>(config.wrap.every, 1)
                                 : 1;
      for (std::size_t i = 0; i < roles.blocks.size(); i += static_cast<std::size_t>(k)) {
        const std::size_t end = std::min(roles.blocks.size(), i + static_cast<std::size_t>(k));
        list.add({roles.blocks.begin() + static_cast<std::ptrdiff_t>(i),
                  roles.blocks.begin() + static_cast<std::ptrdiff_t>(end)},
                 config.reshard);
      }
      break;
    }
    case WrapPolicy::Kind::kModules:
      check_listed(model, config.wrap.modules);
      for (const ModuleId m : listed_modules(model, config.wrap.modules))
        list.add({m}, config.reshard);
      break;
    case WrapPolicy::Kind::kSize:
      throw InputError(Issue{"", "wrap", "FSDP2 has no size-based wrap policy",
                             "blocks, every:K, root or modules:a,b,c"});
    case WrapPolicy::Kind::kRootOnly:
    case WrapPolicy::Kind::kCalls:
      break;
  }
  if (split && !tied) list.add(roles.tail, Reshard::no());
  list.add({ModuleId(0)}, config.root_reshard);
  return list.take();
}

}  // namespace foreshard::fsdp2
