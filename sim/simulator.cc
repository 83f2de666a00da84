#include "sim/simulator.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "core/enum_names.h"
#include "core/error.h"
#include "sim/analysis.h"
#include "sim/engine.h"
#include "sim/memory_pass.h"
#include "sim/preparation.h"

namespace foreshard {
namespace sim {
namespace {

/// Up to this many simulated ranks are recorded together; beyond, only the one that is explained.
constexpr std::size_t kRecordAll = 64;

constexpr const char* kNotModelled[] = {
    "multiprocessors and caches that kernels of two streams of one GPU share",
    "a collective's blocks that spin while they wait for other ranks",
    "network congestion beyond each GPU's share of the NICs",
};
constexpr std::int32_t kMaxSteps = 30'000;
const std::vector<DriverCall> kNoCalls;

class Simulation {
 public:
  Simulation(const Schedule& schedule, Preparation& preparation, const CostModel& cost,
             const SimulationOptions& options)
      : schedule_(schedule), preparation_(preparation), cost_(cost), options_(options) {}

  SimulationResult run() {
    prepare();
    return prepared_run();
  }

  MemoryResult memory() {
    prepare();
    return prepared_memory(StopAt::kFailure);
  }

  Fit fit() {
    prepare();
    if (prepared_least_memory() > capacity()) return Fit::kNo;
    const MemoryResult m = prepared_memory(StopAt::kFailure);
    return !m.fits_device ? Fit::kNo : m.retries_total > 0 ? Fit::kAfterRetries : Fit::kAtOnce;
  }

  bool fits_at_once() {
    prepare();
    if (prepared_least_memory() > capacity()) return false;
    const MemoryResult m = prepared_memory(StopAt::kRetry);
    return m.fits_device && m.retries_total == 0;
  }

  Bytes least_memory() {
    prepare();
    return prepared_least_memory();
  }

 private:
  SimulationResult prepared_run() {
    for (std::uint32_t c = 0; c < layout_.classes.size(); ++c) {
      const bool pass = has_memory_[c] && timeless(c);
      passes_.push_back(pass ? memory_of(c, StopAt::kEnd) : nullptr);
    }
    write_code();
    const bool explain = options_.detail != Detail::kTimesOnly;
    const bool all = layout_.classes.size() <= kRecordAll || options_.detail == Detail::kTrace;
    std::vector<bool> record(layout_.classes.size(), explain && all);
    EngineOutput output = run_with(record);
    Window window = last_step(output);
    if (explain && !all) {  // the same run again, now that the rank to explain is known
      record[window.rank_class] = true;
      output = run_with(record);
    }
    take_memory(output);
    return answer(output, window);
  }

  /// Where it is timeless, up to where it is to stop.
  MemoryResult prepared_memory(StopAt stop_at) {
    if (!all_timeless()) return prepared_run().memory;
    EngineOutput output;
    output.ranks.resize(layout_.classes.size());
    for (std::uint32_t c = 0; c < layout_.classes.size(); ++c)
      passes_.push_back(has_memory_[c] ? memory_of(c, stop_at) : nullptr);
    take_memory(output);
    SimulationOptions no_owners = options_;
    no_owners.detail = Detail::kTimesOnly;
    SimulationResult result;
    explain_memory({schedule_, layout_, programs_, collectives_, no_owners, output}, device_,
                   result);
    return result.memory;
  }

  /// Of the ranks that have an allocator.
  bool all_timeless() const {
    for (std::uint32_t c = 0; c < layout_.classes.size(); ++c)
      if (has_memory_[c] && !timeless(c)) return false;
    return true;
  }

  void check_variation() const {
    const Variation& v = options_.variation;
    IssueList issues("options");
    const auto check_factors = [&issues](const std::vector<double>& factors,
                                         const std::string& name) {
      for (std::size_t r = 0; r < factors.size(); ++r) {
        if (factors[r] >= 1e-3 && factors[r] <= 1e3) continue;
        issues.add("variation." + name + "[" + std::to_string(r) + "]", "is not a sensible factor",
                   "0.001 to 1000");
        return;
      }
    };
    check_factors(v.rank_compute, "rank_compute");
    check_factors(v.rank_link, "rank_link");
    for (const double sigma : {v.step_sigma, v.kernel_sigma, v.collective_sigma}) {
      if (!(sigma >= 0 && sigma <= 1))
        issues.add("variation", "a standard deviation is out of range", "0 to 1");
    }
    issues.throw_if_any();
  }

