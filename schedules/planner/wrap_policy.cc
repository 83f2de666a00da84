#include "schedules/planner/wrap_policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "core/error.h"
#include "core/parse_number.h"
#include "models/adapters.h"
#include "models/describe.h"

namespace foreshard {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 50;

using Groups = std::vector<std::vector<ModuleId>>;

/// The N of "every:N"; nullopt if the text does not begin so. InputError if N is no count.
std::optional<std::int64_t> count_after(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return std::nullopt;
  const auto n = parse_number<std::int64_t>(text.substr(prefix.size()));
  if (n && *n >= 1 && *n <= kMostElements) return n;
  throw InputError(Issue{"--wrap", "", fmt::format("found \"{}\"", text),
                         fmt::format("{}N needs a whole number from 1, e.g. {}2", prefix, prefix)});
}

/// "a,b,c" without empty names.
std::vector<std::string> names_in(std::string_view text) {
  std::vector<std::string> names;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    if (comma > at) names.emplace_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return names;
}

/// The module that a block stands in: "model.layers" of "model.layers.3".
std::string_view list_of(const Model& model, ModuleId block) {
  const std::string_view name = model.at(block).name;
  return name.substr(0, std::min(name.rfind('.'), name.size()));
}

Groups grouped_blocks(const Model& model, std::int64_t every) {
  Groups groups;
  for (const ModuleId block : model.roles.blocks) {
    const bool fits = !groups.empty() && std::ssize(groups.back()) < every &&
                      list_of(model, groups.back().back()) == list_of(model, block);
    if (!fits) groups.emplace_back();
    groups.back().push_back(block);
  }
  for (const ModuleId extra : model.roles.extra_units) groups.push_back({extra});
  return groups;
}

void check_names(const Model& model, const std::vector<std::string>& wanted) {
  std::vector<Issue> issues;
  std::vector<std::string> known;
  for (const Module& m : model.modules) known.insert(known.end(), {m.name, m.class_name});
  for (const std::string& w : wanted) {
    if (std::find(known.begin(), known.end(), w) != known.end()) continue;
    const std::string near = nearest_name(w, known);
    issues.push_back({"", "wrap", "the model has no module or class '" + w + "'",
                      near.empty() ? "" : "did you mean '" + near + "'?"});
  }
  if (!issues.empty()) throw InputError(std::move(issues));
}

Groups named_modules(const Model& model, const std::vector<std::string>& wanted) {
  check_names(model, wanted);
  Groups found;
  for (const ModuleId m : modules_in_order(model)) {
    const Module& module = model.at(m);
    const bool listed = std::any_of(wanted.begin(), wanted.end(), [&](const std::string& w) {
      return w == module.name || w == module.class_name;
    });
    if (listed && m != ModuleId(0)) found.push_back({m});
  }
  const auto depth = [&](const std::vector<ModuleId>& group) {
    const std::string& name = model.at(group[0]).name;
    return std::count(name.begin(), name.end(), '.');
  };
  std::stable_sort(found.begin(), found.end(),
                   [&](const auto& a, const auto& b) { return depth(a) > depth(b); });
  return found;
}

}  // namespace

std::string wrap_forms_without(std::string_view form) {
  constexpr std::string_view kBetween = " | ";
  std::string left;
  for (std::size_t at = 0; at < kWrapForms.size();) {
    const std::size_t end = std::min(kWrapForms.find(kBetween, at), kWrapForms.size());
    const std::string_view one = kWrapForms.substr(at, end - at);
    if (one != form) left += fmt::format("{}{}", left.empty() ? "" : kBetween, one);
    at = end + kBetween.size();
  }
  return left;
}

