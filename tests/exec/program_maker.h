#pragma once

// Writes small rank programs by hand, for tests.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "schedules/schedule.h"

namespace foreshard::fixture {

class ProgramMaker {
 public:
  explicit ProgramMaker(std::initializer_list<const char*> streams) {
    p_.names.push_back("");
    p_.scopes.push_back("");
    for (const char* s : streams) p_.streams.push_back({s, 0});
  }

  BufferId buffer(const std::string& name, std::int64_t bytes, StreamIndex pool = 0) {
    Buffer b;
    b.bytes = Bytes(bytes);
    b.pool = pool;
    b.name = static_cast<std::uint32_t>(p_.names.size());
    p_.names.push_back(name);
    p_.buffers.push_back(b);
    return BufferId(static_cast<std::uint32_t>(p_.buffers.size() - 1));
  }

  /// Contiguous view of a buffer.
  TensorId tensor(BufferId b, std::initializer_list<std::int64_t> shape,
                  DType dtype = DType::kFloat32, std::int64_t offset = 0) {
    Tensor t;
    t.buffer = b;
    t.dtype = dtype;
    t.offset = offset;
    for (const std::int64_t d : shape) t.shape[t.rank++] = d;
    std::int64_t stride = 1;
    for (int d = t.rank - 1; d >= 0; --d) {
      t.stride[static_cast<std::size_t>(d)] = stride;
      stride *= t.shape[static_cast<std::size_t>(d)];
    }
    return add(t);
  }
  TensorId transposed(TensorId id) {
    Tensor t = p_.tensors[id.value];
    std::swap(t.shape[0], t.shape[1]);
    std::swap(t.stride[0], t.stride[1]);
    return add(t);
  }
  TensorId add(const Tensor& t) {
    p_.tensors.push_back(t);
    return TensorId(static_cast<std::uint32_t>(p_.tensors.size() - 1));
  }

  std::uint32_t emit(InstructionKind kind, std::uint32_t id, StreamIndex stream = 0) {
    p_.instructions.push_back({kind, stream, 0, id});
    return static_cast<std::uint32_t>(p_.instructions.size() - 1);
  }
  std::uint32_t alloc(BufferId b) { return emit(InstructionKind::kAlloc, b.value); }
  std::uint32_t free(BufferId b) { return emit(InstructionKind::kFree, b.value); }

  std::uint32_t launch(OpKind op, std::initializer_list<TensorId> inputs,
                       std::initializer_list<TensorId> outputs,
                       std::initializer_list<double> attributes = {}, StreamIndex stream = 0) {
    Launch l;
    l.op = op;
    l.stream = stream;
    l.inputs = static_cast<std::uint16_t>(inputs.size());
    l.outputs = static_cast<std::uint16_t>(outputs.size());
    l.attributes = static_cast<std::uint16_t>(attributes.size());
    l.first_operand = static_cast<std::uint32_t>(p_.operands.size());
    l.first_attribute = static_cast<std::uint32_t>(p_.attributes.size());
    p_.operands.insert(p_.operands.end(), inputs);
    p_.operands.insert(p_.operands.end(), outputs);
    p_.attributes.insert(p_.attributes.end(), attributes);
    p_.launches.push_back(l);
    return emit(InstructionKind::kLaunch, static_cast<std::uint32_t>(p_.launches.size() - 1),
                stream);
  }

  std::uint32_t collective(CollectiveKind kind, ReduceOp op, TensorId in, TensorId out,
                           StreamIndex stream, std::uint32_t group = 0, std::int32_t root = 0) {
    Collective c;
    c.kind = kind;
    c.op = op;
    c.dtype = p_.tensors[(in.valid() ? in : out).value].dtype;
    c.input = in;
    c.output = out;
    c.stream = stream;
    c.group = GroupId(group);
    c.root = root;
    p_.collectives.push_back(c);
    return emit(InstructionKind::kCollective, static_cast<std::uint32_t>(p_.collectives.size() - 1),
                stream);
  }

  std::uint32_t input_copy(int input, TensorId to, StreamIndex stream = 0) {
    Copy c;
    c.stream = stream;
    c.destination = to;
    c.input = input;
    p_.copies.push_back(c);
    return emit(InstructionKind::kCopy, static_cast<std::uint32_t>(p_.copies.size() - 1), stream);
  }

  /// `stream` waits for what is on `other` now.
  void wait_stream(StreamIndex stream, StreamIndex other) {
    const std::uint32_t event = p_.events++;
    emit(InstructionKind::kRecordEvent, event, other);
    emit(InstructionKind::kWaitEvent, event, stream);
  }
  void sync_device() { emit(InstructionKind::kSyncDevice, 0); }

  std::uint32_t position() const { return static_cast<std::uint32_t>(p_.instructions.size()); }
  void end_init() { p_.init = {0, position()}; }
  void end_step() {
    const std::uint32_t begin = p_.steps.empty() ? p_.init.end : p_.steps.back().end;
    p_.steps.push_back({begin, position()});
  }
  RankProgram& program() { return p_; }

  /// One program for `world` ranks, group 0 = all of them.
  Schedule schedule(std::int64_t world) const {
    Schedule s;
    s.model = "test";
    s.world = world;
    s.groups.push_back({"world", world, 1});
    s.programs.push_back(p_);
    s.program_of_rank = {0};
    return s;
  }

 private:
  RankProgram p_;
};

}  // namespace foreshard::fixture
