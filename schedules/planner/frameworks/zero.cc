#include "schedules/planner/frameworks/zero.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "schedules/planner/clip.h"

namespace foreshard::zero {

std::unique_ptr<Framework> make_zero(const ParallelConfig& config, Extras extras) {
  if (config.offload != OffloadKind::kNone) {
    throw InputError(Issue{"", "offload", "offload cannot be planned with ZeRO", "none"});
  }
  if (config.replicate > 1 && config.shard > 1) {
    throw InputError(Issue{"", "replicate", "ZeRO shards over all ranks", "shard alone"});
  }
  if (config.framework == FrameworkKind::kZero3) return make_zero3(config, std::move(extras));
  return make_zero12(config, std::move(extras));
}

Zero::Zero(const ParallelConfig& config, Extras extras)
    : config_(config), options_(config.zero), extras_(std::move(extras)), world_(config.world()),
      dtype_(config.precision.param.value_or(config.model_dtype)) {}

void Zero::begin_micro_batch(Host&, std::int64_t index, bool) {
  micro_ = index;
  boundary_ = index + 1 == config_.accumulate;
}

void Zero::before_model(Host& host, bool training) {
  if (training) throughput_timer(host);
}

void Zero::throughput_timer(Host& host) {
  if (step_ >= extras_.timer_from_step) sync_device(host, "throughput_timer");
}

void Zero::make_parameters(Host& host, int broadcasts) {
  group_ = host.add_group("shard", world_, 1);
  rank_ = host.options().rank;
  host.run_backward_on_one_stream();   // Gradient hooks are made on the compute stream, gathers or not.
  std::vector<LocalParameter> whole;
  materialize_whole(host, whole);
  whole.clear();
  ids_ = parameter_order(host.model());
  for (const ParameterId id : ids_) {
    const bool trainable = host.model().at(id).trainable;
    SymTensor t = host.cast(host.parameter(id), dtype_, BufferCategory::kParameter);
    host.set_requires_grad(t, trainable);
    host.program().program().parameters[id.value].dtype = dtype_;
    host.program().program().parameters[id.value].local = host.id_of(t);
    host.set_parameter(id, std::move(t));
    if (trainable) trainable_.push_back(id);
  }
  for (int i = 0; i < broadcasts; ++i) {
    for (const ParameterId id : ids_) {
      const SymTensor bytes = host.view_as(host.parameter(id), {host.parameter(id)->numel});
      collective(host, CollectiveKind::kBroadcast, bytes, bytes, 0);
    }
  }
}

std::string Zero::stream_name(StreamIndex s) const {
  if (s == 0) return "compute";
  return s == gather_stream_ ? "all_gather" : "reduce";
}

void Zero::collective(Host& host, CollectiveKind kind, const SymTensor& input, const SymTensor& output, int root,
                      ReduceOp op) {
  Collective c;
  c.kind = kind;
  c.op = op;
  c.dtype = output->dtype;
  c.stream = host.stream();
  c.group = group_;
  c.input = host.id_of(input);
  c.output = host.id_of(output);
  c.bytes = Bytes(std::max(input->bytes(), output->bytes()));
  c.root = std::max(root, 0);
  host.collective(c);
  // Construction sends parameters as bytes.
  const bool raw = kind == CollectiveKind::kBroadcast && is_floating(output->dtype);
  emit({.kind = EventKind::kCollective, .number = root, .cause = cause_, .collective = kind, .in_bytes = input->bytes(),
        .out_bytes = output->bytes(), .group_size = world_, .dtype = raw ? DType::kUInt8 : output->dtype,
        .stream = stream_name(host.stream())});
}

void Zero::wait(Host& host, StreamIndex stream, StreamIndex other) {
  if (stream == other) return;
  host.wait_stream(stream, other);
  emit({.kind = EventKind::kWait, .stream = stream_name(stream), .on = stream_name(other)});
}

void Zero::sync_device(Host& host, const std::string& cause) {
  host.program().sync_device();
  emit({.kind = EventKind::kHostSync, .cause = cause, .on = "device"});
}

SymTensor Zero::flat_view(Host& host, const SymTensor& t, std::int64_t offset, std::int64_t numel) {
  return host.view_as(t, {numel}, t->offset + offset);
}

SymTensor Zero::flatten(Host& host, const TensorList& parts, BufferCategory category, std::int64_t padding) {
  std::int64_t numel = padding;
  for (const SymTensor& p : parts) numel += p->numel;
  TensorList all = parts;
  const DType dtype = parts.empty() ? dtype_ : parts[0]->dtype;
  if (padding > 0) {
    all.push_back(host.empty({padding}, dtype, category));
    host.launch(OpKind::kFill, {}, {all.back()}, {0.0});
  }
  const TensorList out{host.empty({numel}, dtype, category)};
  launch_lists(host, OpKind::kCat, {&all}, {&out}, {0.0});
  return out[0];
}

SymTensor Zero::global_norm(Host& host, const TensorList& gradients, DType dtype) {
  SymTensor square = host.empty({1}, dtype, BufferCategory::kClipTemporary);
  if (gradients.empty()) {
    host.launch(OpKind::kFill, {}, {square}, {0.0});
  } else {
    SymTensor own;
    {
      TensorList norms = foreach_norms(host, gradients);
      own = vector_norm(host, stack_scalars(host, norms));
    }
    own = host.cast(host.view_as(own, {1}, own->offset), dtype, BufferCategory::kClipTemporary);
    host.launch(OpKind::kPow, {own}, {square}, {2.0});
  }
  const std::string before = std::exchange(cause_, "grad_norm");
  collective(host, CollectiveKind::kAllReduce, square, square, -1, ReduceOp::kSum);
  cause_ = before;
  SymTensor norm = host.empty(Shape(), DType::kFloat32, BufferCategory::kClipTemporary);
  const SymTensor wide = host.cast(square, DType::kFloat32, BufferCategory::kClipTemporary);
  host.launch(OpKind::kSqrt, {host.view_as(wide, Shape(), wide->offset)}, {norm});
  Copy down;
  down.direction = CopyDirection::kDeviceToHost;
  down.bytes = Bytes(norm->bytes());
  down.source = host.id_of(norm);
  down.blocks_host = true;
  host.copy(down);
  return norm;
}

}  // namespace foreshard::zero
