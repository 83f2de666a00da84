#pragma once

// Everything the event loop needs to know about a program, looked up once: checked instructions and
// a time for each launch, copy, host item and driver call. Costs are asked once for each distinct
// shape.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "schedules/schedule.h"
#include "sim/cost_model.h"
#include "sim/layout.h"
#include "sim/shapes.h"

namespace foreshard::sim {

/// Picoseconds; the loop works on plain integers.
struct LaunchTiming {
  std::int64_t device = 0;
  std::int64_t host = 0;
  KernelClass kernel_class = KernelClass::kOther;
  double memory_share = 0;
};

/// Times of one program; shared by all ranks that run it.
struct ProgramTiming {
  const RankProgram* program = nullptr;
  const ProgramShapes* shapes = nullptr;
  std::vector<LaunchTiming> launches;  ///< By shape.
  std::vector<TransferCost> copies;
  std::vector<std::int64_t> host_work;
  HostCosts host;
  std::uint32_t streams = 1;

  const LaunchTiming& launch(std::uint32_t index) const {
    return launches[shapes->launch_shape[index]];
  }
};

/// Costs of the collectives of one program on communicators of given shapes.
using CollectiveTable = std::vector<TransferCost>;

/// Checks that every index is inside its table and every amount possible; InputError with the first
/// places where not.
void require_schedule(const Schedule& schedule);

/// `program` and `shapes` must outlive the answer.
ProgramTiming prepare_program(const RankProgram& program, const ProgramShapes& shapes,
                              const CostModel& cost);

/// One table for each class; classes with the same program and equally placed communicators share
/// it.
std::vector<std::shared_ptr<const CollectiveTable>> prepare_collectives(
    const Schedule& schedule, const std::vector<ProgramShapes>& shapes, const Layout& layout,
    const CostModel& cost);

}  // namespace foreshard::sim
