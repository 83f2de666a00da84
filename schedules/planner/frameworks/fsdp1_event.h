#pragma once

// What FSDP1's host code does beside the instructions it issues: for readers of recordings and for
// explanations. One event for each action, in host order; names as PyTorch's functions.

#include <cstdint>
#include <string>

#include "core/dtype.h"
#include "schedules/schedule.h"

namespace foreshard::fsdp1 {

enum class EventKind : std::uint8_t {
  kStreams,  ///< number, number2: priority of unshard, post-backward and pre-unshard; of
             ///< all-reduce.
  kLazyInitEnd,
  kPreForward,
  kPostForward,              ///< unit; flag: during recomputation.
  kPreBackward,              ///< unit
  kPostBackward,             ///< unit; bytes and dtype of the unsharded gradient (0: none).
  kPostBackwardReshardOnly,  ///< unit
  kFinalCallback,
  kUnshard,       ///< unit, cause
  kAllocate,      ///< unit, buffer, bytes, stream
  kFree,          ///< unit, buffer, stream
  kRecordStream,  ///< unit, buffer, stream
  kReshard,       ///< unit; flag: the gathered storage is freed.
  kLimitPush,
  kLimitPop,  ///< unit and number: who pushed the event, how many pushes before it; number2: queue
              ///< length after.
  kHostSync,  ///< unit and number: the limiter's event; or on: a stream.
  kWait,      ///< stream, on
  kReduceInput,   ///< unit, numel, numel2 = padded, dtype, stream
  kDivide,        ///< unit, bytes, factor, stream
  kCast,          ///< unit, numel, dtype = to, stream
  kSaveGradient,  ///< unit, numel, stream; flag: added to the one that is there.
  kToHost,        ///< unit, bytes, dtype, stream
  kCollective,    ///< unit, collective, bytes in, bytes2 out, dtype, number = ranks, group, stream
};

enum class FlatBuffer : std::uint8_t {
  kNone,
  kLowPrecisionShard,
  kFull,
  kFullPrecision,
  kGradient
};
enum class UnshardCause : std::uint8_t { kForward, kBackward, kForwardPrefetch, kBackwardPrefetch };

struct Event {
  EventKind kind = EventKind::kStreams;
  int unit = -1;  ///< Index in the order of root.modules(); -1: none.
  FlatBuffer buffer = FlatBuffer::kNone;
  UnshardCause cause = UnshardCause::kForward;
  bool flag = false;
  std::int64_t number = 0, number2 = 0;
  std::int64_t bytes = 0, bytes2 = 0, numel = 0, numel2 = 0;
  double factor = 1;
  DType dtype = DType::kFloat32;
  CollectiveKind collective = CollectiveKind::kAllGather;
  std::string group{};  ///< "shard", "replicate".
  std::string stream{},
      on{};  ///< "compute", "unshard", "pre_unshard", "post_backward", "all_reduce".
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_event(const Event& e) = 0;
};

}  // namespace foreshard::fsdp1
