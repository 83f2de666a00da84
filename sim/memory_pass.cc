#include "sim/memory_pass.h"

#include <algorithm>
#include <utility>

namespace foreshard::sim {
namespace {

class Pass {
 public:
  Pass(const RankProgram& program, const AllocatorOptions& options, Bytes capacity, Bytes taken,
       bool stop_at_failure)
      : program_(program), stop_at_failure_(stop_at_failure) {
    out_.progress = std::make_unique<InstantProgress>();
    out_.ledger = std::make_unique<MemoryLedger>(program, options, capacity, taken, *out_.progress);
  }

  MemoryPass run(std::int32_t steps, std::int64_t rank) {
    MemoryLedger& ledger = *out_.ledger;
    run(program_.init, -1);
    const auto written = static_cast<std::int32_t>(program_.steps.size());
    for (std::int32_t step = 0; step < steps && !stopped_; ++step) {
      if (step >= written) ledger.carry();
      ledger.begin_step();
      const bool may_repeat = step >= written - 1 && step + 1 < steps;
      MemoryLedger::State before;
      if (may_repeat) before = ledger.state(&Carry::before);
      const std::size_t calls = out_.calls.size();
      run(program_.steps[static_cast<std::size_t>(std::min(step, written - 1))], step);
      out_.step_memory.push_back(ledger.end_step(rank, step));
      if (may_repeat && calls == out_.calls.size() && before == ledger.state(&Carry::now)) {
        repeat_to(steps);
        break;
      }
    }
    return std::move(out_);
  }

 private:
  void run(const Segment& segment, std::int32_t step) {
    for (std::uint32_t i = segment.begin; i < segment.end && !stopped_; ++i) {
      const Instruction& in = program_.instructions[i];
      if (in.kind == InstructionKind::kAlloc) {
        allocate(in.id, {step, i});
      } else if (in.kind == InstructionKind::kFree) {
        out_.ledger->free(in.id);
      }
    }
  }

  /// The step has changed nothing and called no driver: all that follow are like it.
  void repeat_to(std::int32_t steps) {
    while (static_cast<std::int32_t>(out_.step_memory.size()) < steps) {
      out_.step_memory.push_back(out_.step_memory.back());
      ++out_.step_memory.back().step;
    }
  }

  void allocate(std::uint32_t buffer, Moment at) {
    MemoryLedger& ledger = *out_.ledger;
    DriverCall call{at, -ledger.device_allocs(), -ledger.device_frees(), false};
    if (ledger.alloc(buffer, at) == MemoryLedger::Outcome::kNeedsRetry) {
      call = {at, -ledger.device_allocs(), -ledger.device_frees(), true};
      ledger.retry(buffer, at);
      stopped_ = stop_at_failure_ && !ledger.failures().empty();
    }
    call.allocs += ledger.device_allocs();
    call.frees += ledger.device_frees();
    if (call.retry || call.allocs + call.frees > 0) out_.calls.push_back(call);
  }

  const RankProgram& program_;
  bool stop_at_failure_;
  bool stopped_ = false;
  MemoryPass out_;
};

}  // namespace

Bytes communicator_memory(const RankProgram& program, std::size_t groups,
                          const DeviceMemory& device) {
  std::vector<bool> used(groups);
  for (const Collective& c : program.collectives) used[c.group.value] = true;
  return std::count(used.begin(), used.end(), true) * device.communicator;
}

MemoryPass run_memory(const RankProgram& program, const AllocatorOptions& options, Bytes capacity,
                      Bytes taken, std::int32_t steps, std::int64_t rank, bool stop_at_failure) {
  return Pass(program, options, capacity, taken, stop_at_failure).run(steps, rank);
}

}  // namespace foreshard::sim