  void prepare() {
    check_variation();
    preparation_.check();
    layout_ = make_layout(schedule_, cost_, options_);
    check_programs();
    for (std::uint32_t p = 0; p < schedule_.programs.size(); ++p) {
      programs_.push_back(
          used_[p] ? prepare_program(schedule_.programs[p], preparation_.shapes()[p], cost_)
                   : ProgramTiming{});
    }
    collectives_ = prepare_collectives(schedule_, preparation_.shapes(), layout_, cost_);
    steps_ = options_.steps > 0 ? options_.steps : written_;
    if (options_.steps < 0 || steps_ > kMaxSteps) {
      throw InputError(Issue{"options", "steps", "is " + std::to_string(steps_),
                             "1 to " + std::to_string(kMaxSteps)});
    }
    check_total_time();
    if (options_.memory != MemoryDetail::kNone) device_ = cost_.memory();
    // One rank of each program has an allocator.
    std::vector<bool> seen(schedule_.programs.size());
    for (const RankClass& c : layout_.classes) {
      has_memory_.push_back(options_.memory != MemoryDetail::kNone && !seen[c.program]);
      seen[c.program] = true;
    }
  }

  bool timeless(std::uint32_t c) const {
    return preparation_.shapes()[layout_.classes[c].program].timeless_memory;
  }

  /// What the programs hold at once.
  Bytes prepared_least_memory() const {
    Bytes most;
    for (std::uint32_t c = 0; c < layout_.classes.size(); ++c) {
      if (!has_memory_[c]) continue;
      const std::uint32_t p = layout_.classes[c].program;
      most = std::max(most, taken_by(p) + Bytes(preparation_.least_memory(p, steps_)));
    }
    return most;
  }

  Bytes capacity() const { return options_.device_memory.value_or(device_.capacity); }
  /// Context and communicators.
  Bytes taken_by(std::uint32_t program) const {
    return device_.context +
           communicator_memory(schedule_.programs[program], schedule_.groups.size(), device_);
  }

  std::shared_ptr<const MemoryPass> memory_of(std::uint32_t c, StopAt stop_at) const {
    const std::uint32_t p = layout_.classes[c].program;
    return preparation_.memory(
        p, {options_.allocator, capacity(), taken_by(p), steps_, layout_.classes[c].rank, stop_at,
            options_.detail == Detail::kTrace});
  }

  /// What the passes have found in place of what the engine left open.
  void take_memory(EngineOutput& output) const {
    for (std::uint32_t c = 0; c < passes_.size(); ++c) {
      if (!passes_[c]) continue;
      RankRecord& rank = output.ranks[c];
      rank.ledger = passes_[c]->ledger;
      rank.step_memory = passes_[c]->step_memory;
      rank.retries = passes_[c]->retries;
    }
  }

  /// Ranks of one program share its code.
  void write_code() {
    std::map<std::uint32_t, std::shared_ptr<const HostCode>> code_of;  // by program
    for (std::uint32_t c = 0; c < layout_.classes.size(); ++c) {
      const std::uint32_t p = layout_.classes[c].program;
      if (has_memory_[c] || !code_of.contains(p)) {
        const HostCodeDetail detail = options_.detail == Detail::kTrace ? HostCodeDetail::kAll
                                      : has_memory_[c] && !passes_[c]   ? HostCodeDetail::kMemory
                                                                        : HostCodeDetail::kTimes;
        code_of[p] = preparation_.code(p, detail, passes_[c] ? passes_[c]->calls : kNoCalls);
      }
      code_.push_back(code_of[p]);
    }
  }

  void check_programs() {
    used_.assign(schedule_.programs.size(), false);
    for (const RankClass& c : layout_.classes) used_[c.program] = true;
    for (std::uint32_t p = 0; p < used_.size(); ++p) {
      if (used_[p]) preparation_.require(p);
    }
    written_ = -1;
    for (std::uint32_t p = 0; p < used_.size(); ++p) {
      if (!used_[p]) continue;
      const auto steps = static_cast<std::int32_t>(schedule_.programs[p].steps.size());
      if (steps == 0 || (written_ >= 0 && steps != written_)) {
        throw InputError(Issue{"schedule", "programs[" + std::to_string(p) + "].steps",
                               "has " + std::to_string(steps) + " steps",
                               "at least one, the same number in all programs"});
      }
      written_ = steps;
    }
  }

