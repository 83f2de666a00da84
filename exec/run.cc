#include "exec/run.h"

#include <algorithm>
#include <memory>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "exec/cpu_backend.h"
#include "exec/interpreter.h"
#include "exec/kernels/kernels.h"
#include "exec/parameters.h"
#include "exec/run_control.h"
#include "exec/transport/transport.h"
#include "exec/wall_clock.h"
#include "schedules/structure.h"

namespace foreshard {
namespace {

void check_emulation(const Schedule& s, const std::vector<std::vector<Time>>& times,
                     const char* what, IssueList& issues) {
  if (times.empty()) return;
  bool fits = times.size() == s.programs.size();
  for (std::size_t p = 0; fits && p < times.size(); ++p)
    fits = times[p].size() == s.programs[p].instructions.size();
  if (!fits)
    issues.add(what, "the durations are not those of this schedule",
               "one time per instruction of each program");
}

/// A program must name its tensors, and each of its operators needs a kernel.
void check_runnable(const Schedule& s, IssueList& issues) {
  std::set<OpKind> without_kernel;
  for (const RankProgram& p : s.programs) {
    if (!p.launches.empty() && !has_tensors(p)) {
      issues.add("programs", "the plan says times and memory only, no tensors",
                 "plan again with --executable yes");
      return;
    }
    for (const Launch& l : p.launches) {
      if (kernel_for(l.op) == nullptr) without_kernel.insert(l.op);
    }
  }
  for (const OpKind op : without_kernel) {
    issues.add("launches", fmt::format("there is no CPU kernel for {}", name_of(op)),
               op == OpKind::kFusedBlock ? "plan again with --compile no" : "");
  }
}

void check_options(const Schedule& s, const RunOptions& o) {
  IssueList issues("run");
  if (s.world < 1 || s.world > kMostExecutedRanks) {
    issues.add("world", fmt::format("{} ranks", s.world),
               fmt::format("1 to {} on this machine", kMostExecutedRanks));
  }
  if (s.program_of_rank.empty())
    issues.add("program_of_rank", "no program", "one entry, or one for each rank");
  if (o.steps < 0) issues.add("steps", fmt::format("{} steps", o.steps), "0 or more");
  for (const ReuseAnswers& a : o.reuse) {
    if (a.rank < 0 || a.rank >= s.world)
      issues.add("reuse", fmt::format("it has a rank {}", a.rank), "a trace of this schedule");
  }
  for (const RankProgram& p : s.programs) {
    if (p.steps.empty() && o.steps > 0) issues.add("steps", "the schedule has no step to run");
  }
  check_runnable(s, issues);
  if (o.emulate) {
    check_emulation(s, o.emulate->host, "emulated host times", issues);
    check_emulation(s, o.emulate->device, "emulated device times", issues);
    if (!(o.emulate->time_scale > 0))
      issues.add("time scale", fmt::format("{}", o.emulate->time_scale), "above 0");
  }
  issues.throw_if_any();
}

/// All ranks wait here for each other; the last one sets the clock to zero.
class StartLine {
 public:
  StartLine(std::int64_t ranks, RunControl& control, WallClock& clock)
      : waiting_for_(ranks), control_(control), clock_(clock) {}
  void wait(std::int64_t rank) {
    std::unique_lock lock(mutex_);
    if (--waiting_for_ == 0) {
      clock_.start();
      changed_.notify_all();
    }
    const bool all = control_.wait(
        lock, changed_, [&] { return waiting_for_ == 0; }, control_.watchdog());
    if (!all) {
      throw RunError(fmt::format("rank {} waited {} ms before the first step for {} other ranks",
                                 rank, control_.watchdog().count(), waiting_for_));
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t waiting_for_;
  RunControl& control_;
  WallClock& clock_;
};

struct Rank {
  PacingCounts pacing;
  std::unique_ptr<Backend>
      backend;  // outlives the interpreter, which owns the allocator over its memory
  std::unique_ptr<Interpreter> interpreter;
  std::atomic<bool> ended{false};
  std::jthread host;
};

class Run {
 public:
  Run(const Schedule& schedule, const RunOptions& options)
      : schedule_(schedule),
        options_(options),
        control_(options.watchdog),
        clock_(options.emulate ? options.emulate->time_scale : 1.0),
        transport_(options.transport(control_)),
        start_(schedule.world, control_, clock_),
        shared_{schedule_, options_, control_, clock_} {
    steps_ = options.steps > 0 ? options.steps
                               : static_cast<std::int32_t>(schedule.program_for(0).steps.size());
  }

  RunResult execute() {
    build_ranks();
    for (const auto& rank : ranks_) start(*rank);
    try {
      supervise();
    } catch (...) {
      control_.fail(std::current_exception());
    }
    for (const auto& rank : ranks_)
      if (rank->host.joinable()) rank->host.join();
    return collect();
  }

 private:
  void build_ranks() {
    Pacing pacing;
    if (options_.emulate) pacing = {true, clock_.from_wall(options_.emulate->tolerance)};
    const CpuBackendShared backend_shared{control_, *transport_, clock_, pacing};
    for (std::int64_t r = 0; r < schedule_.world; ++r) {
      const RankProgram& program = schedule_.program_for(r);
      auto rank = std::make_unique<Rank>();
      rank->backend = make_cpu_backend(backend_shared, options_.mode, program.streams.size(),
                                       program.events, options_.device_memory, rank->pacing);
      rank->interpreter = std::make_unique<Interpreter>(shared_, r, *rank->backend);
      ranks_.push_back(std::move(rank));
    }
  }

  /// A rank whose thread does not start ends the run.
  void start(Rank& rank) {
    try {
      rank.host = start_thread([this, &rank] { host_thread(rank); });
    } catch (...) {
      control_.fail(std::current_exception());
      rank.ended.store(true);
    }
  }

  void host_thread(Rank& rank) {
    try {
      rank.interpreter->run_init();
      start_.wait(rank.interpreter->context().rank);
      for (std::int32_t step = 0; step < steps_; ++step) rank.interpreter->run_step(step);
      rank.backend->synchronize({});
    } catch (const RunAborted&) {
    } catch (...) {
      control_.fail(std::current_exception());
    }
    rank.ended.store(true);
  }

  /// Watches until all host threads have ended; a run in which nothing moves for the watchdog's
  /// time is failed.
  void supervise() {
    using Clock = std::chrono::steady_clock;
    std::uint64_t ticks = control_.ticks();
    auto moved = Clock::now();
    const auto running = [&] {
      return std::any_of(ranks_.begin(), ranks_.end(), [](auto& r) { return !r->ended.load(); });
    };
    while (running()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (std::exchange(ticks, control_.ticks()) != ticks) moved = Clock::now();
      // Twice the watchdog: a rank that waits for another one says so itself, and better.
      if (control_.failed() || Clock::now() - moved < 2 * options_.watchdog) continue;
      control_.fail(std::make_exception_ptr(RunError(describe_standstill())));
    }
  }

  std::string describe_standstill() const {
    std::string where;
    for (const auto& r : ranks_) {
      if (r->ended.load()) continue;
      where += fmt::format("{}rank {} at instruction {}", where.empty() ? "" : ", ",
                           r->interpreter->context().rank, r->interpreter->position());
    }
    return fmt::format("the run stands still: {}", where);
  }

  RunResult collect() {
    RunResult result;
    std::vector<std::vector<Time>> device_ends(ranks_.size());
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      std::vector<Span> spans;
      ranks_[r]->backend->finish(spans, device_ends[r]);
      auto& all = result.trace.spans;
      if (options_.record_spans) {
        all.insert(all.end(), spans.begin(), spans.end());
        all.insert(all.end(), ranks_[r]->interpreter->spans.begin(),
                   ranks_[r]->interpreter->spans.end());
      }
    }
    if (const std::exception_ptr error = control_.error()) std::rethrow_exception(error);
    fill_trace(result, device_ends);
    if (options_.gather_parameters) {
      for (const auto& r : ranks_)
        add_local_parameters(r->interpreter->context(), r->interpreter->memory(),
                             result.parameters);
    }
    return result;
  }

  void fill_trace(RunResult& result, const std::vector<std::vector<Time>>& device_ends) {
    Trace& trace = result.trace;
    trace.timing = options_.emulate ? Timing::kEmulated : Timing::kCpuRanks;
    trace.model = schedule_.model;
    trace.description = schedule_.description;
    trace.world = schedule_.world;
    std::sort(trace.spans.begin(), trace.spans.end(), [](const Span& a, const Span& b) {
      return std::tie(a.rank, a.step, a.start, a.lane, a.stream, a.instruction) <
             std::tie(b.rank, b.step, b.start, b.lane, b.stream, b.instruction);
    });
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      Interpreter& i = *ranks_[r]->interpreter;
      trace.memory.insert(trace.memory.end(), i.memory_samples.begin(), i.memory_samples.end());
      trace.step_memory.insert(trace.step_memory.end(), i.step_memory.begin(), i.step_memory.end());
      Time previous;  // a step begins where the one before it ended
      for (StepTime t : i.step_times) {
        t.start = previous;
        t.end = previous = std::max(t.end, device_ends[r].at(static_cast<std::size_t>(t.step)));
        trace.step_times.push_back(t);
      }
      result.timed_work += ranks_[r]->pacing.timed;
      trace.overruns += ranks_[r]->pacing.overruns;
    }
    trace.losses = average(Observations::What::kLoss);
    trace.gradient_norms = average(Observations::What::kGradientNorm);
    describe_timing(result);
  }

