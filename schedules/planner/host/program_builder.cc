#include "schedules/planner/host/program_builder.h"

#include <utility>

namespace foreshard {

ProgramBuilder::ProgramBuilder(std::size_t modules)
    : names_(0, {{&program_.names}}, {{&program_.names}}) {
  program_.instructions.reserve(72 * modules);
  program_.buffers.reserve(26 * modules);
  program_.launches.reserve(16 * modules);
  program_.host_work.reserve(24 * modules);
  program_.scopes.reserve(modules);
  program_.names.reserve(modules);
  names_.reserve(modules);
  program_.names.emplace_back();
  names_.insert(0);
}

StreamIndex ProgramBuilder::add_stream(std::string name, int priority, bool on_host) {
  program_.streams.push_back({std::move(name), priority, on_host});
  return static_cast<StreamIndex>(program_.streams.size() - 1);
}

UnitId ProgramBuilder::add_unit(ShardUnit unit) {
  program_.units.push_back(std::move(unit));
  return UnitId(static_cast<std::uint32_t>(program_.units.size() - 1));
}

std::uint32_t ProgramBuilder::intern(std::string_view text) {
  if (const auto known = names_.find(text); known != names_.end()) return *known;
  const auto index = static_cast<std::uint32_t>(program_.names.size());
  program_.names.emplace_back(text);
  names_.insert(index);
  return index;
}

ScopeId ProgramBuilder::add_scope(std::string name) {
  program_.scopes.push_back(std::move(name));
  return ScopeId(static_cast<std::uint32_t>(program_.scopes.size() - 1));
}

BufferId ProgramBuilder::alloc(const Buffer& buffer) {
  const BufferId id(static_cast<std::uint32_t>(program_.buffers.size()));
  program_.buffers.push_back(buffer);
  emit(InstructionKind::kAlloc, buffer.pool, id.value);
  return id;
}

EventId ProgramBuilder::record_event(StreamIndex stream) {
  const EventId e(program_.events++);
  emit(InstructionKind::kRecordEvent, stream, e.value);
  return e;
}

TensorId ProgramBuilder::add_tensor(const Tensor& t) {
  program_.tensors.push_back(t);
  return TensorId(static_cast<std::uint32_t>(program_.tensors.size() - 1));
}

Launch& ProgramBuilder::launch(StreamIndex stream) {
  emit(InstructionKind::kLaunch, stream, static_cast<std::uint32_t>(program_.launches.size()));
  Launch& l = program_.launches.emplace_back();
  l.stream = stream;
  return l;
}

std::uint32_t ProgramBuilder::collective(const Collective& c) {
  const auto index = static_cast<std::uint32_t>(program_.collectives.size());
  emit(InstructionKind::kCollective, c.stream, index);
  program_.collectives.push_back(c);
  return index;
}

void ProgramBuilder::copy(const Copy& c) {
  emit(InstructionKind::kCopy, c.stream, static_cast<std::uint32_t>(program_.copies.size()));
  program_.copies.push_back(c);
}

void ProgramBuilder::host_work(std::int64_t reference_ns, std::uint32_t name) {
  emit(InstructionKind::kHost, 0, static_cast<std::uint32_t>(program_.host_work.size()));
  program_.host_work.push_back({reference_ns, name});
}

void ProgramBuilder::mark(const Mark& m) noexcept {
  try {
    emit(InstructionKind::kMark, 0, static_cast<std::uint32_t>(program_.marks.size()));
    program_.marks.push_back(m);
  } catch (const std::bad_alloc&) {
    incomplete_ = true;
  }
}

}  // namespace foreshard
