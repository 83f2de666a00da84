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

/// FLOPs or bytes of one launch: some thousand of them still fit into 64 bits.
constexpr std::int64_t kMostWork = std::int64_t{1} << 60;

void require_countable(const ParallelConfig& c, const Launch& l) {
  const auto countable = [](std::int64_t n) { return n >= 0 && n <= kMostWork; };
  if (countable(l.flops.value) && countable(l.read.value) && countable(l.written.value)) return;
  throw InputError(Issue{"--seq", "",
                         fmt::format("{} tokens x micro-batch {} are too many: one {} alone has "
                                     "more than 10^18 FLOPs or bytes",
                                     c.sequence, c.micro_batch, name_of(l.op)),
                         "a shorter sequence or a smaller --micro-batch"});
}

/// A launch without its dims would cost nothing, one with too many kernels too little.
void require_complete(const LaunchRequest& r) {
  if (r.kernels < 0 || r.kernels > kMostKernels)
    throw InternalError(fmt::format("a {} of {} kernels", name_of(r.op), r.kernels));
  if (has_dims(r.op) && r.flops < 0 && r.dims == std::array<std::int64_t, 6>{})
    throw InternalError(fmt::format("a {} without LaunchRequest::dims", name_of(r.op)));
}

}  // namespace

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

// ----------------------------------------------------------------------------------------------
// device work

namespace {

bool in_host_memory(const SymTensor& t) { return t && t->storage->space != MemorySpace::kDevice; }

using TensorLists = std::span<const std::span<const SymTensor>>;

/// The operands of one side of a launch in their order.
template <typename Visit>
void for_each_operand(std::span<const SymTensor> single, TensorLists lists, Visit visit) {
  for (const SymTensor& t : single) visit(t);
  for (const std::span<const SymTensor> list : lists)
    for (const SymTensor& t : list) visit(t);
}

std::size_t operand_count(std::span<const SymTensor> single, TensorLists lists) {
  std::size_t n = single.size();
  for (const std::span<const SymTensor> list : lists) n += list.size();
  return n;
}

/// Null if there is none.
const SymTensor* first_operand(std::span<const SymTensor> single, TensorLists lists) {
  if (!single.empty()) return single.data();
  for (const std::span<const SymTensor> list : lists)
    if (!list.empty()) return list.data();
  return nullptr;
}

/// Bytes that a launch reads and writes; `freed`: an input has no memory.
struct Traffic {
  std::int64_t read = 0, written = 0;
  bool freed = false;
};

Traffic traffic_of(const LaunchRequest& r) {
  Traffic sum;
  const auto add_input = [&](const SymStorage& s, std::int64_t bytes) {
    sum.read += bytes;
    sum.freed = sum.freed || (!s.buffer.valid() && bytes > 0);
  };
  for_each_operand(r.inputs, r.input_lists, [&](const SymTensor& t) {
    if (t) add_input(*t->storage, t->bytes());
  });
  for (const LaunchView& v : r.input_views) add_input(*v.storage, v.bytes());
  for_each_operand(r.outputs, r.output_lists, [&](const SymTensor& t) {
    if (t) sum.written += t->bytes();
  });
  for (const LaunchView& v : r.output_views) sum.written += v.bytes();
  return sum;
}

/// Operands and scalars as the program lists them.
void name_operands(Host& host, const LaunchRequest& r, Launch& l) {
  RankProgram& p = host.program().program();
  l.first_operand = static_cast<std::uint32_t>(p.operands.size());
  l.first_attribute = static_cast<std::uint32_t>(p.attributes.size());
  l.attributes = static_cast<std::uint16_t>(r.attributes.size());
  const auto name = [&](const SymTensor& t) { p.operands.push_back(host.id_of(t)); };
  const auto name_view = [&](const LaunchView& v) { p.operands.push_back(host.id_of(v)); };
  for_each_operand(r.inputs, r.input_lists, name);
  std::for_each(r.input_views.begin(), r.input_views.end(), name_view);
  for_each_operand(r.outputs, r.output_lists, name);
  std::for_each(r.output_views.begin(), r.output_views.end(), name_view);
  p.attributes.insert(p.attributes.end(), r.attributes.begin(), r.attributes.end());
}

}  // namespace

