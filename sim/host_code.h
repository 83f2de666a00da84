#pragma once

// A program as its host thread runs it: what touches streams, the allocator or the thread's own
// clock. Instructions that only take host time are added to what comes after them.

#include <cstdint>
#include <vector>

#include "sim/memory_pass.h"
#include "sim/prepare.h"

namespace foreshard::sim {

struct HostAct {
  std::int64_t host = 0;  ///< Picoseconds of the thread before it, with its own but an alloc's.
  std::uint32_t instruction = 0;
  std::uint32_t id = 0;                           ///< As Instruction::id; of a launch, its shape.
  InstructionKind kind = InstructionKind::kMark;  ///< kMark: nothing but the time.
  StreamIndex stream = 0;                         ///< Also of launches, collectives and copies.
};

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

HostCode make_host_code(const ProgramTiming& timing, const CollectiveTable& collectives,
                        HostCodeDetail detail, const std::vector<DriverCall>& calls);

}  // namespace foreshard::sim
