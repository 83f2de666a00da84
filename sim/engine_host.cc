#include <algorithm>
#include <utility>

#include "core/error.h"
#include "sim/engine_impl.h"

namespace foreshard::sim {

void Engine::Item::refuse_value() {
  throw InputError(Issue{"", "steps", "the simulation has more events than it can number",
                         "fewer steps or micro-batches"});
}

void Engine::run_host(Rank& r) {
  Host& h = r.host;
  const HostAct* code = r.code->acts.data();
  for (;;) {
    if (h.pc == h.end) {
      if (!next_segment(r)) return;
      continue;
    }
    const HostAct& act = code[h.pc];
    const std::int64_t start = h.time;
    if (!h.charged) h.time += host_time(r, act);
    h.charged = true;  // until it is done: an act that must wait is tried again
    switch (act.kind) {
      case InstructionKind::kMark:
      case InstructionKind::kHost:
        break;
      case InstructionKind::kAlloc:
        if (!alloc(r, act)) return;
        break;
      case InstructionKind::kFree:
        if (r.kept.ledger) r.kept.ledger->free(act.id);
        if (trace_) sample(r, act);
        break;
      case InstructionKind::kRecordStream:
        if (r.kept.ledger) r.kept.ledger->record_stream(act.id, act.stream);
        break;
      case InstructionKind::kLaunch:
      case InstructionKind::kCollective:
      case InstructionKind::kCopy:
        if (!issue(r, act)) return;
        break;
      case InstructionKind::kRecordEvent:
        r.latest[act.id] = record(r, act.stream);
        break;
      case InstructionKind::kWaitEvent:
        push(r, act.stream, {h.time, act.instruction, ItemKind::kWait, recorded(r, act.id)});
        break;
      case InstructionKind::kSyncEvent:
        wait_for(r, recorded(r, act.id));
        break;
      case InstructionKind::kSyncStream:
        wait_for_streams(r, act.stream, act.stream + 1u);
        break;
      case InstructionKind::kSyncDevice:
        wait_for_streams(r, 0, r.timing->streams);
        break;
    }
    h.charged = false;
    ++h.pc;
    if (h.wait != HostWait::kRunnable) {
      h.wait_start = start;
      return;
    }
    if (trace_) span(r, act.instruction, start);
  }
}

/// Of the thread until the act is issued; an allocation pays for itself when it is done.
std::int64_t Engine::host_time(const Rank& r, const HostAct& act) const {
  const HostCosts& costs = r.timing->host;
  std::int64_t time = act.allocs * costs.alloc.value + act.frees * costs.free.value +
                      act.record_streams * costs.record_stream.value;
  switch (act.kind) {
    case InstructionKind::kLaunch:
      return time + r.timing->launches[act.id].host;
    case InstructionKind::kCollective:
      return time + (*r.collectives)[act.id].host.value;
    case InstructionKind::kCopy:
      return time + r.timing->copies[act.id].host.value;
    case InstructionKind::kRecordEvent:
      return time + costs.record_event.value;
    case InstructionKind::kWaitEvent:
      return time + costs.wait_event.value;
    case InstructionKind::kHost:
      return time + r.timing->host_work[act.id];
    case InstructionKind::kFree:
      return time + costs.free.value;
    case InstructionKind::kRecordStream:
      return time + costs.record_stream.value;
    case InstructionKind::kAlloc:
    case InstructionKind::kSyncEvent:
    case InstructionKind::kSyncStream:
    case InstructionKind::kSyncDevice:
    case InstructionKind::kMark:
      break;
  }
  return time;
}

/// The instruction that the host is at; one past the last at the end of a segment.
std::uint32_t Engine::here(const Rank& r) const {
  const Host& h = r.host;
  if (h.pc < h.end) return r.code->acts[h.pc].instruction;
  return h.pc > 0 ? r.code->acts[h.pc - 1].instruction + 1 : 0;
}

/// Claims a buffer. False if the host must wait first: for the device to reach its present time, or
/// to come to rest.
bool Engine::alloc(Rank& r, const HostAct& act) {
  Host& h = r.host;
  MemoryLedger* ledger = r.kept.ledger.get();
  if (!ledger) return alloc_known(r, act);
  if (ledger->pending() && !h.at_present && now_ < h.time) {
    h.wait = HostWait::kDevicePresent;
    wake_host(r, h.time);
    return false;
  }
  const std::int64_t allocs = ledger->device_allocs(), frees = ledger->device_frees();
  const Moment moment{h.step, act.instruction};
  if (h.retry) {
    h.retry = false;
    ledger->retry(act.id, moment);
  } else if (ledger->alloc(act.id, moment) == MemoryLedger::Outcome::kNeedsRetry) {
    h.retry = true;
    wait_for_streams(r, 0, r.timing->streams);
    return false;
  }
  h.at_present = false;
  pay_driver(r, act, ledger->device_allocs() - allocs, ledger->device_frees() - frees);
  if (trace_) sample(r, act);
  return true;
}

/// The same where a memory pass has found what the allocator does, or nobody asks.
bool Engine::alloc_known(Rank& r, const HostAct& act) {
  Host& h = r.host;
  const Moment moment{h.step, act.instruction};
  if (r.driver_calls.empty() || r.driver_calls.front().at != moment) {
    h.time += r.timing->host.alloc.value;
    if (trace_) sample(r, act);
    return true;
  }
  const DriverCall& call = r.driver_calls.front();
  if (call.retry && !h.retry) {
    h.retry = true;
    wait_for_streams(r, 0, r.timing->streams);
    return false;
  }
  h.retry = false;
  r.driver_calls = r.driver_calls.subspan(1);
  pay_driver(r, act, call.allocs, call.frees);
  if (trace_) sample(r, act);
  return true;
}

void Engine::pay_driver(Rank& r, const HostAct& act, std::int64_t allocs, std::int64_t frees) {
  Host& h = r.host;
  const HostCosts& costs = r.timing->host;
  h.time += costs.alloc.value;
  const std::int64_t driver = allocs * costs.segment_alloc.value + frees * costs.segment_free.value;
  if (driver <= 0) return;
  if (r.record) {
    r.kept.blocks.push_back({HostBlock::Kind::kAllocator,
                             h.time,
                             h.time + driver,
                             act.instruction,
                             {r.index, Cause::kHost}});
  }
  h.time += driver;
}

/// Issues device work. False if the launch queue is full.
bool Engine::issue(Rank& r, const HostAct& act) {
  Host& h = r.host;
  if (h.outstanding >= r.timing->host.launch_queue) {
    h.wait = HostWait::kQueueFull;
    h.wait_kind = HostBlock::Kind::kQueueFull;
    return false;
  }
  ++h.outstanding;
  if (act.kind == InstructionKind::kLaunch) {
    push(r, act.stream, {h.time, act.instruction, ItemKind::kLaunch, act.id});
  } else if (act.kind == InstructionKind::kCollective) {
    const Collective& collective = r.timing->program->collectives[act.id];
    const std::uint32_t number = r.sequence[lane_of(r, collective).slot]++;
    push(r, act.stream, {h.time, act.instruction, ItemKind::kCollective, number});
  } else {
    push(r, act.stream, {h.time, act.instruction, ItemKind::kCopy, act.id});
    if (r.timing->program->copies[act.id].blocks_host)
      wait_for_streams(r, act.stream, act.stream + 1u);
  }
  return true;
}

/// A new moment: when `stream` has done everything issued to it so far.
std::uint32_t Engine::record(Rank& r, std::uint32_t stream, ItemKind kind) {
  const auto moment = static_cast<std::uint32_t>(r.reached.size());
  r.reached.emplace_back();
  push(r, stream, {r.host.time, here(r), kind, moment});
  return moment;
}

std::uint32_t Engine::recorded(const Rank& r, std::uint32_t event) const {
  const std::uint32_t moment = r.latest[event];
  if (moment == kNone) {
    throw InputError(Issue{"schedule", describe(r, here(r)),
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
    wake_host(r, h.wake);
  } else if (h.wait == HostWait::kQueueFull && h.outstanding < r.timing->host.launch_queue) {
    if (!h.due) wake_host(r, std::max(h.time, now_));
  }
}

void Engine::wake_host(Rank& r, std::int64_t t) {
  r.host.due = true;
  if (t == now_ && due_now_ == nullptr && r.host.wait == HostWait::kQueueFull) {
    due_now_ = &r;
  } else {
    tree_.set(host_entity(r), t);
  }
}

/// Lets the host in due_now_ go on, without a detour through the tree unless more happens now.
void Engine::resume_due(std::int64_t t) {
  while (due_now_ != nullptr && tree_.next_time() > t) {
    Rank& r = *std::exchange(due_now_, nullptr);
    resume_host(r, t);
  }
  if (due_now_ != nullptr) tree_.set(host_entity(*std::exchange(due_now_, nullptr)), t);
}

void Engine::resume_host(Rank& r, std::int64_t t) {
  Host& h = r.host;
  h.due = false;
  if (h.wait == HostWait::kDevicePresent) {
    h.at_present = true;
  } else {
    if (r.record && t > h.time) {
      const bool before = h.wait == HostWait::kMoments && h.pc > 0 && !h.retry;
      const std::uint32_t instruction = before ? r.code->acts[h.pc - 1].instruction : here(r);
      r.kept.blocks.push_back({h.wait_kind, h.time, t, instruction, h.wake_cause});
    }
    h.time = std::max(h.time, t);
    if (h.wait == HostWait::kMoments) {
      h.time += r.timing->host.sync.value;
      if (trace_ && !h.retry && h.pc > 0) span(r, r.code->acts[h.pc - 1].instruction, h.wait_start);
    }
  }
  h.wait = HostWait::kRunnable;
  run_host(r);
}

/// Goes on to the next segment: init, the steps as written, the last step again. False if the host
/// must wait or is done.
bool Engine::next_segment(Rank& r) {
  Host& h = r.host;
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
  if (trace_ && r.memory != nullptr)
    r.level = r.memory->first_level[static_cast<std::size_t>(h.segment)];
  if (h.segment == 0) {
    h.pc = r.code->init.begin;
    h.end = r.code->init.end;
    return true;
  }
  const auto step = static_cast<std::int16_t>(h.segment - 1);
  const auto last = static_cast<std::int32_t>(r.code->steps.size()) - 1;
  const Segment& segment =
      r.code->steps[static_cast<std::size_t>(std::min<std::int32_t>(step, last))];
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
    r.kept.retries = r.kept.ledger->retries();
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

MemoryLevel Engine::next_level(Rank& r) const {
  if (r.memory != nullptr) return r.memory->levels[r.level++];
  const AllocatorStats& s = r.kept.ledger->stats();
  return {s.allocated.current, s.reserved.current, s.active.current};
}

/// Keeps what the rank holds after an alloc or free.
void Engine::sample(Rank& r, const HostAct& act) {
  const Host& h = r.host;
  if (!r.record || (r.memory == nullptr && !r.kept.ledger)) return;
  const MemoryLevel level = next_level(r);
  MemorySample m;
  m.rank = static_cast<std::int32_t>(in_.layout->classes[r.index].rank);
  m.instruction = act.instruction;
  m.step = h.step;
  m.at = Time(h.time);
  m.allocated = Bytes(level.allocated);
  m.reserved = Bytes(level.reserved);
  m.active = Bytes(level.active);
  r.kept.memory.push_back(m);
}

}  // namespace foreshard::sim
