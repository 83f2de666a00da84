#include "schedules/planner/frameworks/zero.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "schedules/planner/frameworks/zero_host_time.h"

namespace foreshard::zero {
namespace {

/// Any power of two keeps values exact; DeepSpeed starts at 2^16 and settles where nothing
/// overflows.
constexpr double kLossScale = 1024;

void check(const ParallelConfig& c) {
  IssueList issues("configuration");
  const ZeroOptions& z = c.zero;
  const bool stage3 = c.framework == FrameworkKind::kZero3;
  if (c.replicate > 1 && c.shard > 1)
    issues.add("replicate", "ZeRO shards over all ranks", "shard alone");
  const bool optimizer = c.offload == OffloadKind::kOptimizer || c.offload == OffloadKind::kBoth;
  if (z.offload_ratio < 0 || z.offload_ratio > 1) {
    issues.add("zero.offload_ratio", "is " + std::to_string(z.offload_ratio), "0 to 1");
  } else if (z.offload_ratio < 1 && !(stage3 && optimizer)) {
    issues.add("zero.offload_ratio", "splits the offloaded optimizer of stage 3",
               "1, or zero3 with offload of the optimizer");
  }
  if (z.hpz_partition_size < 1 || c.world() % z.hpz_partition_size != 0) {
    issues.add("zero.hpz_partition_size", "is " + std::to_string(z.hpz_partition_size),
               "a divisor of the number of ranks");
  }
  const std::int64_t node = z.gpus_per_node;
  if (z.quantised_gradients && (node < 1 || (c.world() > node && c.world() % node != 0))) {
    issues.add("zero.gpus_per_node", "is " + std::to_string(node),
               "a divisor of the number of ranks: quantised gradients are reduced in nodes first");
  }
  const DType sent = z.communication_dtype.value_or(c.precision.param.value_or(c.model_dtype));
  if (z.quantised_gradients && sent != DType::kFloat16) {
    issues.add("zero.quantised_gradients",
               "reads gradients as fp16, but they are " + std::string(name_of(sent)),
               "a reduce dtype of fp16 (DeepSpeed takes the bits of others for fp16)");
  }
  if (z.quantised_gradients && !z.reduce_scatter) {
    issues.add("zero.quantised_gradients", "needs reduce_scatter", "zero.reduce_scatter: yes");
  }
  // engine.py, _do_optimizer_sanity_check: another optimizer, with fp32 gradients of the whole model.
  if (c.framework == FrameworkKind::kZero1 && !optimizer &&
      c.precision.param.value_or(c.model_dtype) == DType::kBFloat16 &&
      z.grad_accum_dtype == DType::kFloat32) {
    issues.add("zero.grad_accum_dtype",
               "is float32: of bf16 in stage 1 DeepSpeed makes its BF16_Optimizer, which is not "
               "planned",
               "stage 2, or no dtype of its own");
  }
  if (!stage3 && z.allgather_bucket_size % 2 != 0) {
    issues.add("zero.allgather_bucket_size", "is " + std::to_string(z.allgather_bucket_size),
               "an even number");
  }
  issues.throw_if_any();
}

}  // namespace

std::unique_ptr<Framework> make_zero(const ParallelConfig& config, Extras extras) {
  check(config);
  if (config.framework == FrameworkKind::kZero3) return make_zero3(config, std::move(extras));
  return make_zero12(config, std::move(extras));
}

Zero::Zero(const ParallelConfig& config, Extras extras)
    : config_(config),
      options_(config.zero),
      extras_(std::move(extras)),
      world_(config.world()),
      offload_optimizer_(config.offload == OffloadKind::kOptimizer ||
                         config.offload == OffloadKind::kBoth),
      offload_parameters_(config.offload == OffloadKind::kParameters ||
                          config.offload == OffloadKind::kBoth),
      dtype_(config.precision.param.value_or(config.model_dtype)),
      loss_scale_(dtype_ == DType::kFloat16 ? kLossScale : 1) {}

void Zero::begin_micro_batch(Host&, std::int64_t index, bool) {
  micro_ = index;
  boundary_ = index + 1 == config_.accumulate;
}

void Zero::before_model(Host& host, bool training) {
  if (training) throughput_timer(host);
  spend(host, kEngineForwardUs);
}

void Zero::throughput_timer(Host& host) {
  if (options_.throughput_timer && step_ >= extras_.timer_from_step)
    sync_device(host, "throughput_timer");
}

/// SynchronizedWallClockTimer.Timer.elapsed: the stream and the host wait for each end event. Only
/// the first that is read waits long.
void Zero::read_timers(Host& host, std::int64_t intervals) {
  if (!options_.wall_clock_breakdown) return;
  const EventId end = host.record_event();
  for (std::int64_t i = 0; i < intervals; ++i) {
    wait_event(host, host.stream(), end);
    sync_event(host, end);
  }
}

/// Forward, backward (whole, inner, reduction) and step have a timer of the micro-batch and one of
/// the whole step. All are read for the caller, then each kind for its own log.
void Zero::end_engine_step(Host& host) {
  throughput_timer(host);
  constexpr std::int64_t kTimers = 5;
  const std::int64_t of_step = kTimers * (micro_ + 1);
  cause_ = "wall_clock";
  read_timers(host, kTimers + of_step + kTimers + (boundary_ ? of_step : 0));
  cause_.clear();
}

void Zero::make_parameters(Host& host, const std::function<void(ParameterId)>& made) {
  group_ = host.add_group("shard", world_, 1);
  rank_ = host.options().rank;
  host.run_backward_on_one_stream();  // Gradient hooks are made on the compute stream, gathers or
                                      // not.
  const Model& model = host.model();
  ids_ = parameter_order(model);
  std::copy_if(ids_.begin(), ids_.end(), std::back_inserter(trainable_),
               [&](ParameterId id) { return model.at(id).trainable; });
  RankProgram& program = host.program().program();
  program.parameters.resize(model.parameters.size());
  std::vector<bool> seen(model.modules.size());
  const auto make = [&](ParameterId id) {
    if (host.parameter(id)) return;
    const ParameterDef& def = model.at(id);
    const Shape shape(std::span<const std::int64_t>(def.shape));
    SymTensor t =
        host.empty(shape, dtype_, BufferCategory::kParameter, {}, host.program().intern(def.name));
    host.launch(OpKind::kInitialize, {}, {t}, {static_cast<double>(id.value)});
    host.set_requires_grad(t, def.trainable);
    ParameterView& view = program.parameters[id.value];
    view.name = def.name;
    view.shape = def.shape;
    view.dtype = dtype_;
    view.trainable = def.trainable;
    view.local = host.id_of(t);
    view.elements = def.numel();
    view.shard_dim = -1;
    host.set_parameter(id, std::move(t));
    if (made) made(id);
  };
  const auto visit = [&](const auto& self, ModuleId m) -> void {
    if (seen[m.value]) return;
    seen[m.value] = true;
    for (const ChildModule& c : model.at(m).children) self(self, c.id);
    for (const OwnedParameter& p : model.at(m).parameters) make(p.id);
    for (std::size_t b = 0; b < model.at(m).buffers.size(); ++b)
      host.buffer(model.at(m), static_cast<std::int64_t>(b));
  };
  visit(visit, ModuleId(0));
}

void Zero::broadcast(Host& host, ParameterId id) {
  const SymTensor bytes = flat_view(host, host.parameter(id), 0, host.parameter(id)->numel);
  collective(host, CollectiveKind::kBroadcast, bytes, bytes, 0);
}

std::vector<double> Zero::loss_factors() const {
  std::vector<double> factors{1.0 / static_cast<double>(config_.accumulate)};
  if (loss_scale_ != 1) factors.push_back(loss_scale_);
  return factors;
}

std::string Zero::stream_name(StreamIndex s) const {
  if (s == 0) return "compute";
  return s == gather_stream_ ? "all_gather" : "reduce";
}

void Zero::collective(Host& host, CollectiveKind kind, const SymTensor& input,
                      const SymTensor& output, int root, ReduceOp op) {
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
  if (!observed()) return;
  const bool raw = kind == CollectiveKind::kBroadcast && is_floating(output->dtype);
  emit({.kind = EventKind::kCollective,
        .number = root,
        .cause = cause_,
        .collective = kind,
        .in_bytes = input->bytes(),
        .out_bytes = output->bytes(),
        .group_size = world_,
        .dtype = raw ? DType::kUInt8 : output->dtype,
        .stream = stream_name(host.stream())});
}

void Zero::collective_in(Host& host, GroupId group, CollectiveKind kind, const SymTensor& input,
                         const SymTensor& output) {
  const GroupId job = std::exchange(group_, group);
  const std::int64_t ranks = std::exchange(world_, host.groups()[group.value].size);
  collective(host, kind, input, output);
  group_ = job;
  world_ = ranks;
}

void Zero::wait(Host& host, StreamIndex stream, StreamIndex other) {
  if (stream == other) return;
  host.wait_stream(stream, other);
  if (observed())
    emit({.kind = EventKind::kWait, .stream = stream_name(stream), .on = stream_name(other)});
}

void Zero::wait_event(Host& host, StreamIndex stream, EventId event) {
  host.wait_event(stream, event);
  emit({.kind = EventKind::kWait, .cause = cause_, .stream = stream_name(stream), .on = "event"});
}

void Zero::sync_device(Host& host, const std::string& cause) {
  host.program().sync_device();
  emit({.kind = EventKind::kHostSync, .cause = cause, .on = "device"});
}

void Zero::sync_event(Host& host, EventId event, const std::string& cause) {
  host.program().sync_event(event);
  if (observed()) emit({.kind = EventKind::kHostSync, .cause = cause, .on = "event"});
}

SymTensor Zero::flat_view(Host& host, const SymTensor& t, std::int64_t offset, std::int64_t numel) {
  return host.view_as(t, {numel}, t->offset + offset);
}

SymTensor Zero::flatten(Host& host, const TensorList& parts, BufferCategory category,
                        std::int64_t padding) {
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

}  // namespace foreshard::zero
