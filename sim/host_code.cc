#include "sim/host_code.h"

#include <utility>

namespace foreshard::sim {
namespace {

class Writer {
 public:
  Writer(const RankProgram& program, const ProgramShapes& shapes, HostCodeDetail detail,
         const std::vector<DriverCall>& calls)
      : program_(program), shapes_(shapes), detail_(detail) {
    if (calls.empty()) return;
    calls_driver_.resize(program_.instructions.size());
    for (const DriverCall& c : calls) calls_driver_[c.at.instruction] = true;
  }

  HostCode write() {
    const std::size_t n = program_.instructions.size();
    code_.acts.reserve(detail_ == HostCodeDetail::kTimes ? n * 2 / 3 : n);
    code_.init = write(program_.init);
    for (const Segment& s : program_.steps) code_.steps.push_back(write(s));
    return std::move(code_);
  }

 private:
  Segment write(const Segment& segment) {
    const auto begin = static_cast<std::uint32_t>(code_.acts.size());
    HostAct act;
    for (std::uint32_t i = segment.begin; i < segment.end; ++i) {
      act.instruction = i;
      act.kind = InstructionKind::kMark;
      if (!only_counts(i, act)) fill(program_.instructions[i], act);
      const bool full = act.allocs == kMost || act.frees == kMost || act.record_streams == kMost;
      if (act.kind == InstructionKind::kMark && detail_ != HostCodeDetail::kAll && !full &&
          i + 1 != segment.end)
        continue;
      code_.acts.push_back(act);
      act = {};
    }
    return {begin, static_cast<std::uint32_t>(code_.acts.size())};
  }

  /// A call of the allocator that takes time and nothing else.
  bool only_counts(std::uint32_t i, HostAct& act) const {
    if (detail_ != HostCodeDetail::kTimes) return false;
    switch (program_.instructions[i].kind) {
      case InstructionKind::kAlloc:
        if (!calls_driver_.empty() && calls_driver_[i]) return false;
        ++act.allocs;
        return true;
      case InstructionKind::kFree:
        ++act.frees;
        return true;
      case InstructionKind::kRecordStream:
        ++act.record_streams;
        return true;
      default:
        return false;
    }
  }

  void fill(const Instruction& in, HostAct& act) const {
    act.kind = in.kind;
    act.stream = in.stream;
    act.id = in.id;
    if (in.kind == InstructionKind::kLaunch) {
      act.stream = program_.launches[in.id].stream;
      act.id = shapes_.launch_shape[in.id];
    } else if (in.kind == InstructionKind::kCollective) {
      act.stream = program_.collectives[in.id].stream;
    } else if (in.kind == InstructionKind::kCopy) {
      act.stream = program_.copies[in.id].stream;
    }
  }

  static constexpr std::uint16_t kMost = UINT16_MAX;

  const RankProgram& program_;
  const ProgramShapes& shapes_;
  HostCodeDetail detail_;
  std::vector<bool> calls_driver_;  ///< By instruction; empty if none does.
  HostCode code_;
};

}  // namespace

HostCode make_host_code(const RankProgram& program, const ProgramShapes& shapes,
                        HostCodeDetail detail, const std::vector<DriverCall>& calls) {
  return Writer(program, shapes, detail, calls).write();
}

}  // namespace foreshard::sim
