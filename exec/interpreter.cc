#include "exec/interpreter.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"

namespace foreshard {
namespace {

/// The host thread runs ahead of its nominal time by at most this much wall-clock time; less is not
/// worth a sleep.
constexpr Time kHostLead = microseconds(200);

RankContext make_context(const RunShared& shared, std::int64_t rank, Observations& observations) {
  return {rank, &shared.schedule, &shared.schedule.program_for(rank), &shared.options,
          &observations};
}

std::uint32_t program_index(const Schedule& s, std::int64_t rank) {
  return s.program_of_rank[s.program_of_rank.size() == 1 ? 0 : static_cast<std::size_t>(rank)];
}

/// The answers for a rank: its own, or those of a rank with the same program.
const std::vector<std::vector<bool>>* answers_for(const RunShared& shared, std::int64_t rank) {
  const Schedule& s = shared.schedule;
  const std::vector<std::vector<bool>>* same_program = nullptr;
  for (const ReuseAnswers& a : shared.options.reuse) {
    if (a.rank == rank) return &a.segments;
    if (program_index(s, a.rank) == program_index(s, rank)) same_program = &a.segments;
  }
  return same_program;
}

}  // namespace

Interpreter::Interpreter(const RunShared& shared, std::int64_t rank, Backend& backend)
    : shared_(shared),
      backend_(backend),
      context_(make_context(shared, rank, observations_)),
      program_(*context_.program),
      progress_(*backend.memory().progress, answers_for(shared, rank)),
      memory_(shared.schedule, program_, rank, {backend.memory().segments, &progress_},
              shared.options.allocator, shared.options.checked) {
  if (!shared.options.emulate) return;
  const std::uint32_t p = program_index(shared.schedule, rank);
  if (!shared.options.emulate->host.empty()) host_times_ = &shared.options.emulate->host[p];
  if (!shared.options.emulate->device.empty()) device_times_ = &shared.options.emulate->device[p];
}

void Interpreter::run_init() {
  step_ = -1;
  progress_.begin_segment(0);
  run_segment(program_.init, -1);
  backend_.synchronize({});
  if (AccessCheck* order = memory_.order()) order->sync_device();
  backend_.restart_clock();
  host_nominal_ = Time(0);
}

void Interpreter::run_step(std::int32_t step) {
  const auto planned = static_cast<std::int32_t>(program_.steps.size());
  if (step >= planned) memory_.carry_over(program_.carries);
  step_ = step;
  progress_.begin_segment(static_cast<std::size_t>(step) + 1);
  memory_.reset_peaks();
  const std::int64_t retries = memory_.stats().retries;
  StepTime time{static_cast<std::int32_t>(context_.rank), step, shared_.clock.now(), Time(0)};
  run_segment(program_.steps[static_cast<std::size_t>(std::min(step, planned - 1))], step);
  backend_.end_step();
  time.end = shared_.clock.now();
  step_times.push_back(time);
  const AllocatorStats& stats = memory_.stats();
  step_memory.push_back({time.rank, step, Bytes(stats.allocated.peak), Bytes(stats.reserved.peak),
                         Bytes(stats.active.peak), stats.retries - retries, false});
}

void Interpreter::run_segment(Segment segment, std::int32_t step) {
  for (instruction_ = segment.begin; instruction_ < segment.end; ++instruction_) {
    shared_.control.throw_if_failed();
    shared_.control.tick();
    position_.store(instruction_, std::memory_order_relaxed);
    inject_faults();
    memory_.at_instruction(instruction_);
    const Instruction& instruction = program_.instructions[instruction_];
    const Time start = shared_.clock.now();
    advance_host();
    execute(instruction);
    if (step < 0 || !shared_.options.record_spans || instruction.kind == InstructionKind::kMark)
      continue;
    spans.push_back({static_cast<std::int32_t>(context_.rank), Lane::kHost, instruction.stream,
                     instruction_, step, start, shared_.clock.now()});
  }
}

void Interpreter::execute(const Instruction& i) {
  AccessCheck* order = memory_.order();
  switch (i.kind) {
    case InstructionKind::kAlloc:
      memory_.allocate(BufferId(i.id));
      return sample_memory();
    case InstructionKind::kFree:
      memory_.free(BufferId(i.id));
      return sample_memory();
    case InstructionKind::kRecordStream:
      return memory_.record_stream(BufferId(i.id), i.stream);
    case InstructionKind::kLaunch:
      return launch(program_.launches.at(i.id));
    case InstructionKind::kCollective:
      return collective(program_.collectives.at(i.id));
    case InstructionKind::kCopy:
      return copy(program_.copies.at(i.id));
    case InstructionKind::kRecordEvent:
      if (order) order->record_event(EventId(i.id), i.stream);
      return backend_.record(EventId(i.id), i.stream, host_nominal_);
    case InstructionKind::kWaitEvent:
      if (order) order->wait_event(EventId(i.id), i.stream);
      return backend_.wait(EventId(i.id), i.stream);
    case InstructionKind::kSyncEvent:
      return synchronize({SyncTarget::Kind::kEvent, EventId(i.id), 0});
    case InstructionKind::kSyncStream:
      return synchronize({SyncTarget::Kind::kStream, EventId(), i.stream});
    case InstructionKind::kSyncDevice:
      return synchronize({});
    case InstructionKind::kHost:
    case InstructionKind::kMark:
      return;
  }
}

void Interpreter::launch(const Launch& l) {
  KernelCall call;
  call.op = l.op;
  call.origin = origin();
  call.context = &context_;
  call.attributes = std::span(program_.attributes).subspan(l.first_attribute, l.attributes);
  for (std::uint32_t k = 0; k < l.inputs; ++k) {
    call.inputs.push_back(memory_.view(program_.operands.at(l.first_operand + k)));
  }
  for (std::uint32_t k = 0; k < l.outputs; ++k) {
    call.outputs.push_back(memory_.view(program_.operands.at(l.first_operand + l.inputs + k)));
  }
  memory_.check_work(l.stream, call.inputs, call.outputs);
  backend_.submit(l.stream, std::move(call), nominal());
}

void Interpreter::collective(const Collective& c) {
  const Group& group = shared_.schedule.groups.at(c.group.value);
  CollectiveCall call;
  call.kind = c.kind;
  call.op = c.op;
  call.dtype = c.dtype;
  call.origin = origin();
  call.group = c.group;
  call.first_rank = group.first_of(context_.rank);
  call.stride = group.stride;
  call.size = group.size;
  call.index = group.index_of(context_.rank);
  call.input = memory_.view(c.input);
  call.output = memory_.view(c.output);
  call.factor = c.factor;
  call.root = c.root;
  call.duration = nominal().duration;
  if (c.kind == CollectiveKind::kSendReceive) {
    if (call.input.present)
      call.sequence = sequences_[{c.group.value, 1 + call.index * call.size + c.root}]++;
    if (call.output.present)
      call.receive_sequence = sequences_[{c.group.value, 1 + c.root * call.size + call.index}]++;
  } else {
    call.sequence = sequences_[{c.group.value, 0}]++;
  }
  memory_.check_work(c.stream, {call.input}, {call.output});
  backend_.submit(c.stream, std::move(call), nominal());
}

void Interpreter::copy(const Copy& c) {
  CopyCall call;
  call.origin = origin();
  call.source = memory_.view(c.source);
  call.destination = memory_.view(c.destination);
  call.input = c.input;
  call.micro_batch = c.micro_batch;
  call.context = &context_;
  memory_.check_work(c.stream, {call.source}, {call.destination});
  backend_.submit(c.stream, std::move(call), nominal());
  if (c.blocks_host) synchronize({SyncTarget::Kind::kStream, EventId(), c.stream});
}

void Interpreter::synchronize(const SyncTarget& target) {
  host_nominal_ = std::max(host_nominal_, backend_.synchronize(target));
  AccessCheck* order = memory_.order();
  if (!order) return;
  switch (target.kind) {
    case SyncTarget::Kind::kEvent:
      return order->sync_event(target.event);
    case SyncTarget::Kind::kStream:
      return order->sync_stream(target.stream);
    case SyncTarget::Kind::kDevice:
      return order->sync_device();
  }
}

void Interpreter::sample_memory() {
  if (step_ < 0) return;
  const AllocatorStats& stats = memory_.stats();
  memory_samples.push_back({static_cast<std::int32_t>(context_.rank), instruction_, step_,
                            shared_.clock.now(), Bytes(stats.allocated.current),
                            Bytes(stats.reserved.current), Bytes(stats.active.current)});
}

void Interpreter::inject_faults() {
  for (const Fault& f : shared_.options.faults) {
    if (f.rank != context_.rank || f.step != step_ || f.instruction != instruction_) continue;
    if (f.kind == Fault::Kind::kDie) {
      throw RunError(fmt::format("rank {} instruction {}: died (injected fault)", context_.rank,
                                 instruction_));
    }
    for (;;) {
      shared_.control.throw_if_failed();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
}

void Interpreter::advance_host() {
  if (!host_times_ || step_ < 0) return;
  host_nominal_ += (*host_times_)[instruction_];
  const Time ahead = host_nominal_ - shared_.clock.now();
  if (ahead > shared_.clock.from_wall(kHostLead))
    shared_.control.sleep_until(shared_.clock.wall(host_nominal_));
}

NominalTime Interpreter::nominal() const {
  return {host_nominal_, device_times_ && step_ >= 0 ? (*device_times_)[instruction_] : Time(0)};
}

}  // namespace foreshard
