#pragma once

// Predicts a schedule's time and memory on given hardware.

#include <cstdint>
#include <memory>

#include "schedules/schedule.h"
#include "sim/cost_model.h"
#include "sim/options.h"
#include "sim/result.h"

namespace foreshard {

enum class Fit : std::uint8_t {
  kNo,            ///< A request fails.
  kAfterRetries,  ///< Only after the allocator has given cached memory back.
  kAtOnce,
};

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
  /// What memory does follows from the order of requests alone, whatever they cost: it is found
  /// without simulating time.
  bool memory_is_timeless() const;
  /// run(...).memory but for the owners; where memory is timeless, of a job that does not fit only
  /// up to the first failure.
  MemoryResult memory(const CostModel& cost, const SimulationOptions& options) const;
  /// Of the device's memory: what memory() says, without the rest after the first failure.
  Fit fit(const CostModel& cost, const SimulationOptions& options) const;
  /// Whether that is Fit::kAtOnce, without the rest after the first retry.
  bool fits_at_once(const CostModel& cost, const SimulationOptions& options) const;
  /// No device with less than this holds the job.
  Bytes least_memory(const CostModel& cost, const SimulationOptions& options) const;

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
