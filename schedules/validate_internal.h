#pragma once

// The passes of validate.cc. Each expects a schedule that has passed check_structure() and appends
// what it finds.

#include "schedules/structure.h"
#include "schedules/validate.h"

namespace foreshard::validate_internal {

/// Collects findings up to a limit.
class Findings {
 public:
  explicit Findings(std::size_t most) : most_(most) {}
  bool full() const { return list_.size() >= most_; }
  void add(ScheduleFault fault, std::string message, std::vector<ScheduleFinding::Place> places) {
    if (!full()) list_.push_back({fault, std::move(message), std::move(places)});
  }
  std::vector<ScheduleFinding> take() { return std::move(list_); }

 private:
  std::size_t most_;
  std::vector<ScheduleFinding> list_;
};

/// Lives of buffers in host order: alloc, use, free, leaks of the repeated step.
void check_lifetimes(const Schedule& schedule, std::uint32_t program, Findings& findings);
/// Events are recorded before they are waited for; reads follow writes; streams that share bytes
/// are ordered.
void check_ordering(const Schedule& schedule, std::uint32_t program, Findings& findings);
/// Members of each group issue the same collectives in the same order.
void check_collective_order(const Schedule& schedule, Findings& findings);
/// Runs all programs against each other, without time: everything must come to its end.
void check_progress(const Schedule& schedule, Findings& findings);

/// Calls `visit(tensor, is_write)` for each view that an instruction's device work touches.
template <typename Visit>
void for_each_access(const RankProgram& p, const Instruction& i, Visit visit) {
  if (!has_tensors(p)) return;
  if (i.kind == InstructionKind::kLaunch) {
    const Launch& l = p.launches[i.id];
    for (std::uint32_t o = 0; o < std::uint32_t{l.inputs} + l.outputs; ++o) {
      const TensorId t = p.operands[l.first_operand + o];
      if (t.valid()) visit(t, o >= l.inputs);
    }
  } else if (i.kind == InstructionKind::kCollective) {
    const Collective& c = p.collectives[i.id];
    if (c.input.valid()) visit(c.input, false);
    if (c.output.valid()) visit(c.output, true);
  } else if (i.kind == InstructionKind::kCopy) {
    const Copy& c = p.copies[i.id];
    if (c.source.valid()) visit(c.source, false);
    if (c.destination.valid()) visit(c.destination, true);
  }
}

/// Stream on which an instruction's device work runs.
inline StreamIndex stream_of(const RankProgram& p, const Instruction& i) {
  if (i.kind == InstructionKind::kLaunch) return p.launches[i.id].stream;
  if (i.kind == InstructionKind::kCollective) return p.collectives[i.id].stream;
  if (i.kind == InstructionKind::kCopy) return p.copies[i.id].stream;
  return i.stream;
}
inline bool is_device_work(const Instruction& i) {
  return i.kind == InstructionKind::kLaunch || i.kind == InstructionKind::kCollective ||
         i.kind == InstructionKind::kCopy;
}

}  // namespace foreshard::validate_internal