StreamIndex Host::cpu_stream() {
  if (!cpu_stream_) cpu_stream_ = program_.add_stream("cpu", 0, true);
  return *cpu_stream_;
}

void Host::refuse_freed_operand() const {
  throw HostRefusal(model_.modules.empty() || !scope_.valid()
                        ? std::string()
                        : program_.program().scopes[scope_.value],
                    "a tensor is used whose memory is freed", "a parameter that is not gathered?");
}

void Host::launch(const LaunchRequest& r) {
  const SymTensor* const first_input = first_operand(r.inputs, r.input_lists);
  const SymTensor* const first_output = first_operand(r.outputs, r.output_lists);
  const auto of_host = [](std::span<const LaunchView> views) {
    return !views.empty() && views[0].storage->space != MemorySpace::kDevice;
  };
  const bool on_cpu = (first_output != nullptr && in_host_memory(*first_output)) ||
                      (first_input != nullptr && in_host_memory(*first_input)) ||
                      of_host(r.output_views) || of_host(r.input_views);
  require_complete(r);
  Launch& l = program_.launch(on_cpu ? cpu_stream() : stream_);
  l.op = r.op;
  l.phase = phase_;
  l.kernels = static_cast<std::uint32_t>(r.kernels);
  l.scope = scope_;
  l.dims = r.dims;
  l.inputs =
      static_cast<std::uint32_t>(operand_count(r.inputs, r.input_lists) + r.input_views.size());
  l.outputs =
      static_cast<std::uint32_t>(operand_count(r.outputs, r.output_lists) + r.output_views.size());
  if (r.dtype_given) {
    l.dtype = r.dtype;
  } else if (first_output != nullptr && *first_output) {
    l.dtype = (*first_output)->dtype;
  } else if (first_output == nullptr && !r.output_views.empty()) {
    l.dtype = r.output_views[0].dtype;
  }
  const Traffic traffic = traffic_of(r);
  if (traffic.freed) refuse_freed_operand();
  l.read = Bytes(r.read_bytes >= 0 ? r.read_bytes : traffic.read);
  l.written = Bytes(traffic.written);
  l.flops = r.flops >= 0 ? Flops(r.flops) : flops_of(r.op, l.dims);
  require_countable(config_, l);
  if (options_.executable) name_operands(*this, r, l);
  if (on_cpu) program_.sync_stream(l.stream);
}

void Host::launch(OpKind op, std::initializer_list<SymTensor> inputs,
                  std::initializer_list<SymTensor> outputs,
                  std::initializer_list<double> attributes) {
  LaunchRequest r;
  r.op = op;
  r.inputs = {inputs.begin(), inputs.size()};
  r.outputs = {outputs.begin(), outputs.size()};
  r.attributes = {attributes.begin(), attributes.size()};
  launch(r);
}

std::uint32_t Host::collective(const Collective& c) {
  Collective with_phase = c;
  with_phase.phase = phase_;
  return program_.collective(with_phase);
}

void Host::copy(const Copy& c) {
  Copy with_phase = c;
  with_phase.phase = phase_;
  with_phase.stream = stream_;
  program_.copy(with_phase);
  if (c.blocks_host) program_.sync_stream(stream_);
}

void Host::read_back(const SymTensor& t) {
  Copy c;
  c.direction = CopyDirection::kDeviceToHost;
  c.bytes = Bytes(t->bytes());
  c.source = id_of(t);
  c.blocks_host = true;
  copy(c);
}

SymTensor Host::cast(const SymTensor& t, DType dtype, BufferCategory category, UnitId unit) {
  if (t->dtype == dtype) return t;
  SymTensor y = empty(t->shape, dtype, category, unit);
  if (!is_contiguous(*t)) {  // to() preserves the strides of a dense tensor.
    std::int64_t extent = 1;
    for (int d = 0; d < t->shape.rank; ++d)
      extent += (t->shape[d] - 1) * t->stride[static_cast<std::size_t>(d)];
    if (extent == t->numel) y->stride = t->stride;
  }
  launch(OpKind::kCopy, {t}, {y});
  return y;
}

SymTensor Host::pointer_table(std::int64_t bytes) {
  SymTensor t = empty({bytes}, DType::kUInt8, BufferCategory::kWorkspace);
  Copy c;
  c.bytes = Bytes(bytes);
  copy(c);
  return t;
}

}  // namespace foreshard
