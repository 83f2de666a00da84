#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/segment_source.h"

namespace foreshard {

/// Streams of one rank as far as they were predicted to be: the allocator's questions get the given
/// answers in their order. The host waits for what is said to be done, so that memory is never
/// served too early. Without answers, or with more questions than answers, the real streams decide.
class GivenProgress final : public StreamProgress {
 public:
  /// `answers`: ReuseAnswers::segments, or null. Both must outlive this.
  GivenProgress(StreamProgress& real, const std::vector<std::vector<bool>>* answers)
      : real_(real), answers_(answers) {}

  /// 0: initialisation, k: step k - 1. The last one with answers serves later ones, too.
  void begin_segment(std::size_t segment) {
    next_ = 0;
    if (answers_ && !answers_->empty())
      segment_ = segment < answers_->size() ? segment : answers_->size() - 1;
  }

  Event record(std::uint32_t stream) override { return real_.record(stream); }
  bool reached(Event event) override {
    if (!answers_ || segment_ >= answers_->size() || next_ >= (*answers_)[segment_].size())
      return real_.reached(event);
    const bool done = (*answers_)[segment_][next_++];
    if (done) real_.synchronize(event);
    return done;
  }
  void synchronize(Event event) override { real_.synchronize(event); }

 private:
  StreamProgress& real_;
  const std::vector<std::vector<bool>>* answers_;
  std::size_t segment_ = 0, next_ = 0;
};

}  // namespace foreshard
