#include "memory/virtual_segment_source.h"

#include "core/error.h"

namespace foreshard {
namespace {

constexpr DeviceAddress kBase = DeviceAddress{1} << 32;
constexpr std::int64_t kWindow = std::int64_t{1} << 62;

std::int64_t offset_of(DeviceAddress address) { return static_cast<std::int64_t>(address - kBase); }

DeviceAddress address_at(std::int64_t offset) {
  return offset < 0 ? 0 : kBase + static_cast<DeviceAddress>(offset);
}

}  // namespace

VirtualSegmentSource::VirtualSegmentSource(Bytes capacity, Bytes context)
    : capacity_(capacity), in_use_(context), addresses_(kWindow) {}

bool VirtualSegmentSource::take(Bytes size) {
  if (size > capacity_ - in_use_) return false;
  in_use_ += size;
  return true;
}

DeviceAddress VirtualSegmentSource::allocate(Bytes size, std::uint32_t) {
  return take(size) ? address_at(addresses_.place(size.value)) : 0;
}

void VirtualSegmentSource::release(DeviceAddress address, Bytes size) {
  unreserve(address, size);
  in_use_ -= size;
}

DeviceAddress VirtualSegmentSource::reserve(Bytes span) {
  return address_at(addresses_.place(span.value));
}

void VirtualSegmentSource::unreserve(DeviceAddress address, Bytes span) {
  if (!addresses_.remove(offset_of(address), span.value)) {
    throw InternalError("virtual device: release of a segment that was not taken");
  }
}

bool VirtualSegmentSource::map(DeviceAddress address, Bytes size) {
  if (!addresses_.contains(offset_of(address), size.value)) {
    throw InternalError("virtual device: mapping outside of a reserved range");
  }
  return take(size);
}

void VirtualSegmentSource::unmap(DeviceAddress address, Bytes size) {
  if (!addresses_.contains(offset_of(address), size.value)) {
    throw InternalError("virtual device: unmapping outside of a reserved range");
  }
  in_use_ -= size;
}

}  // namespace foreshard
