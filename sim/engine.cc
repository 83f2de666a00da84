#include "sim/engine.h"

#include <algorithm>
#include <numbers>

#include "core/error.h"
#include "sim/engine_impl.h"

namespace foreshard::sim {
namespace {

std::uint64_t split_mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

std::string_view name_of_kind(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::kAlloc:
      return "alloc";
    case InstructionKind::kFree:
      return "free";
    case InstructionKind::kRecordStream:
      return "record_stream";
    case InstructionKind::kLaunch:
      return "launch";
    case InstructionKind::kCollective:
      return "collective";
    case InstructionKind::kCopy:
      return "copy";
    case InstructionKind::kRecordEvent:
      return "record";
    case InstructionKind::kWaitEvent:
      return "wait";
    case InstructionKind::kSyncEvent:
      return "sync event";
    case InstructionKind::kSyncStream:
      return "sync stream";
    case InstructionKind::kSyncDevice:
      return "sync device";
    case InstructionKind::kHost:
      return "host";
    case InstructionKind::kMark:
      return "mark";
  }
  return "?";
}

/// With the repetitions of the last step.
std::int64_t instructions_of(const RankProgram& program, std::int32_t steps) {
  const auto size = [](const Segment& s) { return std::int64_t{s.end} - s.begin; };
  const auto written = static_cast<std::int32_t>(program.steps.size());
  std::int64_t n = size(program.init);
  for (std::int32_t s = 0; s < std::min(steps, written); ++s)
    n += size(program.steps[static_cast<std::size_t>(s)]);
  return n + std::max(0, steps - written) * size(program.steps.back());
}

}  // namespace

double random_factor(double sigma, std::uint64_t seed, std::uint64_t a, std::uint64_t b,
                     std::uint64_t c) {
  const std::uint64_t key = split_mix(split_mix(split_mix(seed ^ split_mix(a)) ^ b) ^ split_mix(c));
  const double u = (static_cast<double>(key >> 11) + 0.5) * 0x1p-53;
  const double v = static_cast<double>(split_mix(key) >> 11) * 0x1p-53;
  return std::exp(sigma * std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v));
}

Engine::Engine(EngineInput input) : in_(std::move(input)) {
  const Layout& layout = *in_.layout;
  trace_ = in_.options->detail == Detail::kTrace;
  serial_ = in_.options->serialize_communicators;
  groups_ = static_cast<std::uint32_t>(in_.schedule->groups.size());
  for (const ProgramTiming& p : *in_.programs) width_ = std::max(width_, p.streams);
  comms_.resize(layout.communicators.size());
  for (std::size_t i = 0; i < comms_.size(); ++i) {
    comms_[i].layout = &layout.communicators[i];
    comms_[i].last_op.assign(layout.communicators[i].classes.size(), Cause::kUnknown);
  }
  const auto classes = static_cast<std::uint32_t>(layout.classes.size());
  const auto comms = static_cast<std::uint32_t>(comms_.size());
  first_stream_ = comms * (serial_ ? 1 : width_) + classes * width_;
  first_host_ = first_stream_ + classes * width_;
  tree_ = EventTree(first_host_ + classes, first_stream_);
  transfers_.resize(first_stream_);
  for (std::uint32_t i = first_stream_; i > 0; --i) free_transfers_.push_back(i - 1);
  demand_.assign(classes * kLinkCount, 0);
  for (std::uint32_t c = 0; c < classes; ++c) {
    for (int l = 0; l < kLinkCount; ++l)
      capacity_.push_back(in_.cost->capacity(static_cast<Link>(l)).per_second);
  }
  ranks_.resize(classes);
  for (std::uint32_t c = 0; c < classes; ++c) set_up_rank(c);
}

void Engine::set_up_rank(std::uint32_t c) {
  const RankClass& rank_class = in_.layout->classes[c];
  const RankProgram& program = in_.schedule->programs[rank_class.program];
  Rank& r = ranks_[c];
  r.index = c;
  r.timing = &(*in_.programs)[rank_class.program];
  r.collectives = (*in_.collectives)[c].get();
  r.streams.resize(r.timing->streams);
  for (Stream& s : r.streams) s.scale = scale_of(r, -1);
  r.latest.assign(program.events, kNone);
  r.sequence.assign(groups_ + in_.layout->pairs.size(), 0);
  r.record = in_.record[c];
  r.code = (*in_.code)[c].get();
  if (trace_ && r.record)
    r.kept.host_spans.reserve(static_cast<std::size_t>(instructions_of(program, in_.steps)));
  r.memory = (*in_.memory)[c];
  if (r.memory != nullptr) r.driver_calls = r.memory->calls;
  if (!in_.ledger[c]) return;
  const DeviceMemory memory = in_.cost->memory();
  r.kept.progress = std::make_unique<Progress>(*this, r);
  r.kept.ledger = std::make_unique<MemoryLedger>(
      program, in_.options->allocator, in_.options->device_memory.value_or(memory.capacity),
      memory.context + communicator_memory(program, groups_, memory), *r.kept.progress);
}