  /// Per step, the mean over the ranks that observed the value; empty if a step has none.
  std::vector<double> average(Observations::What what) const {
    std::vector<double> out;
    for (std::int32_t step = 0; step < steps_; ++step) {
      double sum = 0, value = 0;
      int n = 0;
      for (const auto& r : ranks_) {
        if (!r->interpreter->observations().get(what, step, &value)) continue;
        sum += value;
        ++n;
      }
      if (n == 0) return {};
      out.push_back(sum / n);
    }
    return out;
  }

  void describe_timing(RunResult& result) const {
    if (!options_.emulate) {
      result.trace.notes.push_back("times are of CPU ranks and say nothing about other hardware");
      return;
    }
    const auto bound = static_cast<std::int64_t>(options_.emulate->overrun_share *
                                                 static_cast<double>(result.timed_work));
    result.trace.timing_valid = result.trace.overruns <= bound;
    result.trace.notes.push_back(
        fmt::format("durations were given, not measured: this run proves order, lifetimes, bytes "
                    "and numerics; {} of {} pieces of "
                    "work ended late (at most {} allowed)",
                    result.trace.overruns, result.timed_work, bound));
  }

  const Schedule& schedule_;
  const RunOptions& options_;
  RunControl control_;
  WallClock clock_;
  std::unique_ptr<Transport> transport_;
  StartLine start_;
  const RunShared shared_;
  std::int32_t steps_ = 0;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace

RunResult run(const Schedule& schedule, const RunOptions& options) {
  check_options(schedule, options);
  RunOptions complete = options;
  if (!complete.initialize) complete.initialize = default_initial_value;
  if (!complete.data) complete.data = default_data;
  prepare_kernels();
  return Run(schedule, complete).execute();
}

}  // namespace foreshard