void parse_wrap(std::string_view text, WrapPolicy& policy) {
  using Kind = WrapPolicy::Kind;
  constexpr std::string_view kModulesPrefix = "modules:";
  if (text == "blocks") {
    policy.kind = Kind::kBlocks;
  } else if (text == "blocks+adapters") {
    policy.kind = Kind::kBlocksAndAdapters;
  } else if (text == "root") {
    policy.kind = Kind::kRootOnly;
  } else if (const auto every = count_after(text, "every:")) {
    policy.kind = Kind::kEveryK;
    policy.every = *every;
  } else if (const auto size = count_after(text, "size:")) {
    policy.kind = Kind::kSize;
    policy.min_elements = *size;
  } else if (text.starts_with(kModulesPrefix) && text.size() > kModulesPrefix.size()) {
    policy.kind = Kind::kModules;
    policy.modules = names_in(text.substr(kModulesPrefix.size()));
  } else {
    throw InputError(Issue{"--wrap", "", fmt::format("found \"{}\"", text),
                           fmt::format("allowed: {}", kWrapForms)});
  }
}

std::string wrap_text(const WrapPolicy& policy) {
  switch (policy.kind) {
    case WrapPolicy::Kind::kBlocks:
      return "blocks";
    case WrapPolicy::Kind::kBlocksAndAdapters:
      return "blocks+adapters";
    case WrapPolicy::Kind::kEveryK:
      return fmt::format("every:{}", policy.every);
    case WrapPolicy::Kind::kRootOnly:
      return "root";
    case WrapPolicy::Kind::kSize:
      return fmt::format("size:{}", policy.min_elements);
    case WrapPolicy::Kind::kModules:
      return fmt::format("modules:{}", fmt::join(policy.modules, ","));
    case WrapPolicy::Kind::kCalls:
      break;
  }
  return "calls";
}

std::string describe_wrap(const WrapPolicy& policy) {
  switch (policy.kind) {
    case WrapPolicy::Kind::kBlocks:
      return "each block";
    case WrapPolicy::Kind::kBlocksAndAdapters:
      return "each block and adapter";
    case WrapPolicy::Kind::kEveryK:
      return fmt::format("every {} blocks", policy.every);
    case WrapPolicy::Kind::kRootOnly:
      return "root only";
    case WrapPolicy::Kind::kSize:
      return fmt::format("units of {} elements", policy.min_elements);
    case WrapPolicy::Kind::kModules:
      return "named modules";
    case WrapPolicy::Kind::kCalls:
      break;
  }
  return "explicit calls";
}

bool splits_root(const WrapPolicy& policy) {
  using Kind = WrapPolicy::Kind;
  const bool of_blocks = policy.kind == Kind::kBlocks || policy.kind == Kind::kEveryK ||
                         policy.kind == Kind::kRootOnly;
  return policy.root_split && of_blocks;
}

WrapPolicy blocks_together(std::int64_t k) {
  WrapPolicy policy;
  policy.kind = k == 0   ? WrapPolicy::Kind::kRootOnly
                : k == 1 ? WrapPolicy::Kind::kBlocks
                         : WrapPolicy::Kind::kEveryK;
  policy.every = std::max<std::int64_t>(k, 1);
  return policy;
}

std::vector<std::vector<ModuleId>> wrapped_groups(const Model& model, const WrapPolicy& policy) {
  switch (policy.kind) {
    case WrapPolicy::Kind::kBlocks:
      return grouped_blocks(model, 1);
    case WrapPolicy::Kind::kEveryK:
      return grouped_blocks(model, policy.every);
    case WrapPolicy::Kind::kModules:
      return named_modules(model, policy.modules);
    case WrapPolicy::Kind::kBlocksAndAdapters:
      return named_modules(model, blocks_and_adapters(model));
    case WrapPolicy::Kind::kRootOnly:
    case WrapPolicy::Kind::kSize:
    case WrapPolicy::Kind::kCalls:
      break;
  }
  return {};
}

bool inside_any(const Model& model, ModuleId module,
                const std::vector<std::vector<ModuleId>>& groups) {
  for (const auto& group : groups) {
    for (const ModuleId m : group) {
      const std::vector<ModuleId> below = modules_in_order(model, m);
      if (std::find(below.begin(), below.end(), module) != below.end()) return true;
    }
  }
  return false;
}

}  // namespace foreshard
