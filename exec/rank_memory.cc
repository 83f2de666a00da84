#include "exec/rank_memory.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"

namespace foreshard {
namespace {

/// First and past-the-last byte that a view touches, relative to `base`.
struct Extent {
  std::int64_t first = 0, last = 0;
};

template <typename View>
Extent extent_of(const View& v, std::int64_t base) {
  if (v.numel() == 0) return {base, base};
  std::int64_t low = 0, high = 0;
  for (int d = 0; d < v.rank; ++d) {
    const std::int64_t reach =
        (v.shape[static_cast<std::size_t>(d)] - 1) * v.stride[static_cast<std::size_t>(d)];
    (reach < 0 ? low : high) += reach;
  }
  const std::int64_t width = size_of(v.dtype);
  return {base + low * width, base + (high + 1) * width};
}

AccessCheck::Range range_of_view(const TensorView& v) {
  const Extent e =
      extent_of(v, static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(v.data)));
  return {static_cast<std::uint64_t>(e.first), static_cast<std::uint64_t>(e.last)};
}

}  // namespace

RankMemory::RankMemory(const Schedule& schedule, const RankProgram& program, std::int64_t rank,
                       BackendMemory memory, const AllocatorOptions& options, bool checked)
    : schedule_(schedule),
      program_(program),
      rank_(rank),
      allocator_(options, *memory.segments, *memory.progress),
      buffers_(program.buffers.size()) {
  if (checked) order_.emplace(program.streams.size(), program.events);
}

void RankMemory::fail(const std::string& what) const {
  throw RunError(fmt::format("rank {} instruction {}: {}", rank_, instruction_, what));
}

std::string RankMemory::name_of_buffer(BufferId id) const {
  const Buffer& b = program_.buffers[id.value];
  const std::string& name = program_.names[b.name];
  return fmt::format("buffer {}{}{} ({} B, {})", id.value, name.empty() ? "" : " ", name,
                     b.bytes.value, name_of(b.category));
}

RankMemory::Place& RankMemory::place(BufferId id) {
  if (id.value >= buffers_.size()) fail(fmt::format("there is no buffer {}", id.value));
  return buffers_[id.value];
}

AccessCheck::Range RankMemory::range_of(BufferId id) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(buffers_[id.value].data);
  return {begin, begin + static_cast<std::uint64_t>(program_.buffers[id.value].bytes.value)};
}

void RankMemory::allocate(BufferId id) {
  Place& p = place(id);
  if (p.state == State::kLive) {
    fail(fmt::format("{} is allocated again; instruction {} did so already", name_of_buffer(id),
                     p.since));
  }
  const Buffer& b = program_.buffers[id.value];
  if (b.space == MemorySpace::kDevice) {
    const Allocation a = allocator_.allocate(b.bytes, b.pool);
    if (!a.ok)
      fail(fmt::format("out of memory for {}: {}", name_of_buffer(id),
                       allocator_.last_out_of_memory().text()));
    p.block = a.block;
    p.data = reinterpret_cast<std::byte*>(a.address);
  } else {
    if (!p.host) p.host = std::make_unique<std::byte[]>(static_cast<std::size_t>(b.bytes.value));
    p.data = p.host.get();
  }
  p.state = State::kLive;
  p.since = instruction_;
  p.recorded.clear();
  if (order_) order_->allocate(range_of(id));
}

void RankMemory::free(BufferId id) {
  Place& p = place(id);
  if (p.state != State::kLive) {
    fail(fmt::format("frees {}, which {}", name_of_buffer(id),
                     p.state == State::kNever
                         ? std::string("was never allocated")
                         : fmt::format("instruction {} freed already", p.since)));
  }
  if (program_.buffers[id.value].space == MemorySpace::kDevice) {
    if (order_ && !p.recorded.empty()) order_->forget(range_of(id), p.recorded);
    allocator_.free(p.block);
    p.data = nullptr;
  }
  // Host memory stays until the buffer is allocated again or the run ends: streams may still use
  // it.
  p.block = BlockHandle{};
  p.state = State::kFreed;
  p.since = instruction_;
}

void RankMemory::record_stream(BufferId id, StreamIndex stream) {
  Place& p = place(id);
  if (p.state != State::kLive)
    fail(fmt::format("records a stream on {}, which is not allocated", name_of_buffer(id)));
  if (program_.buffers[id.value].space != MemorySpace::kDevice) return;
  allocator_.record_stream(p.block, stream);
  if (std::find(p.recorded.begin(), p.recorded.end(), stream) == p.recorded.end())
    p.recorded.push_back(stream);
}

void RankMemory::carry_over(const std::vector<Carry>& carries) {
  std::vector<Place> moved;
  for (const Carry& c : carries) moved.push_back(std::exchange(place(c.now), Place{}));
  for (std::size_t i = 0; i < carries.size(); ++i) {
    if (moved[i].state != State::kLive) {
      fail(fmt::format("{} should live on in the repeated step but is not allocated",
                       name_of_buffer(carries[i].now)));
    }
    Place& target = place(carries[i].before);
    if (target.state == State::kLive) {
      fail(fmt::format("{} takes the place of {}, which is still allocated",
                       name_of_buffer(carries[i].now), name_of_buffer(carries[i].before)));
    }
    if (target.host) replaced_host_memory_.push_back(std::move(target.host));
    target = std::move(moved[i]);
  }
}

TensorView RankMemory::view(TensorId id) const {
  TensorView v;
  if (!id.valid()) return v;
  if (id.value >= program_.tensors.size()) fail(fmt::format("there is no tensor {}", id.value));
  const Tensor& t = program_.tensors[id.value];
  v.present = true;
  v.dtype = t.dtype;
  v.rank = t.rank;
  v.shape = t.shape;
  v.stride = t.stride;
  if (t.numel() == 0) return v;  // a rank without elements of a parameter: needs no memory
  if (t.buffer.value >= buffers_.size()) fail(fmt::format("tensor {} is of no buffer", id.value));
  const Place& p = buffers_[t.buffer.value];
  if (p.state != State::kLive) {
    fail(fmt::format("uses {}, which {}", name_of_buffer(t.buffer),
                     p.state == State::kNever ? std::string("was never allocated")
                                              : fmt::format("instruction {} freed", p.since)));
  }
  std::int64_t offset = t.offset;
  if (t.offset_per_rank != 0)
    offset += t.offset_per_rank * schedule_.groups.at(t.group.value).index_of(rank_);
  const Extent e = extent_of(v, offset);
  const std::int64_t size = program_.buffers[t.buffer.value].bytes.value;
  if (e.first < 0 || e.last > size) {
    fail(fmt::format("tensor {} covers bytes {} to {} of {}", id.value, e.first, e.last,
                     name_of_buffer(t.buffer)));
  }
  v.data = p.data + offset;
  return v;
}

void RankMemory::check_work(StreamIndex stream, const std::vector<TensorView>& reads,
                            const std::vector<TensorView>& writes) {
  if (!order_) return;
  order_->begin_work(stream, instruction_);
  const auto check = [&](const std::vector<TensorView>& views, const char* role, auto&& method) {
    for (std::size_t i = 0; i < views.size(); ++i) {
      if (!views[i].present || views[i].numel() == 0) continue;
      const std::string problem = method(range_of_view(views[i]));
      if (!problem.empty()) fail(fmt::format("{} {} {}", role, i, problem));
    }
  };
  check(reads, "input", [&](AccessCheck::Range r) { return order_->read(r); });
  check(writes, "output", [&](AccessCheck::Range r) { return order_->write(r); });
}

}  // namespace foreshard
