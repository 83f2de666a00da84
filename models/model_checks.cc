#include "models/model_checks.h"

#include <map>

#include <fmt/core.h>
#include <fmt/ranges.h>

namespace foreshard {
namespace {

/// What a function takes; -1 = any number.
struct FunctionRule {
  int min_inputs = 1, max_inputs = 1, outputs = 1;
  int min_parameters = 0, max_parameters = 0;
  int min_ints = 0, min_floats = 0;
};

const std::map<Function, FunctionRule>& rules() {
  using F = Function;
  static const std::map<F, FunctionRule> table = {{F::kLinear, {1, 3, 1, 0, 2}},
                                                  {F::kConv1D, {1, 1, 1, 1, 2}},
                                                  {F::kLinear4Bit, {1, 1, 1, 1, 2, 2}},
                                                  {F::kEmbedding, {1, 1, 1, 1, 1}},
                                                  {F::kLayerNorm, {1, 1, 1, 0, 2, 0, 1}},
                                                  {F::kRmsNorm, {1, 1, 1, 0, 1, 0, 1}},
                                                  {F::kAttention, {3, 4, 1, 0, 0, 1, 2}},
                                                  {F::kPackedAttention, {3, 3, 1, 0, 0, 3}},
                                                  {F::kAdd, {2, 2}},
                                                  {F::kSub, {2, 2}},
                                                  {F::kMul, {2, 2}},
                                                  {F::kDiv, {2, 2}},
                                                  {F::kAddScalar, {1, 1, 1, 0, 0, 0, 1}},
                                                  {F::kMulScalar, {1, 2, 1, 0, 0, 0, 1}},
                                                  {F::kPowScalar, {1, 1, 1, 0, 0, 0, 1}},
                                                  {F::kSumDim, {1, 1, 1, 0, 0, 2}},
                                                  {F::kDropout, {1, 1, 1, 0, 0, 0, 1}},
                                                  {F::kMatmul, {2, 2}},
                                                  {F::kCast, {1, 2, 1, 0, 1}},
                                                  {F::kView, {1, 1, 1, 0, 0, 1}},
                                                  {F::kReshape, {1, 1, 1, 0, 0, 1}},
                                                  {F::kTranspose, {1, 1, 1, 0, 0, 2}},
                                                  {F::kExpand, {1, 1, 1, 0, 0, 1}},
                                                  {F::kUnsqueeze, {1, 1, 1, 0, 0, 1}},
                                                  {F::kSlice, {1, 1, 1, 0, 0, 3}},
                                                  {F::kSplit, {1, 1, -1, 0, 0, 2}},
                                                  {F::kChunk, {1, 1, -1, 0, 0, 2}},
                                                  {F::kCat, {1, 1 << 20, 1, 0, 0, 1}},
                                                  {F::kAddParameter, {1, 1, 1, 1, 1}},
                                                  {F::kParameter, {0, 0, 1, 1, 1}},
                                                  {F::kBuffer, {0, 0, 1, 0, 0, 1}},
                                                  {F::kAddBuffer, {1, 1, 1, 0, 0, 1}},
                                                  {F::kRotaryTable, {1, 2, 2, 0, 0, 1}},
                                                  {F::kArange, {0, 1}},
                                                  {F::kExperts, {1, 1, 1, 3, 3}},
                                                  {F::kRoutedExperts, {3, 3, 1, 2, 2, 2}},
                                                  {F::kTopK, {1, 1, 2, 0, 0, 1}},
                                                  {F::kConv2d, {1, 1, 1, 1, 2, 2}},
                                                  {F::kRepeatKv, {1, 1, 1, 0, 0, 1}},
                                                  {F::kSelect, {1, 1, 1, 0, 0, 2}},
                                                  {F::kCausalMask, {1, 2, 1, 0, 0, 2}},
                                                  {F::kGather, {2, 2, 1, 0, 0, 1}},
                                                  {F::kIndex, {2, 2}},
                                                  {F::kClamp, {1, 1, 1, 0, 0, 0, 2}},
                                                  {F::kVectorNorm, {1, 1, 1, 0, 0, 0, 1}},
                                                  {F::kMaskedFill, {2, 2, 1, 0, 0, 0, 1}},
                                                  {F::kDivInPlace, {2, 2}},
                                                  {F::kMaskedScatter, {3, 3, 1, 0, 0, 1}},
                                                  {F::kAvgPool2d, {1, 1, 1, 0, 0, 1}},
                                                  {F::kConv1dDepthwise, {1, 2, 1, 0, 1, 1}},
                                                  {F::kLoopedExperts, {3, 3, 1, 3, 3, 2}},
                                                  {F::kAssign, {1, 1 << 20, -1}},
                                                  {F::kJitter, {1, 1, 1, 0, 0, 0, 1}},
                                                  {F::kSliceLike, {2, 2, 1, 0, 0, 1}},
                                                  {F::kExpandLike, {2, 2, 1, 0, 0, 1}},
                                                  {F::kViewLike, {2, 2}},
                                                  {F::kFusedLinearCrossEntropy, {2, 2, 1, 1, 1}},
                                                  {F::kRelativeBuckets, {1, 1, 1, 0, 0, 3}},
                                                  {F::kGatedDeltaRule, {5, 5, 1, 0, 0, 1}},
                                                  {F::kPositionMask, {1, 1, 1, 0, 0, 1}},
                                                  {F::kZeroBias, {2, 2, 1, 0, 0, 1}},
                                                  {F::kPad, {1, 1, 1, 0, 0, 2}},
                                                  {F::kTileMask, {2, 2, 1, 0, 0, 2}},
                                                  {F::kCrossMask, {2, 2, 2, 0, 0, 1}},
                                                  {F::kAxialRotaryTable, {1, 1, 2, 0, 0, 1}},
                                                  {F::kWindowOrder, {1, 1, 1, 0, 0, 1}},
                                                  {F::kWindowedAttention, {3, 3, 1, 0, 0, 1, 2}}};
  return table;
}

std::string count_text(int min, int max) {
  if (max >= 1 << 20) return fmt::format("{} or more", min);
  return min == max ? std::to_string(min) : fmt::format("{} to {}", min, max);
}

void check_count(const std::string& place, const char* what, std::size_t found, int min, int max,
                 IssueList& issues) {
  if (found >= static_cast<std::size_t>(min) && found <= static_cast<std::size_t>(max)) return;
  issues.add(place, fmt::format("{} {}", found, what),
             fmt::format("{} {}", count_text(min, max), what));
}

std::string where(const Module& module) { return module.name.empty() ? "root" : module.name; }

void check_statement(const Model& model, const Module& module, std::size_t index,
                     IssueList& issues) {
  const Statement& s = module.program[index];
  const std::string place =
      fmt::format("{}.forward[{}] ({})", where(module), index, name_of(s.function));
  if (s.function == Function::kCall) {
    const Module& child = model.at(s.child);
    const int in = static_cast<int>(child.inputs.size()),
              out = static_cast<int>(child.outputs.size());
    check_count(place, "inputs", s.inputs.size(), in, in, issues);
    check_count(place, "outputs", s.outputs.size(), out, out, issues);
    return;
  }
  const auto it = rules().find(s.function);
  const FunctionRule rule = it == rules().end() ? FunctionRule{} : it->second;
  check_count(place, "inputs", s.inputs.size(), rule.min_inputs, rule.max_inputs, issues);
  if (rule.outputs >= 0)
    check_count(place, "outputs", s.outputs.size(), rule.outputs, rule.outputs, issues);
  check_count(place, "parameters", s.parameters.size(), rule.min_parameters, rule.max_parameters,
              issues);
  const bool weighs = s.function == Function::kLinear || s.function == Function::kConv1dDepthwise;
  if (weighs && (s.inputs.size() > 1) == !s.parameters.empty()) {
    issues.add(place, "has its weight twice or not at all",
               "a weight as parameter or as second input");
  }
  check_count(place, "ints", s.ints.size(), rule.min_ints, 1 << 20, issues);
  check_count(place, "floats", s.floats.size(), rule.min_floats, 1 << 20, issues);
  if (s.function == Function::kBuffer || s.function == Function::kAddBuffer) {
    const bool fits = !s.ints.empty() && s.ints[0] >= 0 &&
                      s.ints[0] < static_cast<std::int64_t>(module.buffers.size());
    if (!fits)
      issues.add(place, "names no buffer of this module", "the index of one of its buffers");
  }
}

void check_values(const Module& module, IssueList& issues) {
  std::vector<bool> made(module.value_names.size(), false);
  const auto name = [&](ValueSlot v) { return module.value_names[static_cast<std::size_t>(v)]; };
  for (const ValueSlot v : module.inputs) made[static_cast<std::size_t>(v)] = true;
  for (std::size_t i = 0; i < module.program.size(); ++i) {
    for (const ValueSlot v : module.program[i].inputs) {
      if (!made[static_cast<std::size_t>(v)]) {
        issues.add(fmt::format("{}.forward[{}]", where(module), i),
                   fmt::format("value \"{}\" is used before it is made", name(v)));
      }
    }
    for (const ValueSlot v : module.program[i].outputs) made[static_cast<std::size_t>(v)] = true;
  }
  for (const ValueSlot v : module.outputs) {
    if (!made[static_cast<std::size_t>(v)])
      issues.add(where(module), fmt::format("output \"{}\" is never made", name(v)));
  }
}

constexpr std::size_t kDeepestCall = 200;
constexpr double kMostRuns = 2e7;

// Statements that one forward runs, calls followed; modules called from many places make this
// explode.
double statements_run(const Model& model, ModuleId id, std::vector<double>& known) {
  if (known[id.value] >= 0) return known[id.value];
  double n = 0;
  for (const Statement& s : model.at(id).program) {
    n += 1 + (s.function == Function::kCall ? statements_run(model, s.child, known) : 0.0);
  }
  return known[id.value] = n;
}

// Depth-first walk over calls; `state` 1 = on the path, 2 = done. Stops at a circle and where calls
// nest too deeply.
bool find_circle(const Model& model, ModuleId id, std::vector<int>& state,
                 std::vector<ModuleId>& path) {
  state[id.value] = 1;
  path.push_back(id);
  for (const Statement& s : model.at(id).program) {
    if (s.function != Function::kCall) continue;
    if (state[s.child.value] == 1) {
      path.push_back(s.child);
      return true;
    }
    if (path.size() > kDeepestCall) return true;
    if (state[s.child.value] == 0 && find_circle(model, s.child, state, path)) return true;
  }
  path.pop_back();
  state[id.value] = 2;
  return false;
}

}  // namespace

void check_parameter_count(const Model& model, IssueList& issues) {
  constexpr __int128 kMost = __int128{1} << 50;
  __int128 total = 0;
  for (const ParameterDef& p : model.parameters) {
    __int128 numel = 1;
    for (const std::int64_t d : p.shape) numel = numel > kMost ? numel : numel * d;
    total += numel;
    if (total > kMost) {
      issues.add(p.name, "the model has more than 2^50 parameters", "smaller sizes");
      return;
    }
  }
}

void check_dimensions(const Model& model, IssueList& issues) {
  const auto check = [&](const std::string& place, const std::vector<std::int64_t>& shape) {
    if (shape.size() > kMostDimensions)
      issues.add(place, fmt::format("has {} dimensions", shape.size()),
                 fmt::format("at most {} dimensions", kMostDimensions));
  };
  for (const ParameterDef& p : model.parameters) check(p.name, p.shape);
  for (const ModelArgument& a : model.arguments) check("arguments." + a.name, a.shape);
  for (const Module& m : model.modules) {
    for (const BufferDef& b : m.buffers) check(where(m) + ".buffers." + b.name, b.shape);
    for (std::size_t i = 0; i < m.program.size(); ++i) {
      const Statement& s = m.program[i];
      if (s.function == Function::kView || s.function == Function::kReshape ||
          s.function == Function::kExpand)
        check(fmt::format("{}.forward[{}] ({})", where(m), i, name_of(s.function)), s.ints);
    }
  }
}

void check_programs(const Model& model, IssueList& issues) {
  for (const Module& module : model.modules) {
    check_values(module, issues);
    for (std::size_t i = 0; i < module.program.size(); ++i)
      check_statement(model, module, i, issues);
  }
}

void check_call_circles(const Model& model, IssueList& issues) {
  std::vector<int> state(model.modules.size(), 0);
  for (std::uint32_t i = 0; i < model.modules.size(); ++i) {
    std::vector<ModuleId> path;
    if (state[i] != 0 || !find_circle(model, ModuleId(i), state, path)) continue;
    if (path.size() > kDeepestCall) {
      issues.add(where(model.at(path.front())),
                 fmt::format("calls nest deeper than {}", kDeepestCall));
      return;
    }
    std::string text;
    bool inside = false;
    for (const ModuleId id : path) {
      inside = inside || id == path.back();
      if (inside) text += (text.empty() ? "" : " -> ") + where(model.at(id));
    }
    issues.add(where(model.at(path.back())), "modules call each other in a circle: " + text);
    return;
  }
  std::vector<double> known(model.modules.size(), -1.0);
  if (statements_run(model, ModuleId(0), known) > kMostRuns) {
    issues.add("root", fmt::format("one forward runs more than {:.0f} statements", kMostRuns),
               "fewer calls of shared modules");
  }
}

}  // namespace foreshard