  /// Even if nothing overlapped, the run must end inside the range of Time.
  void check_total_time() const {
    constexpr double kLongest = 4e18;  // ps, 46 days
    double total = 0;
    for (std::uint32_t c = 0; c < layout_.classes.size(); ++c) {
      const ProgramTiming& timing = programs_[layout_.classes[c].program];
      for (std::size_t shape = 0; shape < timing.launches.size(); ++shape) {
        const LaunchTiming& l = timing.launches[shape];
        total += static_cast<double>(timing.shapes->launch_count[shape]) *
                 (static_cast<double>(l.device) + static_cast<double>(l.host));
      }
      for (const TransferCost& t : timing.copies) total += static_cast<double>(t.device.value);
      for (const std::int64_t w : timing.host_work) total += static_cast<double>(w);
      for (const TransferCost& t : *collectives_[c]) total += static_cast<double>(t.device.value);
    }
    if (total * steps_ / written_ * 2 > kLongest * static_cast<double>(layout_.classes.size())) {
      throw InputError(
          Issue{"schedule", "steps", "take more than 46 days in all", "less work or fewer steps"});
    }
  }

  EngineOutput run_with(const std::vector<bool>& record) const {
    EngineInput input;
    input.schedule = &schedule_;
    input.layout = &layout_;
    input.cost = &cost_;
    input.options = &options_;
    input.programs = &programs_;
    input.collectives = &collectives_;
    std::vector<const MemoryPass*> memory;
    for (std::uint32_t c = 0; c < layout_.classes.size(); ++c) {
      memory.push_back(passes_[c].get());
      input.ledger.push_back(has_memory_[c] && !passes_[c]);
    }
    input.code = &code_;
    input.memory = &memory;
    input.record = record;
    input.steps = steps_;
    return run_engine(std::move(input));
  }

  /// From the end of the last step but one to the end of the last one, on the slowest rank.
  Window last_step(const EngineOutput& output) const {
    Window w;
    w.step = steps_ - 1;
    const auto last = static_cast<std::size_t>(w.step);
    w.start = w.end = INT64_MIN;
    for (std::uint32_t c = 0; c < output.ranks.size(); ++c) {
      const RankRecord& rank = output.ranks[c];
      w.start = std::max(w.start, last == 0 ? rank.origin : rank.steps[last - 1].end);
      if (rank.steps[last].end > w.end) {
        w.end = rank.steps[last].end;
        w.rank_class = c;
      }
    }
    return w;
  }

  SimulationResult answer(const EngineOutput& output, const Window& window) const {
    SimulationResult result;
    const Run run{schedule_, layout_, programs_, collectives_, options_, output};
    const RankRecord& explained = output.ranks[window.rank_class];
    result.step_time = Time(window.end - window.start);
    result.step_start = Time(window.start - explained.origin);
    result.step_end = Time(window.end - explained.origin);
    result.explained_rank = layout_.classes[window.rank_class].rank;
    result.ranks_simulated = static_cast<std::int64_t>(layout_.classes.size());
    result.instructions_simulated = output.instructions;
    result.not_modelled = schedule_.not_modelled;
    for (const char* text : kNotModelled) result.not_modelled.push_back(text);
    fill_step_times(output, result);
    fill_flops(result);
    explain_memory(run, device_, result);
    if (options_.detail != Detail::kTimesOnly) explain_time(run, window, result);
    add_overhead(result);
    if (options_.detail == Detail::kTrace) {
      result.trace = make_trace(run);
      result.trace->step_times = result.step_times;
      result.trace->step_memory = result.step_memory;
      result.trace->notes = result.not_modelled;
    }
    return result;
  }

  /// Time at the end of each step that no instruction takes. The timeline of a trace leaves it out.
  void add_overhead(SimulationResult& result) const {
    const Time overhead = cost_.step_overhead();
    if (overhead == Time(0)) return;
    result.step_time += overhead;
    result.step_start += Time(overhead.value * (steps_ - 1));
    result.step_end += Time(overhead.value * steps_);
    for (StepTime& t : result.step_times) {
      t.start += Time(overhead.value * t.step);
      t.end += Time(overhead.value * (t.step + 1));
    }
    if (options_.detail == Detail::kTimesOnly) return;
    result.breakdown.idle += overhead;
    result.critical_path.push_back({{.kind = CriticalResource::Kind::kStepOverhead}, overhead});
    const std::vector<CriticalPathSegment>& path = result.critical_segments;
    const Time from = path.empty() ? result.step_start : path.back().end;
    result.critical_segments.push_back({static_cast<std::uint32_t>(result.critical_path.size() - 1),
                                        result.explained_rank, UINT32_MAX, from, from + overhead});
  }

