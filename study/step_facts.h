#pragma once

// What one step of a plan issues, counted: the part of a comparison of two plans that needs no
// clock.

#include <array>
#include <cstdint>
#include <map>
#include <utility>

#include "schedules/schedule.h"

namespace foreshard {

struct Tally {
  std::int64_t count = 0;
  Bytes bytes;
};

/// The steady (last) step of one class of ranks.
struct StepFacts {
  struct Key {
    CollectiveKind kind = CollectiveKind::kAllGather;
    std::int64_t group_size = 1;
    auto operator<=>(const Key&) const = default;
  };
  struct Collectives : Tally {  ///< Bytes: sum of Collective::bytes.
    std::map<DType, Bytes> dtypes;
  };
  std::map<Key, Collectives> collectives;
  Tally host_to_device, device_to_host;  ///< Copies.
  std::int64_t host_waits = 0;           ///< The host stops for an event, a stream or the device.
  std::int64_t stream_waits = 0;         ///< A stream waits for an event of another.
  std::int64_t recorded_streams = 0;     ///< Frees that wait for another stream (record_stream).
  std::array<Tally, kBufferCategoryCount> buffers{};  ///< Allocations of device memory by category.
  std::map<Phase, std::int64_t> kernels;
  std::int64_t units = 0, streams = 0;  ///< Of the whole program.
};

/// Facts of the program of rank 0.
StepFacts facts_of(const Schedule& schedule);

}  // namespace foreshard
