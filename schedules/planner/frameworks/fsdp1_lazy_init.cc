// What the first forward of the root, or no_sync, does to all units (_lazy_init, F1-S-1, F1-G-8,
// F1-M-0).

#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "schedules/planner/frameworks/fsdp1.h"

namespace foreshard::fsdp1 {

void Fsdp1::lazy_init() {
  initialized_ = true;
  make_streams();
  cast_buffers();
  for (const auto& state : states_)
    if (state->handle) init_flat_param_attributes(*state);
  emit({.kind = EventKind::kLazyInitEnd});
}

/// F1-S-1.
void Fsdp1::make_streams() {
  const bool hybrid =
      std::any_of(states_.begin(), states_.end(), [](const auto& s) { return s->unit.hybrid(); });
  const int high = config_.fsdp1.limit_all_gathers && hybrid ? -1 : 0;
  ProgramBuilder& program = host_->program();
  unshard_stream_ = program.add_stream("unshard", high);
  post_backward_stream_ = program.add_stream("post_backward", high);
  pre_unshard_stream_ = program.add_stream("pre_unshard", high);
  all_reduce_stream_ = hybrid ? program.add_stream("all_reduce", 0) : host_->stream();
  emit({.kind = EventKind::kStreams, .number = high, .number2 = 0});
}

/// Innermost units first: a buffer gets the dtype of the unit around it (F1-G-8).
void Fsdp1::cast_buffers() {
  if (std::none_of(states_.begin(), states_.end(),
                   [](const auto& s) { return s->unit.precision.buffer.has_value(); }))
    return;
  const Model& model = host_->model();
  std::set<ModuleId> seen;
  for (const std::string& name : config_.fsdp1.ignored_modules) {
    const std::function<void(ModuleId)> skip = [&](ModuleId m) {
      if (seen.insert(m).second)
        for (const ChildModule& c : model.at(m).children) skip(c.id);
    };
    skip(model.find_module(name));
  }
  for (auto it = states_.rbegin(); it != states_.rend(); ++it) {
    const std::optional<DType> dtype = (*it)->unit.precision.buffer;
    const std::function<void(ModuleId)> visit = [&](ModuleId m) {
      if (!seen.insert(m).second) return;
      const Module& module = model.at(m);
      for (std::size_t b = 0; b < module.buffers.size(); ++b) {
        if (dtype && is_floating(module.buffers[b].dtype))
          host_->cast_buffer(module, static_cast<std::int64_t>(b), *dtype);
      }
      for (const ChildModule& c : module.children) visit(c.id);
    };
    visit((*it)->unit.module);
  }
}

void Fsdp1::init_flat_param_attributes(State& state) {
  Handle& h = *state.handle;
  if (config_.offload == OffloadKind::kParameters) {
    h.cpu_gradient =
        extras_.computes_on_cpu
            ? host_->empty({h.layout->shard}, h.layout->dtype, BufferCategory::kShardedGradient,
                           h.unit)
            : host_->empty_on_host({h.layout->shard}, h.layout->dtype, MemorySpace::kHostPinned,
                                   BufferCategory::kShardedGradient, h.unit);
    host_->launch(OpKind::kFill, {}, {h.cpu_gradient}, {0.0});
  }
  const auto once = [&](const SymTensor& t, FlatBuffer buffer) {
    if (!t) return;
    host_->allocate_storage(t);
    release(state, t, buffer);
  };
  once(h.low_precision_shard, FlatBuffer::kLowPrecisionShard);
  once(h.full, FlatBuffer::kFull);
  once(h.full_precision, FlatBuffer::kFullPrecision);
}

}  // namespace foreshard::fsdp1
