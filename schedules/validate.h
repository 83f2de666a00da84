#pragma once

// Proves that a schedule can be run: what an executor or a simulator would otherwise find out the
// hard way.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schedules/schedule.h"

namespace foreshard {

/// What can be wrong with a schedule, in the order of checking.
enum class ScheduleFault : std::uint8_t {
  kStructure,        ///< An index outside its table, an impossible size (structure.h).
  kUseBeforeAlloc,   ///< A buffer is used, freed or recorded before it is claimed.
  kUseAfterFree,     ///< A buffer is used after it was returned, in host order.
  kDoubleAlloc,      ///< A live buffer is claimed again.
  kDoubleFree,       ///< A returned buffer is returned again.
  kLeak,             ///< A repeated step ends with more than it began with.
  kUseBeforeGather,  ///< Gathered parameters are read before any gather or copy wrote them, or
                     ///< unordered with it.
  kReadBeforeWrite,  ///< Other memory is read before anything wrote it.
  kUnordered,  ///< Two streams touch the same bytes, one of them writing, with no event between
               ///< them.
  kEventNotRecorded,  ///< A wait or sync on an event that was not recorded before.
  kCollectiveOrder,   ///< Members of a group issue different collectives.
  kDeadlock,          ///< Streams and ranks wait for each other in a cycle.
};
std::string_view name_of(ScheduleFault fault);

/// One fault with the instructions that show it.
struct ScheduleFinding {
  /// An instruction of one program.
  struct Place {
    std::uint32_t program = 0, instruction = 0;
  };
  ScheduleFault fault = ScheduleFault::kStructure;
  std::string message;
  std::vector<Place> places;
};

struct ValidateOptions {
  std::size_t most_findings = 20;  ///< Stop after so many.
};

/// All faults found; empty if the schedule can be run. Never throws for a wrong schedule.
std::vector<ScheduleFinding> validate(const Schedule& schedule,
                                      const ValidateOptions& options = {});
/// The finding with its instructions, one per line.
std::string text_of(const Schedule& schedule, const ScheduleFinding& finding);
/// InputError with every finding, if there is one. `file` names the schedule in the messages.
void require_valid(const Schedule& schedule, const std::string& file);

}  // namespace foreshard
