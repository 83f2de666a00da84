#include "sim/preparation.h"

#include "schedules/requested_bytes.h"
#include "sim/prepare.h"

namespace foreshard::sim {

Preparation::Preparation(const Schedule& schedule)
    : schedule_(schedule), ready_(schedule.programs.size()), shapes_(schedule.programs.size()) {}

void Preparation::check() {
  const std::lock_guard lock(mutex_);
  if (checked_) return;
  require_schedule(schedule_);
  checked_ = true;
}

void Preparation::require(std::uint32_t program) {
  check();
  const std::lock_guard lock(mutex_);
  if (ready_[program]) return;
  shapes_[program] = find_shapes(schedule_.programs[program]);
  ready_[program] = true;
}

std::shared_ptr<const HostCode> Preparation::code(std::uint32_t program, HostCodeDetail detail,
                                                  const std::vector<DriverCall>& calls) {
  const auto make = [&] {
    return std::make_shared<const HostCode>(
        make_host_code(schedule_.programs[program], shapes_[program], detail, calls));
  };
  if (!calls.empty()) return make();
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const HostCode>& kept = code_[{program, detail}];
  if (!kept) kept = make();
  return kept;
}

/// Where to stop makes no difference where there was no reason to; levels may be there that nobody
/// asks for.
bool Preparation::Memory::answers(MemoryPassOptions asked) const {
  if (!pass) return false;
  const bool retries = pass->retries > 0, failures = !pass->ledger->failures().empty();
  const auto stops = [&](StopAt at) {
    return (at == StopAt::kRetry && retries) || (at == StopAt::kFailure && failures);
  };
  if (!stops(asked.stop_at) && !stops(options.stop_at)) asked.stop_at = options.stop_at;
  asked.levels = asked.levels || options.levels;
  return asked == options;
}

std::shared_ptr<const MemoryPass> Preparation::memory(std::uint32_t program,
                                                      const MemoryPassOptions& options) {
  std::shared_ptr<const MemoryRequests> requests;
  {
    const std::lock_guard lock(mutex_);
    Memory& m = memory_[program];
    if (m.answers(options)) return m.pass;
    if (!m.requests) m.requests = std::make_shared<MemoryRequests>(schedule_.programs[program]);
    requests = m.requests;
  }
  auto pass = std::make_shared<const MemoryPass>(run_memory(*requests, options));
  const std::lock_guard lock(mutex_);
  memory_[program].pass = pass;
  memory_[program].options = options;
  return pass;
}

std::int64_t Preparation::least_memory(std::uint32_t program, std::int32_t steps) {
  const std::lock_guard lock(mutex_);
  std::int64_t& least = least_[{program, steps}];
  if (least == 0) least = most_requested(schedule_.programs[program], steps).value;
  return least;
}

}  // namespace foreshard::sim
