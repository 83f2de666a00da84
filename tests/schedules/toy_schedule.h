#pragma once

// A hand-made schedule of two steps, each: gather one unit on its own stream, wait, use it, free
// it.

#include <algorithm>

#include "schedules/schedule.h"

namespace foreshard::fixture {

/// Positions of the instructions that tests disturb, within the second step.
struct ToyPlaces {
  std::uint32_t alloc = 0, gather = 0, record = 0, wait = 0, use = 0, free = 0;
};

inline TensorId add_tensor(RankProgram& p, BufferId b, std::int64_t n, std::int64_t offset = 0) {
  Tensor t;
  t.buffer = b;
  t.rank = 1;
  t.shape[0] = n;
  t.stride[0] = 1;
  t.offset = offset;
  p.tensors.push_back(t);
  return TensorId(static_cast<std::uint32_t>(p.tensors.size() - 1));
}

inline std::uint32_t add_launch(RankProgram& p, OpKind op, std::vector<TensorId> in,
                                std::vector<TensorId> out) {
  Launch l;
  l.op = op;
  l.first_operand = static_cast<std::uint32_t>(p.operands.size());
  l.inputs = static_cast<std::uint16_t>(in.size());
  l.outputs = static_cast<std::uint16_t>(out.size());
  for (const TensorId t : in) p.operands.push_back(t);
  for (const TensorId t : out) p.operands.push_back(t);
  l.scope = ScopeId(0);
  l.flops = Flops(2048);
  p.launches.push_back(l);
  return static_cast<std::uint32_t>(p.launches.size() - 1);
}

inline Schedule toy_schedule(std::int64_t world = 4, ToyPlaces* places = nullptr) {
  using K = InstructionKind;
  Schedule s;
  s.model = "toy";
  s.description = "one unit";
  s.world = world;
  s.groups.push_back({"shard", world, 1});
  s.program_of_rank = {0};
  s.tokens_per_step = 64;
  RankProgram p;
  p.names = {""};
  p.scopes = {"layers.0"};
  p.streams = {{"compute", 0}, {"all_gather", -1}};
  ShardUnit unit;
  unit.name = "layers.0";
  unit.modules = {"layers.0"};
  unit.parameters = {"layers.0.weight"};
  unit.numel = unit.padded_numel = Elements(64 * world);
  unit.shard_numel = Elements(64);
  p.units.push_back(unit);
  const auto buffer = [&p](std::int64_t bytes, BufferCategory c, StreamIndex pool) {
    p.buffers.push_back({Bytes(bytes), pool, MemorySpace::kDevice, c, UnitId(0), ScopeId(0), 0});
    return BufferId(static_cast<std::uint32_t>(p.buffers.size() - 1));
  };
  const BufferId shard = buffer(64 * 4, BufferCategory::kShardedParameter, 0);
  const BufferId whole = buffer(64 * 4 * world, BufferCategory::kGatherOutput, 1);
  const BufferId activation = buffer(256, BufferCategory::kActivation, 0);
  const TensorId shard_t = add_tensor(p, shard, 64), whole_t = add_tensor(p, whole, 64 * world);
  const TensorId activation_t = add_tensor(p, activation, 64);
  const std::uint32_t init = add_launch(p, OpKind::kInitialize, {}, {shard_t});
  const std::uint32_t use = add_launch(p, OpKind::kCopy, {whole_t}, {activation_t});
  Collective c;
  c.stream = 1;
  c.group = GroupId(0);
  c.input = shard_t;
  c.output = whole_t;
  c.bytes = Bytes(64 * 4 * world);
  c.unit = UnitId(0);
  p.collectives.push_back(c);
  p.events = 2;
  const auto put = [&p](K kind, std::uint32_t id, StreamIndex stream = 0) {
    p.instructions.push_back({kind, stream, 0, id});
    return static_cast<std::uint32_t>(p.instructions.size() - 1);
  };
  put(K::kAlloc, shard.value);
  put(K::kLaunch, init);
  p.init = {0, 2};
  for (int step = 0; step < 2; ++step) {
    ToyPlaces at;
    const auto begin = static_cast<std::uint32_t>(p.instructions.size());
    put(K::kRecordEvent, 1, 0);
    put(K::kWaitEvent, 1, 1);  // The gather reads what compute wrote.
    at.alloc = put(K::kAlloc, whole.value);
    at.gather = put(K::kCollective, 0);
    at.record = put(K::kRecordEvent, 0, 1);
    at.wait = put(K::kWaitEvent, 0, 0);
    put(K::kAlloc, activation.value);
    at.use = put(K::kLaunch, use);
    at.free = put(K::kFree, whole.value);
    put(K::kFree, activation.value);
    p.steps.push_back({begin, static_cast<std::uint32_t>(p.instructions.size())});
    if (places != nullptr) *places = at;
  }
  s.programs.push_back(std::move(p));
  return s;
}

/// Moves instruction `from` to stand just after `after` (after > from) or just before it (after <
/// from).
inline void move_instruction(RankProgram& p, std::uint32_t from, std::uint32_t to) {
  auto b = p.instructions.begin();
  if (from < to)
    std::rotate(b + from, b + from + 1, b + to + 1);
  else
    std::rotate(b + to, b + from, b + from + 1);
}

}  // namespace foreshard::fixture
