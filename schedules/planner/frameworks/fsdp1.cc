#include "schedules/planner/frameworks/fsdp1.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "schedules/planner/frameworks/fsdp1_wrap.h"

namespace foreshard::fsdp1 {

Fsdp1::Fsdp1(const ParallelConfig& config, Extras extras) : config_(config), extras_(extras) {}
Fsdp1::~Fsdp1() = default;

State* Fsdp1::state_of(ModuleId m) const { return state_of_module_[m.value]; }

/// no_sync() initialises a root that has not run yet.
void Fsdp1::begin_micro_batch(Host&, std::int64_t, bool sync) {
  sync_ = sync;
  if (!sync && !initialized_) lazy_init();
}

/// A rank whose shard is short of elements pads it, which is another request of memory. With
/// original parameters the optimizer holds views, so ranks hold different lists: a hash of the
/// pieces they store. Which parameter a piece belongs to changes no instruction, only its name.
std::uint64_t Fsdp1::rank_class(const Model& model, const ParallelConfig& config,
                                std::int64_t rank) const {
  std::uint64_t hash = 14695981039346656037ULL;
  const auto mix = [&hash](std::int64_t value) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 1099511628211ULL;
  };
  if (!rows_divide_) {
    rows_divide_ =
        !config.fsdp1.use_orig_params &&
        std::all_of(model.parameters.begin(), model.parameters.end(),
                    [&](const ParameterDef& p) { return p.numel() % config.shard == 0; });
  }
  if (*rows_divide_) return 0;  // No shard is padded.
  if (wrapped_.empty()) wrapped_ = wrap_units(model, config);
  for (const Unit& unit : wrapped_) {
    if (!unit.flat || !unit.sharded()) continue;
    const std::int64_t shard_rank = rank % config.shard;
    const std::int64_t missing =
        std::min(unit.flat->shard, (shard_rank + 1) * unit.flat->shard - unit.flat->numel);
    mix(std::max<std::int64_t>(missing, 0));
    if (!config.fsdp1.use_orig_params) continue;
    for (const FlatEntry& e : unit.flat->entries) {
      if (e.is_padding()) continue;
      const FlatLayout::Part part = unit.flat->part_of(e, shard_rank);
      if (part.numel == 0) continue;
      mix(part.numel);
      mix(part.offset);
      mix(e.trainable ? 1 : 0);
    }
  }
  return hash;
}

void Fsdp1::zero_gradients(Host&) {
  for (const LocalParameter& p : local_parameters_) {
    if (p.local) p.local->grad.reset();
  }
}

// ------------------------------------------------------------------------------------------------
// helpers

void Fsdp1::emit(EventKind kind, const State& state, bool flag) {
  emit({.kind = kind, .unit = state.index, .flag = flag});
}

std::string Fsdp1::stream_name(StreamIndex s) const {
  if (s == 0) return "compute";
  if (s == unshard_stream_) return "unshard";
  if (s == pre_unshard_stream_) return "pre_unshard";
  return s == post_backward_stream_ ? "post_backward" : "all_reduce";
}

void Fsdp1::wait(StreamIndex stream, StreamIndex on) {
  host_->wait_stream(stream, on);
  emit({.kind = EventKind::kWait, .stream = stream_name(stream), .on = stream_name(on)});
}

void Fsdp1::record_stream(const State& state, const SymTensor& t, FlatBuffer buffer,
                          StreamIndex stream) {
  const SymStorage& s = *t->storage;
  if (s.buffer.valid() && s.space == MemorySpace::kDevice)
    host_->program().record_stream(s.buffer, stream);
  emit({.kind = EventKind::kRecordStream,
        .unit = state.index,
        .buffer = buffer,
        .stream = stream_name(stream)});
}

void Fsdp1::allocate(const State& state, const SymTensor& t, FlatBuffer buffer) {
  host_->allocate_storage(t);
  emit({.kind = EventKind::kAllocate,
        .unit = state.index,
        .buffer = buffer,
        .bytes = t->bytes(),
        .stream = stream_name(host_->stream())});
}

void Fsdp1::release(const State& state, const SymTensor& t, FlatBuffer buffer) {
  if (!t->storage->buffer.valid()) return;
  host_->free_storage(t);
  emit({.kind = EventKind::kFree,
        .unit = state.index,
        .buffer = buffer,
        .stream = stream_name(host_->stream())});
}

void Fsdp1::collective(const State* state, CollectiveKind kind, const SymTensor& input,
                       const SymTensor& output, GroupId group) {
  Collective c;
  c.kind = kind;
  c.op = kind == CollectiveKind::kAllGather ? ReduceOp::kNone : ReduceOp::kSum;
  c.dtype = output->dtype;
  c.stream = host_->stream();
  c.group = group;
  c.input = host_->id_of(input);
  c.output = host_->id_of(output);
  c.bytes = Bytes(std::max(input->bytes(), output->bytes()));
  if (state != nullptr && state->handle) c.unit = state->handle->unit;
  const std::uint32_t index = host_->collective(c);
  host_->decide({.kind = DecisionKind::kCollective,
                 .unit = c.unit,
                 .collective = index,
                 .bytes = input->bytes()});
  const Group& g = host_->groups()[group.value];
  emit({.kind = EventKind::kCollective,
        .unit = state == nullptr ? -1 : state->index,
        .number = g.size,
        .bytes = input->bytes(),
        .bytes2 = output->bytes(),
        .dtype = output->dtype,
        .collective = kind,
        .group = g.name,
        .stream = stream_name(host_->stream())});
}

/// Host time of the hooks on the reference CPU (docs/host-time.md).
void Fsdp1::spend(const State& state, double us, double us_each) {
  const std::size_t parameters =
      config_.fsdp1.use_orig_params ? state.handle->layout->entries.size() : 0;
  const double ns = 1000 * (us + us_each * static_cast<double>(parameters));
  host_->program().host_work(static_cast<std::int64_t>(ns),
                             host_->program().intern_literal("sharding hooks"));
}

void Fsdp1::cast_floating(std::span<SymTensor> tensors, DType dtype) {
  for (SymTensor& t : tensors) {
    if (t && is_floating(t->dtype)) t = host_->to(t, dtype);
  }
}

namespace {

/// Options of other frameworks that FSDP1 has under another name, or not at all.
void refuse_foreign_options(const ParallelConfig& config) {
  IssueList issues("configuration");
  if (config.reshard.kind == Reshard::Kind::kNo) {
    issues.add("reshard", "is FSDP2's; FSDP1 keeps parameters after forward by its strategy",
               "shard_grad_op, hybrid_shard_zero2");
  }
  if (config.reshard.kind == Reshard::Kind::kGroup) {
    issues.add("reshard", "FSDP1 cannot reshard to a smaller group after forward", "hybrid_shard");
  }
  if (config.offload == OffloadKind::kOptimizer) {
    issues.add("offload", "FSDP1 offloads parameters with their gradients and optimizer states",
               "params or none");
  }
  issues.throw_if_any();
}

}  // namespace

std::unique_ptr<Framework> make_fsdp1(const ParallelConfig& config, Extras extras) {
  refuse_foreign_options(config);
  return std::make_unique<Fsdp1>(config, extras);
}

}  // namespace foreshard::fsdp1
