// What the host issues to the device: launches with their operands and traffic, collectives,
// copies, and what it reads back.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "models/ops/op_flops.h"
#include "schedules/planner/host/block_template.h"
#include "schedules/planner/host/host.h"
#include "schedules/planner/host/host_impl.h"
#include "schedules/planner/host/host_refusal.h"

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
