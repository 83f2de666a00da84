#pragma once

#include "core/units.h"
#include "memory/address_space.h"
#include "memory/segment_source.h"

namespace foreshard {

/// Device memory that exists only as numbers, for the simulator. Throws InternalError if the
/// allocator gives back what it did not take.
class VirtualSegmentSource final : public SegmentSource {
 public:
  /// `capacity` is the memory of the device; `context` is taken from the start by others (CUDA
  /// context, communication buffers). kUnlimited asks "how much would it need?".
  explicit VirtualSegmentSource(Bytes capacity, Bytes context = Bytes(0));

  /// Never out of memory for any real program (1 PiB).
  static constexpr Bytes kUnlimited{std::int64_t{1} << 50};

  Bytes capacity() const override { return capacity_; }
  Bytes in_use() const override { return in_use_; }
  DeviceAddress allocate(Bytes size, std::uint32_t stream) override;
  void release(DeviceAddress address, Bytes size) override;
  DeviceAddress reserve(Bytes span) override;
  void unreserve(DeviceAddress address, Bytes span) override;
  bool map(DeviceAddress address, Bytes size) override;
  void unmap(DeviceAddress address, Bytes size) override;

  /// Memory that another user takes (positive) or returns (negative) from now on.
  void change_context(Bytes change) { in_use_ += change; }

 private:
  bool take(Bytes size);

  Bytes capacity_;
  Bytes in_use_;
  AddressSpace addresses_;
};

}  // namespace foreshard
