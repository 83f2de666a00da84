#include "schedules/planner/host/host.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "models/ops/op_flops.h"
#include "schedules/planner/frameworks/framework.h"
#include "schedules/planner/host/block_template.h"
#include "schedules/planner/host/host_impl.h"
#include "schedules/planner/host/host_refusal.h"
#include "schedules/planner/recipes/float8.h"

namespace foreshard {

namespace {

/// Graphs of such linear layers hold the scales that their weights were gathered with, which are
/// not tensors of the block.
bool graphs_hold_scales(const ParallelConfig& c) {
  return c.float8_all_gather && float8_is_eager(c);
}

}  // namespace

HostImpl::HostImpl(Host& h) : host(h) {
  const HostOptions& o = h.options();
  const ParallelConfig& c = h.config();
  if (o.share_blocks && !o.executable && o.sink == nullptr && !c.checkpoint_reentrant &&
      !c.packed_sequences && !graphs_hold_scales(c))
    block_templates = std::make_unique<BlockTemplates>(*this);
}

HostImpl::~HostImpl() = default;

Host::Host(const Model& model, const ParallelConfig& config, const HostOptions& options)
    : model_(model),
      config_(config),
      options_(options),
      program_(model.modules.size()),
      impl_(std::make_unique<HostImpl>(*this)) {
  program_.add_stream("compute", 0);
  parameters_.resize(model.parameters.size());
  buffers_.resize(model.modules.size());
  watched_.resize(model.modules.size());
  scopes_.reserve(model.modules.size());
  for (const Module& m : model.modules) scopes_.push_back(program_.add_scope(m.name));
  impl_->read_in.resize(model.parameters.size());
  impl_->ran_backward.resize(scopes_.size() + 1);
  impl_->ran_backward.back() = 1;
  impl_->compiled.resize(model.modules.size());
  impl_->checkpointed.resize(model.modules.size());
  impl_->traced.resize(model.modules.size());
  impl_->traced_parameters.resize(model.modules.size());
}

Host::~Host() { close(); }

bool Host::shares_blocks() const { return impl_->block_templates != nullptr; }

void Host::close() {
  impl_->closing = true;
  for (SymTensor& p : parameters_) p.reset();
  buffers_.clear();
  impl_->autocast_cache.clear();
  impl_->kept_accumulators.clear();
  impl_->packed_mask.reset();
  for (CheckpointFrame& f : impl_->frames) f = {};
}

GroupId Host::add_group(std::string name, std::int64_t size, std::int64_t stride) {
  groups_.push_back({std::move(name), size, stride});
  return GroupId(static_cast<std::uint32_t>(groups_.size() - 1));
}

void Host::set_phase(Phase p) {
  if (p == phase_) return;
  Mark m;
  m.kind = MarkKind::kPhase;
  m.begin = false;
  m.phase = phase_;
  if (phase_ != Phase::kOther) program_.mark(m);
  phase_ = p;
  m.begin = true;
  m.phase = p;
  if (p != Phase::kOther) program_.mark(m);
}

// ----------------------------------------------------------------------------------------------
// tensors

SymTensor HostImpl::make_tensor(Ref<SymStorage> storage, const Shape& shape, DType dtype) {
  SymTensorImpl* const t = tensors.take();
  t->impl = this;
  t->storage = std::move(storage);
  t->shape = shape;
  t->dtype = dtype;
  std::int64_t n = 1;
  for (int d = shape.rank - 1; d >= 0; --d) {
    t->stride[static_cast<std::size_t>(d)] = n;
    n *= shape[d];
  }
  t->numel = n;
  return SymTensor(t);
}

Ref<SymStorage> HostImpl::make_storage(std::int64_t bytes, BufferCategory category, UnitId unit,
                                       std::uint32_t name) {
  SymStorage* const s = storages.take();
  s->host = &host;
  s->bytes = bytes;
  s->category = category;
  s->unit = unit;
  s->name = name;
  s->scope = host.scope();
  s->space = MemorySpace::kDevice;
  return Ref<SymStorage>(s);
}

void HostImpl::allocate(SymStorage& s) {
  if (s.bytes == 0 || s.buffer.valid()) return;
  s.pool = host.stream_;
  Buffer b;
  b.bytes = Bytes(s.bytes);
  b.pool = s.pool;
  b.space = s.space;
  b.category = s.category;
  b.unit = s.unit;
  b.scope = s.scope;
  b.name = s.name;
  s.buffer = host.program_.alloc(b);
  ++s.generation;
}

SymTensor Host::empty(const Shape& shape, DType dtype, BufferCategory category, UnitId unit,
                      std::uint32_t name) {
  Ref<SymStorage> s = impl_->make_storage(shape.numel() * size_of(dtype), category, unit, name);
  impl_->allocate(*s);
  return impl_->make_tensor(std::move(s), shape, dtype);
}

SymTensor Host::empty_on_host(const Shape& shape, DType dtype, MemorySpace space,
                              BufferCategory category, UnitId unit) {
  Ref<SymStorage> s = impl_->make_storage(shape.numel() * size_of(dtype), category, unit, 0);
  s->space = space;
  impl_->allocate(*s);
  return impl_->make_tensor(std::move(s), shape, dtype);
}

SymTensor Host::unallocated(const Shape& shape, DType dtype, std::int64_t bytes,
                            BufferCategory category, UnitId unit) {
  return impl_->make_tensor(impl_->make_storage(bytes, category, unit, 0), shape, dtype);
}

void Host::free_storage(const SymTensor& t) {
  SymStorage& s = *t->storage;
  if (!s.buffer.valid()) return;
  if (!impl_->closing) program_.free(s.buffer);
  s.buffer = {};
}

void Host::allocate_storage(const SymTensor& t) { impl_->allocate(*t->storage); }

SymTensor Host::view_as(const SymTensor& base, const Shape& shape, std::int64_t offset_elements) {
  SymTensor v = impl_->make_tensor(base->storage, shape, base->dtype);
  v->offset = offset_elements;
  v->group = base->group;
  v->offset_per_rank = base->offset_per_rank;
  v->scale = base->scale;
  return v;
}

SymTensor Host::view_as(const SymTensor& base, const Shape& shape,
                        std::span<const std::int64_t> strides, std::int64_t offset_elements) {
  SymTensor v = view_as(base, shape, offset_elements);
  for (std::size_t d = 0; d < strides.size(); ++d) v->stride[d] = strides[d];
  return v;
}

SymTensor Host::rank_view(const SymTensor& base, const Shape& shape, GroupId group,
                          std::int64_t bytes_per_rank, std::int64_t offset_elements) {
  SymTensor v = view_as(base, shape, offset_elements);
  v->group = group;
  v->offset_per_rank = bytes_per_rank;
  return v;
}

const SymTensor& Host::buffer(const Module& m, std::int64_t index) {
  const auto module = static_cast<std::size_t>(&m - model_.modules.data());
  std::vector<SymTensor>& all = buffers_[module];
  all.resize(m.buffers.size());
  SymTensor& b = all[static_cast<std::size_t>(index)];
  if (!b) {
    const BufferDef& def = m.buffers[static_cast<std::size_t>(index)];
    const std::string full = m.name.empty() ? def.name : m.name + "." + def.name;
    b = empty(Shape(std::span<const std::int64_t>(def.shape)), def.dtype,
              BufferCategory::kPersistent, {}, program_.intern(full));
    launch(OpKind::kInitialize, {}, {b}, {-1.0});
  }
  return b;
}

void Host::cast_buffer(const Module& m, std::int64_t index, DType dtype) {
  const SymTensor cast_to = cast(buffer(m, index), dtype, BufferCategory::kPersistent);
  buffers_[static_cast<std::size_t>(&m - model_.modules.data())][static_cast<std::size_t>(index)] =
      cast_to;
}

void Host::materialize_buffers() {
  for (const Module& m : model_.modules) {
    for (std::size_t i = 0; i < m.buffers.size(); ++i) buffer(m, static_cast<std::int64_t>(i));
  }
}

SymTensor Host::detach(const SymTensor& t) {
  SymTensor v = view_as(t, t->shape, t->offset);
  v->stride = t->stride;
  return v;
}

void Host::set_data(const SymTensor& leaf, const SymTensor& data) {
  SymTensorImpl& t = *leaf;
  if (t.dtype != data->dtype || t.storage->space != data->storage->space)
    t.grad_accumulator = nullptr;
  t.dtype = data->dtype;
  t.storage = data->storage;
  t.shape = data->shape;
  t.stride = data->stride;
  t.numel = data->numel;
  t.offset = data->offset;
  t.offset_per_rank = data->offset_per_rank;
  t.group = data->group;
  t.id = {};
}

void Host::set_category(const SymTensor& t, BufferCategory category, UnitId unit) {
  SymStorage& s = *t->storage;
  s.category = category;
  if (unit.valid()) s.unit = unit;
  if (!s.buffer.valid()) return;
  Buffer& b = program_.program().buffers[s.buffer.value];
  b.category = category;
  if (unit.valid()) b.unit = unit;
}

TensorId Host::id_of(const SymTensor& t) {
  if (!options_.executable || !t) return {};
  SymTensorImpl& i = *t;
  SymStorage& s = *i.storage;
  if (i.id_generation == s.generation && i.id.valid()) return i.id;
  if (!s.buffer.valid() && i.numel > 0)
    throw InternalError("tensor used while its storage is freed");
  Tensor out;
  out.buffer = s.buffer;
  out.dtype = i.dtype;
  out.rank = i.shape.rank;
  out.group = i.group;
  out.offset = i.offset * size_of(i.dtype);
  out.offset_per_rank = i.offset_per_rank;
  for (std::size_t d = 0; d < i.shape.rank; ++d) {
    out.shape[d] = i.shape.dim[d];
    out.stride[d] = i.stride[d];
  }
  i.id = program_.add_tensor(out);
  i.id_generation = s.generation;
  return i.id;
}

TensorId Host::id_of(const LaunchView& v) {
  if (!options_.executable || v.id.valid()) return v.id;
  if (!v.storage->buffer.valid() && v.shape.numel() > 0) refuse_freed_operand();
  Tensor out;
  out.buffer = v.storage->buffer;
  out.dtype = v.dtype;
  out.rank = v.shape.rank;
  out.group = v.group;
  out.offset = v.offset * size_of(v.dtype);
  out.offset_per_rank = v.offset_per_rank;
  out.shape = v.shape.dim;
  out.stride = contiguous_strides(v.shape);
  return v.id = program_.add_tensor(out);
}

}  // namespace foreshard
