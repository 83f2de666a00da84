#pragma once

// Predicts a schedule's time and memory on given hardware.

#include <memory>

#include "schedules/schedule.h"
#include "sim/cost_model.h"
#include "sim/options.h"
#include "sim/result.h"

namespace foreshard {

/// A schedule made ready for many simulations: what does not depend on costs and options is looked
/// up once, by the first that needs it. Simulations of one may run on many threads; the schedule
/// must outlive it.
class Simulator {
 public:
  explicit Simulator(const Schedule& schedule);
  ~Simulator();

  const Schedule& schedule() const { return schedule_; }
  /// As simulate().
  SimulationResult run(const CostModel& cost, const SimulationOptions& options = {}) const;
  /// run(...).memory.fits_device, without anything else where time does not matter to memory.
  bool fits(const CostModel& cost, const SimulationOptions& options) const;

 private:
  struct Prepared;
  const Schedule& schedule_;
  std::unique_ptr<Prepared> prepared_;
};

/// Runs the schedule against the cost model. InputError if the schedule cannot run: indices outside
/// their tables, waits for events never recorded, ranks that disagree about a collective, deadlock.
/// Out of memory is an answer, not an error. Deterministic; safe to call from many threads with one
/// cost model.
SimulationResult simulate(const Schedule& schedule, const CostModel& cost,
                          const SimulationOptions& options = {});

}  // namespace foreshard
