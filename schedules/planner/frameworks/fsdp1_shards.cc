// A unit's flat parameter: all elements, then this rank's chunk of them, on the device or in host
// memory.

#include <algorithm>
#include <utility>

#include "schedules/planner/frameworks/fsdp1.h"
#include "schedules/planner/frameworks/fsdp1_wrap.h"

namespace foreshard::fsdp1 {

/// _construct_padding_tensor of each run of padding: ones times a magic number.
std::vector<SymTensor> Fsdp1::make_padding(const Handle& h) {
  std::vector<SymTensor> padding;
  for (const FlatEntry& e : h.layout->entries) {
    if (!e.is_padding()) continue;
    const auto make = [&] {
      return host_->empty({e.numel}, h.layout->dtype, BufferCategory::kParameter, h.unit);
    };
    const SymTensor ones = make();
    host_->launch(OpKind::kFill, {}, {ones}, {1.0});
    padding.push_back(make());
    host_->launch(OpKind::kMulScalar, {ones}, {padding.back()}, {42.0});
  }
  return padding;
}

/// The flat parameter of all elements, then this rank's chunk of it, padded with zeros
/// (_get_shard).
void Fsdp1::make_local_shard(State& state) {
  Handle& h = *state.handle;
  const FlatLayout& layout = *h.layout;
  constexpr BufferCategory kShard = BufferCategory::kShardedParameter;
  std::vector<SymTensor> padding = make_padding(h);
  SymTensor flat = host_->empty({layout.numel}, layout.dtype,
                                state.unit.sharded() ? BufferCategory::kParameter : kShard, h.unit);
  // A list drops its last item first, but a local variable holds that one.
  SymTensor last = padding.empty() ? SymTensor() : padding.back();
  while (!padding.empty()) padding.pop_back();
  last.reset();
  if (state.unit.sharded()) {
    const std::int64_t own =
        std::clamp<std::int64_t>(layout.numel - shard_rank_ * layout.shard, 0, layout.shard);
    SymTensor chunk = host_->empty({own}, layout.dtype, kShard, h.unit);
    if (own < layout.shard) chunk = host_->empty({layout.shard}, layout.dtype, kShard, h.unit);
    h.local_shard = std::move(chunk);
    flat.reset();
  } else {
    h.local_shard = std::move(flat);
  }
}

/// The modules' attributes stay views of the device's flat parameter, which therefore lives until
/// the first unshard (sharded ones give their storage up when they are cut).
void Fsdp1::keep_device_views(State& state) {
  Handle& h = *state.handle;
  for (const FlatEntry& e : h.layout->entries) {
    h.views.push_back(e.is_padding() ? SymTensor()
                                     : host_->view_as(h.local_shard, Shape(e.shape), e.offset));
  }
}

/// flat_param_to(cpu), and its initial values.
void Fsdp1::place_local_shard(State& state) {
  Handle& h = *state.handle;
  if (config_.offload == OffloadKind::kParameters && !extras_.computes_on_cpu) {
    if (!state.unit.sharded() && !config_.fsdp1.use_orig_params) keep_device_views(state);
    h.local_shard =
        host_->empty_on_host(h.local_shard->shape, h.layout->dtype, MemorySpace::kHostPinned,
                             BufferCategory::kShardedParameter, h.unit);
  }
  host_->launch(OpKind::kFill, {}, {h.local_shard}, {0.0});
}

void Fsdp1::make_flat_parameter(State& state) {
  Handle& h = *state.handle;
  const FlatLayout& layout = *h.layout;
  h.flat_param = host_->detach(h.local_shard);
  h.flat_param->requires_grad = layout.trainable;
  constexpr BufferCategory kFull = BufferCategory::kUnshardedParameter;
  if (h.mixed_parameters()) {
    const std::int64_t bytes = layout.shard * size_of(layout.forward_dtype);
    h.low_precision_shard =
        host_->unallocated({layout.shard}, layout.forward_dtype, bytes,
                           state.unit.sharded() ? BufferCategory::kGatherInput : kFull, h.unit);
  }
  if (state.unit.sharded()) {
    h.full = host_->unallocated({layout.padded}, layout.forward_dtype,
                                layout.padded * size_of(layout.forward_dtype), kFull, h.unit);
    if (h.mixed_parameters()) {
      h.full_precision = host_->unallocated({layout.padded}, layout.dtype,
                                            layout.padded * size_of(layout.dtype), kFull, h.unit);
    }
  }
  h.views.resize(layout.entries.size());
  if (config_.fsdp1.use_orig_params) return make_originals(state);
  // Sharding ends with `flat_param.set_(shard)`, after which autograd makes a new AccumulateGrad,
  // on the stream of the next views; without it the one of the constructor stays, on its stream.
  if (!state.unit.sharded() && layout.trainable)
    h.constructed_accumulator = host_->grad_accumulator(h.flat_param);
}

void Fsdp1::make_originals(State& state) {
  Handle& h = *state.handle;
  h.originals.resize(h.layout->entries.size());
  for (std::size_t i = 0; i < h.originals.size(); ++i) {
    const FlatEntry& e = h.layout->entries[i];
    if (e.is_padding()) continue;
    const FlatLayout::Part part = h.layout->part_of(e, shard_rank_);
    h.originals[i].parameter = state.unit.sharded()
                                   ? host_->view_as(h.local_shard, {part.numel}, part.offset)
                                   : host_->view_as(h.local_shard, Shape(e.shape), e.offset);
    h.originals[i].parameter->requires_grad = e.trainable;
  }
}

}  // namespace foreshard::fsdp1
