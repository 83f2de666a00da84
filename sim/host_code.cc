#include "sim/host_code.h"

#include <utility>

namespace foreshard::sim {
namespace {

class Writer {
 public:
  Writer(const ProgramTiming& timing, const CollectiveTable& collectives, HostCodeDetail detail,
         const std::vector<DriverCall>& calls)
      : program_(*timing.program), timing_(timing), collectives_(collectives), detail_(detail) {
    if (calls.empty()) return;
    calls_driver_.resize(program_.instructions.size());
    for (const DriverCall& c : calls) calls_driver_[c.at.instruction] = true;
  }

  HostCode write() {
    code_.acts.reserve(program_.instructions.size() * (detail_ == HostCodeDetail::kTimes ? 2 : 3) /
                       3);
    code_.init = write(program_.init);
    for (const Segment& s : program_.steps) code_.steps.push_back(write(s));
    return std::move(code_);
  }

 private:
  Segment write(const Segment& segment) {
    const auto begin = static_cast<std::uint32_t>(code_.acts.size());
    std::int64_t before = 0;
    for (std::uint32_t i = segment.begin; i < segment.end; ++i) {
      HostAct act = act_of(i);
      act.host += before;
      before = act.host;
      if (act.kind == InstructionKind::kMark && detail_ != HostCodeDetail::kAll &&
          i + 1 != segment.end)
        continue;
      code_.acts.push_back(act);
      before = 0;
    }
    return {begin, static_cast<std::uint32_t>(code_.acts.size())};
  }

  HostAct act_of(std::uint32_t i) const {
    const Instruction& in = program_.instructions[i];
    HostAct act{0, i, in.id, in.kind, in.stream};
    const HostCosts& costs = timing_.host;
    const auto only_time = [&](Time time) {
      act.host = time.value;
      if (detail_ == HostCodeDetail::kTimes) act.kind = InstructionKind::kMark;
    };
    switch (in.kind) {
      case InstructionKind::kAlloc:
        if (!calls_driver(i)) only_time(costs.alloc);
        if (act.kind == InstructionKind::kAlloc) act.host = 0;
        break;
      case InstructionKind::kFree:
        only_time(costs.free);
        break;
      case InstructionKind::kRecordStream:
        only_time(costs.record_stream);
        break;
      case InstructionKind::kLaunch:
        act.stream = program_.launches[in.id].stream;
        act.id = timing_.shapes->launch_shape[in.id];
        act.host = timing_.launches[act.id].host;
        break;
      case InstructionKind::kCollective:
        act.stream = program_.collectives[in.id].stream;
        act.host = collectives_[in.id].host.value;
        break;
      case InstructionKind::kCopy:
        act.stream = program_.copies[in.id].stream;
        act.host = timing_.copies[in.id].host.value;
        break;
      case InstructionKind::kRecordEvent:
        act.host = costs.record_event.value;
        break;
      case InstructionKind::kWaitEvent:
        act.host = costs.wait_event.value;
        break;
      case InstructionKind::kHost:
        act.host = timing_.host_work[in.id];
        act.kind = InstructionKind::kMark;
        break;
      case InstructionKind::kSyncEvent:
      case InstructionKind::kSyncStream:
      case InstructionKind::kSyncDevice:
      case InstructionKind::kMark:
        break;
    }
    return act;
  }

  bool calls_driver(std::uint32_t i) const { return !calls_driver_.empty() && calls_driver_[i]; }

  const RankProgram& program_;
  const ProgramTiming& timing_;
  const CollectiveTable& collectives_;
  HostCodeDetail detail_;
  std::vector<bool> calls_driver_;  ///< By instruction; empty if none does.
  HostCode code_;
};

}  // namespace

HostCode make_host_code(const ProgramTiming& timing, const CollectiveTable& collectives,
                        HostCodeDetail detail, const std::vector<DriverCall>& calls) {
  return Writer(timing, collectives, detail, calls).write();
}

}  // namespace foreshard::sim
