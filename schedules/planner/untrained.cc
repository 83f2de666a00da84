#include "schedules/planner/untrained.h"

#include <fmt/format.h>

#include <string_view>
#include <unordered_set>
#include <vector>

#include "schedules/planner/host/host_impl.h"

namespace foreshard {
namespace {

using Names = std::unordered_set<std::string_view>;

/// The name within its block, or "".
std::string_view within_block(const Names& blocks, std::string_view parameter) {
  for (std::size_t dot = parameter.find('.'); dot != std::string_view::npos;
       dot = parameter.find('.', dot + 1)) {
    if (blocks.contains(parameter.substr(0, dot))) return parameter.substr(dot);
  }
  return {};
}

/// Of each parameter whether a statement read it in a module whose backward ran. Blocks that are
/// planned once for all alike are as the first.
std::vector<std::uint8_t> parameters_read(Host& host) {
  const Model& model = host.model();
  const HostImpl& impl = host.impl();
  std::vector<std::uint8_t> read;
  for (const ScopeId scope : impl.read_in)
    read.push_back(scope.value < impl.ran_backward.size() ? impl.ran_backward[scope.value] : 0);
  if (!host.shares_blocks()) return read;
  Names blocks, names;
  for (const ModuleId block : model.roles.blocks) blocks.insert(model.at(block).name);
  for (std::size_t i = 0; i < read.size(); ++i)
    if (read[i] != 0) names.insert(within_block(blocks, model.parameters[i].name));
  for (std::size_t i = 0; i < read.size(); ++i) {
    if (read[i] != 0) continue;
    const std::string_view name = within_block(blocks, model.parameters[i].name);
    if (!name.empty() && names.contains(name)) read[i] = 1;
  }
  return read;
}

}  // namespace

std::string remark_on_untrained(Host& host) {
  const Model& model = host.model();
  const std::vector<std::uint8_t> read = parameters_read(host);
  std::int64_t trainable = 0, untrained = 0;
  std::string first;
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    const ParameterDef& p = model.parameters[i];
    if (!p.trainable) continue;
    ++trainable;
    if (read[i] != 0) continue;
    if (untrained++ == 0) first = p.name;
  }
  if (untrained == 0) return {};
  std::string text = fmt::format("{} of {} trainable parameters get no gradient (the first: {})",
                                 untrained, trainable, first);
  if (host.config().checkpoint_reentrant)
    return text +
           ": reentrant checkpoints whose inputs take no gradient, as behind a frozen embedding, "
           "leave their parameters untrained (PyTorch warns of it); --checkpoint-reentrant no";
  return text + ": the loss does not depend on them, or they are used under no_grad";
}

}  // namespace foreshard
