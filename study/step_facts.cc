#include "study/step_facts.h"

namespace foreshard {
namespace {

void add(Tally& t, Bytes bytes) {
  ++t.count;
  t.bytes += bytes;
}

void add_collective(const Schedule& schedule, const Collective& c, StepFacts& facts) {
  StepFacts::Collectives& row = facts.collectives[{c.kind, schedule.groups[c.group.value].size}];
  add(row, c.bytes);
  row.dtypes[c.dtype] += c.bytes;
}

void add_copy(const Copy& c, StepFacts& facts) {
  if (c.input >= 0) return;  // Batches: the same in every plan.
  if (c.direction == CopyDirection::kHostToDevice) add(facts.host_to_device, c.bytes);
  if (c.direction == CopyDirection::kDeviceToHost) add(facts.device_to_host, c.bytes);
}

}  // namespace

StepFacts facts_of(const Schedule& schedule) {
  const RankProgram& p = schedule.program_for(0);
  StepFacts facts;
  facts.units = static_cast<std::int64_t>(p.units.size());
  facts.streams = static_cast<std::int64_t>(p.streams.size());
  if (p.steps.empty()) return facts;
  for (std::uint32_t i = p.steps.back().begin; i < p.steps.back().end; ++i) {
    const Instruction& instruction = p.instructions[i];
    switch (instruction.kind) {
      case InstructionKind::kAlloc: {
        const Buffer& b = p.buffers[instruction.id];
        if (b.space == MemorySpace::kDevice)
          add(facts.buffers[static_cast<std::size_t>(b.category)], b.bytes);
        break;
      }
      case InstructionKind::kRecordStream:
        ++facts.recorded_streams;
        break;
      case InstructionKind::kLaunch: {
        const Launch& l = p.launches[instruction.id];
        facts.kernels[l.phase] += l.kernels;
        break;
      }
      case InstructionKind::kCollective:
        add_collective(schedule, p.collectives[instruction.id], facts);
        break;
      case InstructionKind::kCopy:
        add_copy(p.copies[instruction.id], facts);
        break;
      case InstructionKind::kWaitEvent:
        ++facts.stream_waits;
        break;
      case InstructionKind::kSyncEvent:
      case InstructionKind::kSyncStream:
      case InstructionKind::kSyncDevice:
        ++facts.host_waits;
        break;
      default:
        break;
    }
  }
  return facts;
}

}  // namespace foreshard
