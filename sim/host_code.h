#pragma once

// A program as its host thread runs it: what touches streams, the allocator or the thread's own
// clock. Allocator calls that only take host time are counted in what comes after them.

#include <cstdint>
#include <vector>

#include "sim/memory_pass.h"
#include "sim/shapes.h"

namespace foreshard::sim {

struct HostAct {
  std::uint32_t instruction = 0;
  std::uint32_t id = 0;                           ///< As Instruction::id; of a launch, its shape.
  InstructionKind kind = InstructionKind::kMark;  ///< kMark: nothing but the calls before it.
  StreamIndex stream = 0;                         ///< Also of launches, collectives and copies.
  std::uint16_t allocs = 0, frees = 0, record_streams = 0;  ///< Calls before it.
};
static_assert(sizeof(HostAct) == 16);

struct HostCode {
  std::vector<HostAct> acts;
  Segment init;  ///< Ranges of `acts`.
  std::vector<Segment> steps;
};

/// Which instructions stay acts of their own.
enum class HostCodeDetail : std::uint8_t {
  kTimes,   ///< Allocations are acts only where a step of `memory` calls the driver.
  kMemory,  ///< Also every alloc, free and record_stream.
  kAll,     ///< Every instruction.
};

HostCode make_host_code(const RankProgram& program, const ProgramShapes& shapes,
                        HostCodeDetail detail, const std::vector<DriverCall>& calls);

}  // namespace foreshard::sim
