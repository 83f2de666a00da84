#include "sim/memory_pass.h"

#include <algorithm>
#include <utility>

namespace foreshard::sim {
namespace {

class Pass {
 public:
  Pass(const MemoryRequests& requests, const MemoryPassOptions& options)
      : requests_(requests), options_(options) {
    out_.progress = std::make_unique<InstantProgress>();
    out_.ledger = std::make_shared<MemoryLedger>(requests.program(), options.allocator,
                                                 options.capacity, options.taken, *out_.progress);
  }

  MemoryPass run() {
    MemoryLedger& ledger = *out_.ledger;
    run(requests_.init(), -1);
    const auto written = static_cast<std::int32_t>(requests_.steps().size());
    MemoryLedger::State before;  // as the step finds it
    for (std::int32_t step = 0; step < options_.steps && !stopped_; ++step) {
      if (step >= written) ledger.carry();
      ledger.begin_step();
      const bool may_repeat = step >= written - 1 && step + 1 < options_.steps;
      if (may_repeat && !before.known) before = ledger.state(&Carry::before);
      const std::size_t calls = out_.calls.size();
      run(requests_.steps()[static_cast<std::size_t>(std::min(step, written - 1))], step);
      out_.step_memory.push_back(ledger.end_step(options_.rank, step));
      if (!may_repeat || stopped_) continue;
      MemoryLedger::State after = ledger.state(&Carry::now);
      // After a failure the device is another one.
      if (!out_.step_memory.back().out_of_memory && before == after) {
        repeat_last(options_.steps - 1 - step, calls);
        break;
      }
      before = std::move(after);
    }
    out_.retries += ledger.retries();
    return std::move(out_);
  }

 private:
  void run(const Segment& segment, std::int32_t step) {
    out_.first_level.push_back(static_cast<std::uint32_t>(out_.levels.size()));
    if (options_.levels) out_.levels.reserve(out_.levels.size() + segment.end - segment.begin);
    for (std::uint32_t i = segment.begin; i < segment.end && !stopped_; ++i) {
      const MemoryRequests::Request& r = requests_.all()[i];
      if (r.free != 0) {
        out_.ledger->free(r.buffer);
      } else {
        allocate(r.buffer, {step, r.instruction});
      }
      if (options_.levels) {
        const AllocatorStats& s = out_.ledger->stats();
        out_.levels.push_back({s.allocated.current, s.reserved.current, s.active.current});
      }
    }
  }

  /// The last step has left memory as it found it: the next ones are like it, with the driver calls
  /// from `calls` on.
  void repeat_last(std::int32_t times, std::size_t calls) {
    const std::vector<DriverCall> each(out_.calls.begin() + static_cast<std::ptrdiff_t>(calls),
                                       out_.calls.end());
    for (std::int32_t i = 1; i <= times; ++i) {
      out_.first_level.push_back(out_.first_level.back());
      for (DriverCall call : each) {
        call.at.step += i;
        out_.calls.push_back(call);
      }
      out_.step_memory.push_back(out_.step_memory.back());
      ++out_.step_memory.back().step;
      out_.retries += out_.step_memory.back().retries;
    }
  }

  void allocate(std::uint32_t buffer, Moment at) {
    MemoryLedger& ledger = *out_.ledger;
    DriverCall call{at, -ledger.device_allocs(), -ledger.device_frees(), false};
    if (ledger.alloc(buffer, at) == MemoryLedger::Outcome::kNeedsRetry) {
      call = {at, -ledger.device_allocs(), -ledger.device_frees(), true};
      ledger.retry(buffer, at);
      stopped_ = options_.stop_at == StopAt::kRetry ||
                 (options_.stop_at == StopAt::kFailure && !ledger.failures().empty());
    }
    call.allocs += ledger.device_allocs();
    call.frees += ledger.device_frees();
    if (call.retry || call.allocs + call.frees > 0) out_.calls.push_back(call);
  }

  const MemoryRequests& requests_;
  const MemoryPassOptions& options_;
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

MemoryRequests::MemoryRequests(const RankProgram& program) : program_(program) {
  all_.reserve(2 * program.buffers.size());
  init_ = append(program.init);
  for (const Segment& s : program.steps) steps_.push_back(append(s));
}

Segment MemoryRequests::append(const Segment& instructions) {
  const auto begin = static_cast<std::uint32_t>(all_.size());
  for (std::uint32_t i = instructions.begin; i < instructions.end; ++i) {
    const Instruction& in = program_.instructions[i];
    if (in.kind == InstructionKind::kAlloc) all_.push_back({i, in.id, 0});
    if (in.kind == InstructionKind::kFree) all_.push_back({i, in.id, 1});
  }
  return {begin, static_cast<std::uint32_t>(all_.size())};
}

MemoryPass run_memory(const MemoryRequests& requests, const MemoryPassOptions& options) {
  return Pass(requests, options).run();
}

}  // namespace foreshard::sim
