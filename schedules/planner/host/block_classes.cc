// Which blocks of a model are equal: same modules in the same order with the same programs, shapes
// and flags; only names and numbers differ.

#include <algorithm>

#include "schedules/planner/frameworks/framework.h"
#include "schedules/planner/host/block_template.h"
#include "schedules/planner/host/host_impl.h"

namespace foreshard {
namespace {

constexpr std::size_t kFewest = 3;  // The first and the last block of a class run for real.

bool equal_definition(const ParameterDef& a, const ParameterDef& b) {
  return a.shape == b.shape && a.dtype == b.dtype && a.trainable == b.trainable &&
         a.packs == b.packs;
}

bool equal_buffers(const std::vector<BufferDef>& a, const std::vector<BufferDef>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.shape == y.shape && x.dtype == y.dtype;
  });
}

/// Two values of programs: their names may differ, but temporaries die early.
bool equal_lives(const std::string& a, const std::string& b) {
  return (a[0] == '%') == (b[0] == '%');
}

/// operator== for lists of few numbers.
template <typename T>
bool equal_numbers(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i]) return false;
  return true;
}

/// Position of a parameter in a block's list, which has each parameter once.
std::size_t place(const std::vector<ParameterId>& list, ParameterId id) {
  return static_cast<std::size_t>(std::find(list.begin(), list.end(), id) - list.begin());
}

}  // namespace

/// Numbers of the block's modules are contiguous, and hooks inside it can do without its tensors.
/// False: it cannot have a template.
bool BlockTemplates::describe_block(ModuleId m, std::uint32_t& modules, Block& block) const {
  const Model& model = impl_.host.model();
  std::uint32_t end = m.value + 1, seen = 0;
  bool fits = true;
  const bool hooks_fit =
      impl_.host.framework_->sees_no_tensors() && impl_.checkpointed[m.value] == 0;
  const auto visit = [&](const auto& self, ModuleId at) -> void {
    const bool hooked = at != m && impl_.host.watched_[at.value] != 0;
    block.hooks_inside = block.hooks_inside || hooked;
    if (at.value < m.value || (hooked && !hooks_fit)) fits = false;
    if (!fits) return;
    ++seen;
    end = std::max(end, at.value + 1);
    const Module& def = model.at(at);
    for (const OwnedParameter& p : def.parameters) {
      if (place(block.parameters, p.id) == block.parameters.size())
        block.parameters.push_back(p.id);
    }
    for (std::size_t b = 0; b < def.buffers.size(); ++b)
      block.buffers.emplace_back(at, static_cast<std::int64_t>(b));
    for (const ChildModule& c : def.children) self(self, c.id);
  };
  visit(visit, m);
  modules = end - m.value;
  return fits && seen == modules;
}

bool BlockTemplates::equal_blocks(ModuleId a, const Block& of_a, ModuleId b, const Block& of_b,
                                  std::uint32_t modules) const {
  const Model& model = impl_.host.model();
  if (of_a.parameters.size() != of_b.parameters.size()) return false;
  for (std::size_t i = 0; i < of_a.parameters.size(); ++i) {
    if (!equal_definition(model.at(of_a.parameters[i]), model.at(of_b.parameters[i]))) return false;
  }
  const auto same_parameter = [&](ParameterId x, ParameterId y) {
    const std::size_t i = place(of_a.parameters, x);
    return i < of_a.parameters.size() && i == place(of_b.parameters, y);
  };
  const auto same_child = [&](ModuleId x, ModuleId y) {
    return x.value - a.value == y.value - b.value;
  };
  const auto same_statement = [&](const Statement& x, const Statement& y) {
    return x.function == y.function && x.dtype == y.dtype && x.no_grad == y.no_grad &&
           equal_numbers(x.inputs, y.inputs) && equal_numbers(x.outputs, y.outputs) &&
           equal_numbers(x.ints, y.ints) && equal_numbers(x.floats, y.floats) &&
           (x.function != Function::kCall || same_child(x.child, y.child)) &&
           std::equal(x.parameters.begin(), x.parameters.end(), y.parameters.begin(),
                      y.parameters.end(), same_parameter);
  };
  for (std::uint32_t i = 0; i < modules; ++i) {
    const Module &x = model.modules[a.value + i], &y = model.modules[b.value + i];
    if (impl_.checkpointed[a.value + i] != impl_.checkpointed[b.value + i] ||
        impl_.host.watched_[a.value + i] != impl_.host.watched_[b.value + i] ||
        x.class_name != y.class_name || x.inputs != y.inputs ||
        !std::equal(x.value_names.begin(), x.value_names.end(), y.value_names.begin(),
                    y.value_names.end(), equal_lives) ||
        x.outputs != y.outputs || !equal_buffers(x.buffers, y.buffers) ||
        !std::equal(x.parameters.begin(), x.parameters.end(), y.parameters.begin(),
                    y.parameters.end(),
                    [&](const auto& p, const auto& q) { return same_parameter(p.id, q.id); }) ||
        !std::equal(x.children.begin(), x.children.end(), y.children.begin(), y.children.end(),
                    [&](const auto& p, const auto& q) { return same_child(p.id, q.id); }) ||
        !std::equal(x.program.begin(), x.program.end(), y.program.begin(), y.program.end(),
                    same_statement)) {
      return false;
    }
  }
  return true;
}

void BlockTemplates::find_classes() {
  classes_known_ = true;
  const Model& model = impl_.host.model();
  blocks_.resize(model.modules.size());
  std::vector<std::size_t> members;
  for (const ModuleId m : model.roles.blocks) {
    Block block;
    std::uint32_t modules = 0;
    if (!describe_block(m, modules, block)) continue;
    std::size_t c = 0;
    for (; c < classes_.size(); ++c) {
      if (classes_[c].modules == modules &&
          equal_blocks(classes_[c].first, blocks_[classes_[c].first.value], m, block, modules))
        break;
    }
    if (c == classes_.size()) {
      classes_.emplace_back();
      classes_.back().modules = modules;
      classes_.back().first = m;
      members.push_back(0);
    }
    classes_[c].last = m;
    ++members[c];
    block.block_class = static_cast<std::int32_t>(c);
    blocks_[m.value] = std::move(block);
  }
  for (std::size_t c = 0; c < classes_.size(); ++c) classes_[c].usable = members[c] >= kFewest;
}

}  // namespace foreshard
