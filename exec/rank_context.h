#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "exec/run.h"
#include "schedules/schedule.h"

namespace foreshard {

/// Values handed over by `observe`, by step. Filled by stream workers, hence locked.
class Observations {
 public:
  enum class What : std::uint8_t { kLoss = 0, kGradientNorm = 1 };

  void add(What what, std::int32_t step, double value) {
    const std::scoped_lock lock(mutex_);
    auto& list = values_[static_cast<std::size_t>(what)];
    if (list.size() <= static_cast<std::size_t>(step))
      list.resize(static_cast<std::size_t>(step) + 1);
    Entry& e = list[static_cast<std::size_t>(step)];
    e.value = what == What::kLoss ? e.value + value : value;
    e.seen = true;
  }
  /// True and the value if the step observed it.
  bool get(What what, std::int32_t step, double* value) const {
    const std::scoped_lock lock(mutex_);
    const auto& list = values_[static_cast<std::size_t>(what)];
    if (static_cast<std::size_t>(step) >= list.size() || !list[static_cast<std::size_t>(step)].seen)
      return false;
    *value = list[static_cast<std::size_t>(step)].value;
    return true;
  }

 private:
  struct Entry {
    double value = 0;
    bool seen = false;
  };
  mutable std::mutex mutex_;
  std::vector<Entry> values_[2];
};

/// What kernels may know besides their operands. Lives as long as the run.
struct RankContext {
  std::int64_t rank = 0;
  const Schedule* schedule = nullptr;
  const RankProgram* program = nullptr;
  const RunOptions* options = nullptr;
  Observations* observations = nullptr;
};

}  // namespace foreshard
