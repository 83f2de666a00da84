#pragma once

#include <cstddef>

#include "core/units.h"
#include "memory/address_space.h"
#include "memory/segment_source.h"

namespace foreshard {

/// Real host memory in the place of device memory, for the executor: an address is a pointer that
/// may be read and written. It orders segments as VirtualSegmentSource does, so the allocator
/// decides alike. Fresh memory is zero and takes physical pages when it is touched; released memory
/// faults when touched.
///
/// One window of addresses is set aside at construction; segments come from it. Throws RunError if
/// the operating system refuses it. Owns the memory; not thread-safe for allocation (use one for
/// each rank), while the memory itself may be used by any thread.
class HostSegmentSource final : public SegmentSource {
 public:
  /// `capacity`: limit that stands for the device's memory. `window`: address space to set aside; 0
  /// chooses 16 times the capacity between 64 GiB and 4 TiB. It must hold 9/8 of the capacity for
  /// each stream and pool with expandable segments.
  explicit HostSegmentSource(Bytes capacity, Bytes window = Bytes(0));
  ~HostSegmentSource() override;
  HostSegmentSource(const HostSegmentSource&) = delete;
  HostSegmentSource& operator=(const HostSegmentSource&) = delete;

  Bytes capacity() const override { return capacity_; }
  Bytes in_use() const override { return in_use_; }
  DeviceAddress allocate(Bytes size, std::uint32_t stream) override;
  void release(DeviceAddress address, Bytes size) override;
  DeviceAddress reserve(Bytes span) override;
  void unreserve(DeviceAddress address, Bytes span) override;
  bool map(DeviceAddress address, Bytes size) override;
  void unmap(DeviceAddress address, Bytes size) override;

  /// The memory at an address of this source.
  static std::byte* pointer(DeviceAddress address) { return reinterpret_cast<std::byte*>(address); }

 private:
  std::int64_t offset_of(DeviceAddress address) const;
  DeviceAddress address_at(std::int64_t offset) const;
  bool open(DeviceAddress address, Bytes size);
  void close(DeviceAddress address, Bytes size);

  Bytes capacity_;
  Bytes in_use_;
  Bytes window_;
  std::byte* base_ = nullptr;
  AddressSpace addresses_;
};

}  // namespace foreshard
