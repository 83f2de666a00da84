#include <algorithm>

#include "core/error.h"
#include "sim/engine_impl.h"

namespace foreshard::sim {

void Engine::run_host(Rank& r) {
  Host& h = r.host;
  const Instruction* code = r.timing->program->instructions.data();
  const HostCosts& costs = r.timing->host;
  for (;;) {
    if (h.pc == h.end) {
      if (!next_segment(r)) return;
      continue;
    }
    const Instruction in = code[h.pc];
    const std::int64_t start = h.time;
    switch (in.kind) {
      case InstructionKind::kMark:
        break;
      case InstructionKind::kAlloc:
        if (!alloc(r, in)) return;
        break;
      case InstructionKind::kFree:
        h.time += costs.free.value;
        if (r.kept.ledger) {
          r.kept.ledger->free(in.id);
          if (trace_) sample(r);
        }
        break;
      case InstructionKind::kRecordStream:
        h.time += costs.record_stream.value;
        if (r.kept.ledger) r.kept.ledger->record_stream(in.id, in.stream);
        break;
      case InstructionKind::kLaunch:
      case InstructionKind::kCollective:
      case InstructionKind::kCopy:
        if (!issue(r, in)) return;
        break;
      case InstructionKind::kRecordEvent:
        h.time += costs.record_event.value;
        r.latest[in.id] = record(r, in.stream);
        break;
      case InstructionKind::kWaitEvent:
        h.time += costs.wait_event.value;
        push(r, in.stream, {h.time, h.pc, ItemKind::kWait, recorded(r, in.id)});
        break;
      case InstructionKind::kSyncEvent:
        wait_for(r, recorded(r, in.id));
        break;
      case InstructionKind::kSyncStream:
        wait_for_streams(r, in.stream, in.stream + 1u);
        break;
      case InstructionKind::kSyncDevice:
        wait_for_streams(r, 0, r.timing->streams);
        break;
      case InstructionKind::kHost:
        h.time += r.timing->host_work[in.id];
        break;
    }
    ++instructions_;
    ++h.pc;
    if (h.wait != HostWait::kRunnable) {
      h.wait_start = start;
      return;
    }
    if (trace_) span(r, h.pc - 1, start);
  }
}

/// Claims a buffer. False if the host must wait first: for the device to reach its present time, or
/// to come to rest.
bool Engine::alloc(Rank& r, const Instruction& in) {
  Host& h = r.host;
  MemoryLedger* ledger = r.kept.ledger.get();
  if (!ledger) {
    h.time += r.timing->host.alloc.value;
    return true;
  }
  if (ledger->pending() && !h.at_present && now_ < h.time) {
    h.wait = HostWait::kDevicePresent;
    tree_.set(host_entity(r), h.time);
    return false;
  }
  const std::int64_t allocs = ledger->device_allocs(), frees = ledger->device_frees();
  const Moment moment{h.step, h.pc};
  if (h.retry) {
    h.retry = false;
    ledger->retry(in.id, moment);
  } else if (ledger->alloc(in.id, moment) == MemoryLedger::Outcome::kNeedsRetry) {
    h.retry = true;
    wait_for_streams(r, 0, r.timing->streams);
    return false;
  }
  h.at_present = false;
  h.time += r.timing->host.alloc.value;
  const std::int64_t driver =
      (ledger->device_allocs() - allocs) * r.timing->host.segment_alloc.value +
      (ledger->device_frees() - frees) * r.timing->host.segment_free.value;
  if (driver > 0) {
    if (r.record) {
      r.kept.blocks.push_back(
          {HostBlock::Kind::kAllocator, h.time, h.time + driver, h.pc, {r.index, Cause::kHost}});
    }
    h.time += driver;
  }
  if (trace_) sample(r);
  return true;
}

/// Issues device work. False if the launch queue is full.
bool Engine::issue(Rank& r, const Instruction& in) {
  Host& h = r.host;
  const ProgramTiming& timing = *r.timing;
  const RankProgram& program = *timing.program;
  Item item{0, h.pc, ItemKind::kLaunch, in.id};
  std::uint32_t stream = 0;
  std::int64_t cost = 0;
  if (in.kind == InstructionKind::kLaunch) {
    stream = program.launches[in.id].stream;
    cost = timing.launches[in.id].host;
  } else if (in.kind == InstructionKind::kCopy) {
    item.kind = ItemKind::kCopy;
    stream = program.copies[in.id].stream;
    cost = timing.copies[in.id].host.value;
  } else {
    item.kind = ItemKind::kCollective;
    stream = program.collectives[in.id].stream;
    cost = (*r.collectives)[in.id].host.value;
  }
  if (!h.charged) h.time += cost;
  h.charged = false;
  if (h.outstanding >= timing.host.launch_queue) {
    h.charged = true;
    h.wait = HostWait::kQueueFull;
    h.wait_kind = HostBlock::Kind::kQueueFull;
    return false;
  }
  ++h.outstanding;
  item.issued = h.time;
  if (item.kind == ItemKind::kCollective) {
    item.value = r.sequence[lane_of(r, program.collectives[in.id]).slot]++ & Item::kMaxValue;
  }
  push(r, stream, item);
  if (in.kind == InstructionKind::kCopy && program.copies[in.id].blocks_host)
    wait_for_streams(r, stream, stream + 1);
  return true;
}

/// A new moment: when `stream` has done everything issued to it so far.
std::uint32_t Engine::record(Rank& r, std::uint32_t stream, ItemKind kind) {
  const auto moment = static_cast<std::uint32_t>(r.reached.size());
  r.reached.emplace_back();
  push(r, stream, {r.host.time, r.host.pc, kind, moment});
  return moment;
}

std::uint32_t Engine::recorded(const Rank& r, std::uint32_t event) const {
  const std::uint32_t moment = r.latest[event];
  if (moment == kNone) {
    throw InputError(Issue{"schedule", describe(r, r.host.pc),
                           "waits for an event that was never recorded",
                           "record it earlier in the program"});
  }
  return moment;
}

void Engine::wait_for(Rank& r, std::uint32_t moment) {
  Host& h = r.host;
  h.moments.assign(1, moment);
  h.waited = 0;
  h.wake = h.time;
  h.wake_cause = {r.index, Cause::kHost};
  h.wait = HostWait::kMoments;
  h.wait_kind = HostBlock::Kind::kWait;
  check_host(r);
}

void Engine::wait_for_streams(Rank& r, std::uint32_t first, std::uint32_t end, ItemKind kind) {
  Host& h = r.host;
  h.moments.clear();
  for (std::uint32_t s = first; s < end; ++s) h.moments.push_back(record(r, s, kind));
  h.waited = 0;
  h.wake = h.time;
  h.wake_cause = {r.index, Cause::kHost};
  h.wait = HostWait::kMoments;
  h.wait_kind = HostBlock::Kind::kWait;
  check_host(r);
}

/// Sets the time at which a waiting host goes on, once it is known.
void Engine::check_host(Rank& r) {
  Host& h = r.host;
  if (h.wait == HostWait::kMoments) {
    while (h.waited < h.moments.size()) {
      const Reached& reached = r.reached[h.moments[h.waited]];
      if (reached.time == kNever) return;
      if (reached.time > h.wake) {
        h.wake = reached.time;
        h.wake_cause = reached.cause;
      }
      ++h.waited;
    }
    tree_.set(host_entity(r), h.wake);
  } else if (h.wait == HostWait::kQueueFull && h.outstanding < r.timing->host.launch_queue) {
    if (tree_.time(host_entity(r)) == kNever) tree_.set(host_entity(r), std::max(h.time, now_));
  }
}

void Engine::resume_host(Rank& r, std::int64_t t) {
  Host& h = r.host;
  tree_.set(host_entity(r), kNever);
  if (h.wait == HostWait::kDevicePresent) {
    h.at_present = true;
  } else {
    if (r.record && t > h.time) {
      const std::uint32_t instruction =
          h.wait == HostWait::kMoments && h.pc > 0 && !h.retry ? h.pc - 1 : h.pc;
      r.kept.blocks.push_back({h.wait_kind, h.time, t, instruction, h.wake_cause});
    }
    h.time = std::max(h.time, t);
    if (h.wait == HostWait::kMoments) {
      h.time += r.timing->host.sync.value;
      if (trace_ && !h.retry && h.pc > 0) span(r, h.pc - 1, h.wait_start);
    }
  }
  h.wait = HostWait::kRunnable;
  run_host(r);
}

/// Goes on to the next segment: init, the steps as written, the last step again. False if the host
/// must wait or is done.
bool Engine::next_segment(Rank& r) {
  Host& h = r.host;
  const RankProgram& program = *r.timing->program;
  if (h.segment > 0) {
    end_step(r);
  } else if (h.segment == 0 && h.step == -1) {
    h.step = 0;  // the first step starts from rest
    wait_for_streams(r, 0, r.timing->streams, ItemKind::kStepEnd);
    return false;
  }
  ++h.segment;
  if (h.segment > in_.steps) {
    h.wait = HostWait::kFinished;
    return false;
  }
  if (h.segment == 0) {
    h.pc = program.init.begin;
    h.end = program.init.end;
    return true;
  }
  const auto step = static_cast<std::int16_t>(h.segment - 1);
  const auto last = static_cast<std::int32_t>(program.steps.size()) - 1;
  const Segment& segment =
      program.steps[static_cast<std::size_t>(std::min<std::int32_t>(step, last))];
  if (step > last && r.kept.ledger) r.kept.ledger->carry();
  if (step == 0) r.kept.origin = h.time;
  h.step = step;
  h.pc = segment.begin;
  h.end = segment.end;
  r.step_ends.push_back({h.time, 0, 0});
  if (r.kept.ledger) r.kept.ledger->begin_step();
  return true;
}

void Engine::end_step(Rank& r) {
  Host& h = r.host;
  StepEnd& end = r.step_ends.back();
  end.host = h.time;
  end.first_moment = static_cast<std::uint32_t>(r.reached.size());
  for (std::uint32_t s = 0; s < r.timing->streams; ++s) record(r, s, ItemKind::kStepEnd);
  if (r.kept.ledger) {
    r.kept.step_memory.push_back(
        r.kept.ledger->end_step(in_.layout->classes[r.index].rank, h.step));
  }
}

void Engine::span(Rank& r, std::uint32_t instruction, std::int64_t start) {
  const Host& h = r.host;
  if (h.step < 0 || !r.record) return;
  Span s;
  s.rank = static_cast<std::int32_t>(in_.layout->classes[r.index].rank);
  s.lane = Lane::kHost;
  s.instruction = instruction;
  s.step = h.step;
  s.start = Time(start);
  s.end = Time(h.time);
  r.kept.host_spans.push_back(s);
}

void Engine::sample(Rank& r) {
  const Host& h = r.host;
  if (!r.record) return;
  const AllocatorStats& stats = r.kept.ledger->stats();
  MemorySample m;
  m.rank = static_cast<std::int32_t>(in_.layout->classes[r.index].rank);
  m.instruction = h.pc;
  m.step = h.step;
  m.at = Time(h.time);
  m.allocated = Bytes(stats.allocated.current);
  m.reserved = Bytes(stats.reserved.current);
  m.active = Bytes(stats.active.current);
  r.kept.memory.push_back(m);
}

}  // namespace foreshard::sim