  void fill_step_times(const EngineOutput& output, SimulationResult& result) const {
    for (std::uint32_t c = 0; c < output.ranks.size(); ++c) {
      const RankRecord& rank = output.ranks[c];
      for (std::size_t s = 0; s < rank.steps.size(); ++s) {
        StepTime t;
        t.rank = static_cast<std::int32_t>(layout_.classes[c].rank);
        t.step = static_cast<std::int32_t>(s);
        t.start = Time((s == 0 ? rank.origin : rank.steps[s - 1].end) - rank.origin);
        t.end = Time(rank.steps[s].end - rank.origin);
        result.step_times.push_back(t);
      }
    }
  }

  void fill_flops(SimulationResult& result) const {
    std::vector<double> flops(programs_.size(), -1);
    for (const RankClass& c : layout_.classes) {
      double& n = flops[c.program];
      if (n < 0) {
        n = 0;
        const ProgramTiming& timing = programs_[c.program];
        const Segment& step = timing.program->steps.back();
        for (std::uint32_t i = step.begin; i < step.end; ++i) {
          const Instruction& in = timing.program->instructions[i];
          if (in.kind == InstructionKind::kLaunch)
            n += static_cast<double>(timing.program->launches[in.id].flops.value);
        }
      }
      result.executed_flops_per_step += n * static_cast<double>(c.count);
    }
  }

  const Schedule& schedule_;
  Preparation& preparation_;
  const CostModel& cost_;
  const SimulationOptions& options_;
  Layout layout_;
  DeviceMemory device_;
  std::vector<bool> used_;
  std::vector<ProgramTiming> programs_;
  std::vector<std::shared_ptr<const CollectiveTable>> collectives_;
  std::vector<bool> has_memory_;                           ///< By class.
  std::vector<std::shared_ptr<const MemoryPass>> passes_;  ///< By class; null: there is none.
  std::vector<std::shared_ptr<const HostCode>> code_;
  std::int32_t written_ = 0, steps_ = 1;
};

}  // namespace
}  // namespace sim

SimulationResult simulate(const Schedule& schedule, const CostModel& cost,
                          const SimulationOptions& options) {
  return Simulator(schedule).run(cost, options);
}

struct Simulator::Prepared {
  explicit Prepared(const Schedule& schedule) : preparation(schedule) {}
  sim::Preparation preparation;
};

Simulator::Simulator(const Schedule& schedule)
    : schedule_(schedule), prepared_(std::make_unique<Prepared>(schedule)) {}
Simulator::~Simulator() = default;

SimulationResult Simulator::run(const CostModel& cost, const SimulationOptions& options) const {
  return sim::Simulation(schedule_, prepared_->preparation, cost, options).run();
}

bool Simulator::memory_is_timeless() const {
  for (std::uint32_t p = 0; p < schedule_.programs.size(); ++p) {
    prepared_->preparation.require(p);
    if (!prepared_->preparation.shapes()[p].timeless_memory) return false;
  }
  return true;
}

MemoryResult Simulator::memory(const CostModel& cost, const SimulationOptions& options) const {
  return sim::Simulation(schedule_, prepared_->preparation, cost, options).memory();
}

Fit Simulator::fit(const CostModel& cost, const SimulationOptions& options) const {
  return sim::Simulation(schedule_, prepared_->preparation, cost, options).fit();
}

bool Simulator::fits_at_once(const CostModel& cost, const SimulationOptions& options) const {
  return sim::Simulation(schedule_, prepared_->preparation, cost, options).fits_at_once();
}

Bytes Simulator::least_memory(const CostModel& cost, const SimulationOptions& options) const {
  return sim::Simulation(schedule_, prepared_->preparation, cost, options).least_memory();
}

std::string_view name_of(Link link) {
  static constexpr std::string_view kNames[] = {"NVLink", "network", "PCIe in", "PCIe out"};
  static_assert(std::size(kNames) == kEnumerators<Link>);
  return kNames[static_cast<int>(link)];
}

}  // namespace foreshard