double Engine::scale_of(const Rank& r, std::int32_t step) const {
  const Variation& v = in_.options->variation;
  const auto rank = static_cast<std::size_t>(in_.layout->classes[r.index].rank);
  double scale = rank < v.rank_compute.size() ? v.rank_compute[rank] : 1;
  if (v.step_sigma > 0) {
    scale *=
        random_factor(v.step_sigma, v.seed, static_cast<std::uint64_t>(step + 1), UINT64_MAX, rank);
  }
  return scale;
}

EngineOutput Engine::run() {
  for (Rank& r : ranks_) run_host(r);
  for (std::int64_t t; (t = tree_.next_time()) != kNever;) {
    now_ = t;
    const std::uint32_t entity = tree_.next();
    if (entity >= first_host_) {
      tree_.set(entity, kNever);
      resume_host(ranks_[entity - first_host_], t);
    } else if (entity >= first_stream_) {
      const std::uint32_t stream = entity - first_stream_;
      serve_kernel(ranks_[stream / width_], stream % width_, t);
    } else {
      serve_transfer(entity, t);
    }
    if (due_now_ != nullptr) resume_due(t);
  }
  for (const Rank& r : ranks_) {
    if (r.host.wait != HostWait::kFinished || r.host.outstanding != 0) report_deadlock();
    for (const Stream& s : r.streams) {
      if (s.head < s.queue.size()) report_deadlock();
    }
  }
  finish();
  EngineOutput out;
  for (Rank& r : ranks_) {
    out.instructions += instructions_of(*r.timing->program, in_.steps);
    out.ranks.push_back(std::move(r.kept));
  }
  return out;
}

void Engine::finish() {
  for (Rank& r : ranks_) {
    for (const StepEnd& step : r.step_ends) {
      RankRecord::StepEnd end{step.begin, step.host, {r.index, Cause::kHost}};
      for (std::uint32_t s = 0; s < r.timing->streams; ++s) {
        const Reached& reached = r.reached[step.first_moment + s];
        if (reached.time > end.end) {
          end.end = reached.time;
          end.cause = reached.cause;
        }
      }
      r.kept.steps.push_back(end);
    }
  }
}

std::string Engine::describe(const Rank& r, std::uint32_t instruction) const {
  const RankProgram& program = *r.timing->program;
  std::string text = "rank " + std::to_string(in_.layout->classes[r.index].rank) +
                     ", instruction " + std::to_string(instruction);
  if (instruction >= program.instructions.size()) return text;
  const Instruction& in = program.instructions[instruction];
  text += " (" + std::string(name_of_kind(in.kind));
  if (in.kind == InstructionKind::kCollective) {
    const Collective& c = program.collectives[in.id];
    text += " " + std::string(name_of(c.kind)) + " of " + std::to_string(c.bytes.value) +
            " B over group " + in_.schedule->groups[c.group.value].name;
  } else if (in.kind == InstructionKind::kLaunch) {
    text += " " + std::string(name_of(program.launches[in.id].op));
  } else if (in.kind == InstructionKind::kWaitEvent || in.kind == InstructionKind::kSyncEvent) {
    text += (in.kind == InstructionKind::kWaitEvent ? " event " : " ") + std::to_string(in.id);
  }
  return text + ")";
}

void Engine::report_deadlock() const {
  constexpr std::size_t kMaxIssues = 16;
  IssueList issues("schedule");
  for (const Rank& r : ranks_) {
    if (issues.issues().size() >= kMaxIssues) break;
    for (std::size_t i = 0; i < r.streams.size(); ++i) {
      const Stream& s = r.streams[i];
      if (s.head >= s.queue.size()) continue;
      const Item& item = s.queue[s.head];
      std::string why = "stream " + std::to_string(i) + " waits for ever";
      if (s.state == StreamState::kBlockedOnRanks) {
        const Comm& comm =
            comms_[lane_of(r,
                           r.timing->program
                               ->collectives[r.timing->program->instructions[item.instruction].id])
                       .comm];
        for (const Rendezvous& w : comm.waiting) {
          if (w.sequence != item.value) continue;
          why += w.arrived < comm.layout->classes.size()
                     ? ": " + std::to_string(w.arrived) + " of " +
                           std::to_string(comm.layout->classes.size()) + " ranks have come to it"
                     : ": collective " + std::to_string(comm.next) +
                           " of its communicator must run before it";
        }
      }
      issues.add(describe(r, item.instruction), why, "deadlock");
    }
    if (r.host.wait != HostWait::kFinished) {
      issues.add(describe(r, r.host.pc > 0 ? r.code->acts[r.host.pc - 1].instruction : 0),
                 "the host waits for ever", "deadlock");
    }
  }
  issues.throw_if_any();
  throw InternalError("simulator: stopped before the end without a waiting rank");
}

EngineOutput run_engine(EngineInput input) { return Engine(std::move(input)).run(); }

}  // namespace foreshard::sim
