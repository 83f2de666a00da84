#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "exec/backend.h"
#include "exec/given_progress.h"
#include "exec/rank_context.h"
#include "exec/rank_memory.h"
#include "exec/run_control.h"
#include "exec/wall_clock.h"

namespace foreshard {

/// What the interpreters of one run share.
struct RunShared {
  const Schedule& schedule;
  const RunOptions& options;
  RunControl& control;
  const WallClock& clock;
};

/// Walks one rank's program in host order, as the rank's host thread: claims and returns memory at
/// once, submits device work to the backend, waits where the program waits. Used from one thread;
/// read its results after that has ended.
class Interpreter {
 public:
  Interpreter(const RunShared& shared, std::int64_t rank, Backend& backend);

  void run_init();
  /// `step` counts from 0 over the whole run; steps past the plan's repeat its last one.
  void run_step(std::int32_t step);

  RankMemory& memory() { return memory_; }
  Observations& observations() { return observations_; }
  const RankContext& context() const { return context_; }
  /// The instruction being issued; may be read from any thread.
  std::uint32_t position() const { return position_.load(std::memory_order_relaxed); }

  std::vector<Span> spans;  ///< Host lane.
  std::vector<MemorySample> memory_samples;
  std::vector<StepMemory> step_memory;
  std::vector<StepTime> step_times;  ///< As the host saw them.

 private:
  void run_segment(Segment segment, std::int32_t step);
  void execute(const Instruction& instruction);
  void launch(const Launch& launch);
  void collective(const Collective& collective);
  void copy(const Copy& copy);
  void synchronize(const SyncTarget& target);
  void sample_memory();
  void inject_faults();
  void advance_host();
  NominalTime nominal() const;
  CallOrigin origin() const { return {context_.rank, instruction_, step_}; }

  const RunShared& shared_;
  Backend& backend_;
  Observations observations_;
  RankContext context_;
  const RankProgram& program_;
  GivenProgress progress_;
  RankMemory memory_;
  const std::vector<Time>* host_times_ =
      nullptr;  ///< Emulated durations of this rank's program, if any.
  const std::vector<Time>* device_times_ = nullptr;
  std::uint32_t instruction_ = 0;
  std::atomic<std::uint32_t> position_{0};
  std::int32_t step_ = -1;
  Time host_nominal_;
  /// Calls so far of each communicator: (group, 0), or (group, direction) for sends.
  std::map<std::tuple<std::uint32_t, std::int64_t>, std::uint64_t> sequences_;
};

}  // namespace foreshard
