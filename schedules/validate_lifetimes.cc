#include <fmt/format.h>

#include <algorithm>

#include "schedules/text.h"
#include "schedules/validate_internal.h"

namespace foreshard::validate_internal {
namespace {

/// Follows the buffers of one program in host order.
class LifetimeChecker {
 public:
  LifetimeChecker(const Schedule& schedule, std::uint32_t program, Findings& findings)
      : p_(schedule.programs[program]),
        program_(program),
        findings_(findings),
        lives_(p_.buffers.size()) {}

  void run() {
    const bool repeats =
        p_.steps.size() >= 2;  // Only then is the last step known to be the steady state.
    const std::uint32_t last_begin = repeats ? p_.steps.back().begin : UINT32_MAX;
    const std::uint32_t last_end = repeats ? p_.steps.back().end : UINT32_MAX;
    for (std::uint32_t i = 0; i < p_.instructions.size() && !findings_.full(); ++i) {
      if (i == last_begin) live_at_begin_ = live_now();
      step(i);
      if (i + 1 == last_end) check_leaks();
    }
  }

 private:
  enum class State : std::uint8_t { kNever, kLive, kFreed };
  struct Life {
    State state = State::kNever;
    std::uint32_t since = 0;  ///< Instruction of the last alloc or free.
    bool reported = false;    ///< Each fault is reported once.
  };

  std::vector<ScheduleFinding::Place> places(std::initializer_list<std::uint32_t> list) const {
    std::vector<ScheduleFinding::Place> out;
    for (const std::uint32_t i : list) out.push_back({program_, i});
    return out;
  }

  void step(std::uint32_t at) {
    const Instruction& i = p_.instructions[at];
    switch (i.kind) {
      case InstructionKind::kAlloc:
        return alloc(i.id, at);
      case InstructionKind::kFree:
        return free(i.id, at);
      case InstructionKind::kRecordStream:
        return use(BufferId(i.id), at);
      default:
        break;
    }
    for_each_access(p_, i, [&](TensorId t, bool) {
      const BufferId buffer = p_.tensors[t.value].buffer;
      if (buffer.valid()) use(buffer, at);
    });
  }

  void alloc(std::uint32_t b, std::uint32_t at) {
    Life& life = lives_[b];
    if (life.state == State::kLive)
      findings_.add(ScheduleFault::kDoubleAlloc,
                    describe_buffer(p_, BufferId(b)) + " is claimed while it is live",
                    places({life.since, at}));
    life = {State::kLive, at, false};
  }

  void free(std::uint32_t b, std::uint32_t at) {
    Life& life = lives_[b];
    if (life.state == State::kNever)
      findings_.add(ScheduleFault::kUseBeforeAlloc,
                    describe_buffer(p_, BufferId(b)) + " is freed but was never claimed",
                    places({at}));
    if (life.state == State::kFreed)
      findings_.add(ScheduleFault::kDoubleFree,
                    describe_buffer(p_, BufferId(b)) + " is freed twice", places({life.since, at}));
    life = {State::kFreed, at, false};
  }

  void use(BufferId b, std::uint32_t at) {
    Life& life = lives_[b.value];
    if (life.state == State::kLive || life.reported) return;
    life.reported = true;
    if (life.state == State::kNever)
      findings_.add(ScheduleFault::kUseBeforeAlloc,
                    describe_buffer(p_, b) + " is used but was never claimed", places({at}));
    else
      findings_.add(ScheduleFault::kUseAfterFree,
                    describe_buffer(p_, b) + " is used after it was freed",
                    places({life.since, at}));
  }

  std::vector<std::uint32_t> live_now() const {
    std::vector<std::uint32_t> out;
    for (std::uint32_t b = 0; b < lives_.size(); ++b)
      if (lives_[b].state == State::kLive) out.push_back(b);
    return out;
  }

  /// Buffers live at the end of the repeated step must be live at its start too, or take the place
  /// of one that was.
  void check_leaks() {
    std::vector<bool> expected(p_.buffers.size(), false);
    for (const std::uint32_t b : live_at_begin_) expected[b] = true;
    for (const Carry& c : p_.carries) expected[c.now.value] = true;
    for (const std::uint32_t b : live_now()) {
      if (!expected[b] && !findings_.full())
        findings_.add(ScheduleFault::kLeak,
                      describe_buffer(p_, BufferId(b)) +
                          " is claimed in the repeated step and never returned",
                      places({lives_[b].since}));
    }
  }

  const RankProgram& p_;
  std::uint32_t program_;
  Findings& findings_;
  std::vector<Life> lives_;
  std::vector<std::uint32_t> live_at_begin_;
};

}  // namespace

void check_lifetimes(const Schedule& schedule, std::uint32_t program, Findings& findings) {
  LifetimeChecker(schedule, program, findings).run();
}

}  // namespace foreshard::validate_internal
