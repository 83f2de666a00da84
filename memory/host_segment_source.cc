#include "memory/host_segment_source.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/format.h"

namespace foreshard {
namespace {

using namespace literals;

Bytes chosen_window(Bytes capacity, Bytes window) {
  if (window.value > 0) return window;
  const Bytes most = 4096_GiB;
  if (capacity >= most / 16) return most;
  return std::max(capacity * 16, 64_GiB);
}

}  // namespace

HostSegmentSource::HostSegmentSource(Bytes capacity, Bytes window)
    : capacity_(capacity), window_(chosen_window(capacity, window)), addresses_(window_.value) {
  void* base = mmap(nullptr, static_cast<std::size_t>(window_.value), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    throw RunError("cannot set aside " + format_memory(window_) +
                   " of addresses: " + std::strerror(errno));
  }
  base_ = static_cast<std::byte*>(base);
}

HostSegmentSource::~HostSegmentSource() { munmap(base_, static_cast<std::size_t>(window_.value)); }

std::int64_t HostSegmentSource::offset_of(DeviceAddress address) const {
  return pointer(address) - base_;
}

DeviceAddress HostSegmentSource::address_at(std::int64_t offset) const {
  return offset < 0 ? 0 : reinterpret_cast<DeviceAddress>(base_ + offset);
}

// Makes memory usable, within the capacity.
bool HostSegmentSource::open(DeviceAddress address, Bytes size) {
  if (size > capacity_ - in_use_) return false;
  if (mprotect(pointer(address), static_cast<std::size_t>(size.value), PROT_READ | PROT_WRITE) !=
      0) {
    throw RunError("cannot take " + format_memory(size) +
                   " of host memory: " + std::strerror(errno));
  }
  in_use_ += size;
  return true;
}

// Returns the pages to the operating system and makes the addresses unusable.
void HostSegmentSource::close(DeviceAddress address, Bytes size) {
  void* again = mmap(pointer(address), static_cast<std::size_t>(size.value), PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (again == MAP_FAILED) {
    throw RunError("cannot return " + format_memory(size) +
                   " of host memory: " + std::strerror(errno));
  }
  in_use_ -= size;
}

DeviceAddress HostSegmentSource::allocate(Bytes size, std::uint32_t) {
  if (size > capacity_ - in_use_) return 0;
  const DeviceAddress address = reserve(size);
  if (address == 0) throw RunError("host device: no addresses left for " + format_memory(size));
  open(address, size);
  return address;
}

void HostSegmentSource::release(DeviceAddress address, Bytes size) {
  unreserve(address, size);
  close(address, size);
}

DeviceAddress HostSegmentSource::reserve(Bytes span) {
  return address_at(addresses_.place(span.value));
}

void HostSegmentSource::unreserve(DeviceAddress address, Bytes span) {
  if (!addresses_.remove(offset_of(address), span.value)) {
    throw InternalError("host device: release of a segment that was not taken");
  }
}

bool HostSegmentSource::map(DeviceAddress address, Bytes size) {
  if (!addresses_.contains(offset_of(address), size.value)) {
    throw InternalError("host device: mapping outside of a reserved range");
  }
  return open(address, size);
}

void HostSegmentSource::unmap(DeviceAddress address, Bytes size) {
  if (!addresses_.contains(offset_of(address), size.value)) {
    throw InternalError("host device: unmapping outside of a reserved range");
  }
  close(address, size);
}

}  // namespace foreshard
