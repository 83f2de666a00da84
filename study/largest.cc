#include "study/largest.h"

#include <algorithm>
#include <utility>

#include "core/integers.h"
#include "study/headroom.h"

namespace foreshard {
namespace {

constexpr std::int64_t kMostSequences = 1 << 16, kMostTokens = 1 << 22, kTokenStep = 128;

/// Values by index: 1 .. `last` times the granularity, the model's limit instead of what exceeds
/// it.
struct Range {
  std::int64_t granularity = 1, most = kMostSequences, first = 1;
  std::int64_t last() const { return ceil_div(most, granularity); }
  std::int64_t value(std::int64_t i) const { return std::min(i * granularity, most); }
};

Range range_of(const Job& job, LargestOf what) {
  if (what == LargestOf::kMicroBatch) return {1, kMostSequences};
  const std::int64_t positions = job.model->longest_sequence;
  return {kTokenStep, positions > 0 ? std::min(positions, kMostTokens) : kMostTokens,
          std::max<std::int64_t>(1, ceil_div(job.model->shortest_sequence, kTokenStep))};
}

}  // namespace

Job with_value(const Job& job, LargestOf what, std::int64_t value) {
  Job out = job;
  (what == LargestOf::kMicroBatch ? out.config.micro_batch : out.config.sequence) = value;
  return out;
}

LargestResult largest(const Job& job, LargestOf what, const SimulationOptions& options) {
  const Range range = range_of(job, what);
  LargestResult out;
  out.granularity = range.granularity;
  out.smallest = range.value(range.first);
  const auto fits = [&](std::int64_t i) {
    Evaluation e = evaluate(with_value(job, what, range.value(i)), options);
    const MemoryResult& m = e.result.memory;
    if (!m.fits || is_borderline(m) || !leaves_headroom(m.device_peak, m.capacity)) return false;
    out.value = range.value(i);
    out.evaluation = std::move(e);
    return true;
  };
  std::int64_t low = range.first - 1, high = range.first;
  while (fits(high)) {
    low = high;
    if (low == range.last()) {
      out.stop = range.most == job.model->longest_sequence && what == LargestOf::kSequence
                     ? LargestResult::Stop::kModel
                     : LargestResult::Stop::kSearch;
      return out;
    }
    high = std::min(2 * high, range.last());
  }
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return out;
}

}  // namespace foreshard
