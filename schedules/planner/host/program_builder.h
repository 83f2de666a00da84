#pragma once

// Writes a RankProgram: one method per instruction, tables filled on the way. Knows nothing of
// tensors' lives or autograd.

#include <cstdint>
#include <functional>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>

#include "schedules/schedule.h"

namespace foreshard {

class ProgramBuilder {
 public:
  /// `modules` of the model: there is room for what most programs write about each.
  explicit ProgramBuilder(std::size_t modules);

  RankProgram& program() { return program_; }
  const RankProgram& program() const { return program_; }
  std::uint32_t position() const {
    return static_cast<std::uint32_t>(program_.instructions.size());
  }

  StreamIndex add_stream(std::string name, int priority, bool on_host = false);
  UnitId add_unit(ShardUnit unit);
  /// Index of `text` in RankProgram::names.
  std::uint32_t intern(std::string_view text);
  /// The same for a string literal: hooks repeat theirs.
  std::uint32_t intern_literal(const char* text) {
    if (text == last_literal_) return last_name_;
    last_name_ = intern(text);
    last_literal_ = text;
    return last_name_;
  }
  ScopeId add_scope(std::string name);

  BufferId alloc(const Buffer& buffer);
  /// Destructors call it, also while an exception unwinds: where memory for the instruction is
  /// lacking, the next one fails in its place.
  void free(BufferId buffer) noexcept {
    try {
      emit(InstructionKind::kFree, 0, buffer.value);
    } catch (const std::bad_alloc&) {
      incomplete_ = true;
    }
  }
  /// The same: of what a module's call leaves behind.
  void mark(const Mark& m) noexcept;
  /// std::bad_alloc if an instruction is missing.
  void require_complete() const {
    if (incomplete_) throw std::bad_alloc();
  }
  void record_stream(BufferId buffer, StreamIndex stream) {
    emit(InstructionKind::kRecordStream, stream, buffer.value);
  }
  EventId record_event(StreamIndex stream);
  void wait_event(StreamIndex stream, EventId event) {
    emit(InstructionKind::kWaitEvent, stream, event.value);
  }
  void sync_event(EventId event) { emit(InstructionKind::kSyncEvent, 0, event.value); }
  void sync_stream(StreamIndex stream) { emit(InstructionKind::kSyncStream, stream, 0); }
  void sync_device() { emit(InstructionKind::kSyncDevice, 0, 0); }
  /// `stream` starts after what is now on `other`: an event recorded and waited for.
  void wait_stream(StreamIndex stream, StreamIndex other) {
    wait_event(stream, record_event(other));
  }

  TensorId add_tensor(const Tensor& t);
  /// A new launch, to be filled.
  Launch& launch(StreamIndex stream);
  std::uint32_t collective(const Collective& c);  ///< Index of the collective.
  void copy(const Copy& c);
  void host_work(std::int64_t reference_ns, std::uint32_t name);

 private:
  /// Names by their text; a set of them holds indices.
  struct NameText {
    const std::vector<std::string>* names;
    std::string_view operator()(std::uint32_t name) const { return (*names)[name]; }
    std::string_view operator()(std::string_view text) const { return text; }
  };
  struct NameHash : NameText {
    using is_transparent = void;
    std::size_t operator()(const auto& name) const {
      return std::hash<std::string_view>()(NameText::operator()(name));
    }
  };
  struct NameEqual : NameText {
    using is_transparent = void;
    bool operator()(const auto& a, const auto& b) const {
      return NameText::operator()(a) == NameText::operator()(b);
    }
  };

  void emit(InstructionKind kind, StreamIndex stream, std::uint32_t id) {
    require_complete();
    program_.instructions.push_back({kind, stream, 0, id});
  }

  RankProgram program_;
  std::unordered_set<std::uint32_t, NameHash, NameEqual> names_;
  bool incomplete_ = false;  ///< A free() could not be written.
  const char* last_literal_ = nullptr;
  std::uint32_t last_name_ = 0;  ///< Its index.
};

}  // namespace foreshard
