#include "sim/memory_ledger.h"

#include <algorithm>
#include <bit>

namespace foreshard::sim {
namespace {

/// Page-locked memory comes in powers of two (ATen/core/CachingHostAllocator.h; as the stand-in
/// GPU's log of cudaHostAlloc shows).
std::int64_t host_bytes(const Buffer& b) {
  const auto bytes = static_cast<std::uint64_t>(b.bytes.value);
  return static_cast<std::int64_t>(
      b.space == MemorySpace::kHostPinned && bytes > 0 ? std::bit_ceil(bytes) : bytes);
}

}  // namespace

MemoryLedger::MemoryLedger(const RankProgram& program, const AllocatorOptions& options,
                           Bytes capacity, Bytes taken, StreamProgress& progress)
    : program_(program),
      source_(capacity, taken),
      allocator_(options, source_, progress),
      block_(program.buffers.size()),
      bytes_(program.buffers.size()) {}

MemoryLedger::Outcome MemoryLedger::alloc(std::uint32_t buffer, Moment now) {
  const Buffer& b = program_.buffers[buffer];
  if (b.space != MemorySpace::kDevice) {
    host_now_ += host_bytes(b);
    host_peak_ = std::max(host_peak_, host_now_);
    return Outcome::kDone;
  }
  const Allocation allocation = allocator_.try_allocate(b.bytes, b.pool);
  if (!allocation) return Outcome::kNeedsRetry;
  placed(buffer, allocation, now);
  return Outcome::kDone;
}

void MemoryLedger::retry(std::uint32_t buffer, Moment now) {
  const Buffer& b = program_.buffers[buffer];
  Allocation allocation = allocator_.retry_allocate(b.bytes, b.pool);
  if (!allocation) {
    const bool first = failures_.empty();
    failures_.push_back({allocator_.last_out_of_memory(), buffer, now});
    // From the first failure on the device has room for everything, so that the peaks say what the
    // job needs.
    if (first) source_.change_context(Bytes(-VirtualSegmentSource::kUnlimited.value));
    allocation = allocator_.try_allocate(b.bytes, b.pool);
    if (!allocation) return;
  }
  placed(buffer, allocation, now);
}

void MemoryLedger::placed(std::uint32_t buffer, const Allocation& allocation, Moment now) {
  block_[buffer] = allocation.block;
  if (allocation.block.valid()) bytes_[buffer] = allocator_.size(allocation.block).value;
  const AllocatorStats& s = allocator_.stats();
  if (s.allocated.current > allocated_peak_) {
    allocated_peak_ = s.allocated.current;
    peak_at_ = now;
  }
  reserved_peak_ = std::max(reserved_peak_, s.reserved.current);
}

void MemoryLedger::free(std::uint32_t buffer) {
  const Buffer& b = program_.buffers[buffer];
  if (b.space != MemorySpace::kDevice) {
    host_now_ -= host_bytes(b);
    return;
  }
  allocator_.free(block_[buffer]);
  block_[buffer] = BlockHandle{};
}

void MemoryLedger::record_stream(std::uint32_t buffer, StreamIndex stream) {
  if (block_[buffer].valid()) allocator_.record_stream(block_[buffer], stream);
}

void MemoryLedger::carry() {
  carried_.clear();
  for (const Carry& c : program_.carries) {
    carried_.push_back(block_[c.now.value]);
    block_[c.now.value] = BlockHandle{};
  }
  for (std::size_t i = 0; i < carried_.size(); ++i) {
    const Carry& c = program_.carries[i];
    block_[c.before.value] = carried_[i];
    bytes_[c.before.value] = bytes_[c.now.value];
  }
}

MemoryLedger::State MemoryLedger::state(BufferId Carry::*side) const {
  State s;
  if (allocator_.options().garbage_collection_threshold > 0) return s;
  s.known = true;
  s.host_bytes = host_now_;
  CachingAllocator::Form form = allocator_.form();
  s.blocks = std::move(form.blocks);
  s.carried.reserve(program_.carries.size());
  for (const Carry& c : program_.carries) {
    const BlockHandle block = block_[(c.*side).value];
    s.carried.push_back(block.valid() ? form.place[block.index()] : UINT32_MAX);
  }
  return s;
}

void MemoryLedger::begin_step() {
  allocator_.reset_peaks();
  retries_at_step_ = stats().retries;
  failures_at_step_ = failures_.size();
}

StepMemory MemoryLedger::end_step(std::int64_t rank, std::int32_t step) const {
  const AllocatorStats& s = stats();
  StepMemory m;
  m.rank = static_cast<std::int32_t>(rank);
  m.step = step;
  m.allocated_peak = Bytes(s.allocated.peak);
  m.reserved_peak = Bytes(s.reserved.peak);
  m.active_peak = Bytes(s.active.peak);
  m.retries = s.retries - retries_at_step_;
  m.out_of_memory = failures_.size() > failures_at_step_;
  return m;
}

}  // namespace foreshard::sim
