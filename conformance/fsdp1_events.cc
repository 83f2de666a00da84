#include "conformance/fsdp1_events.h"

#include "conformance/event_log_check.h"
#include "core/enum_names.h"

namespace foreshard {
namespace {

using fsdp1::Event;
using fsdp1::EventKind;

const char* text_of(fsdp1::FlatBuffer b) {
  constexpr const char* names[] = {"none", "mp_shard", "full", "full_prec", "grad"};
  static_assert(std::size(names) == kEnumerators<fsdp1::FlatBuffer>);
  return names[static_cast<int>(b)];
}

const char* text_of(fsdp1::UnshardCause c) {
  constexpr const char* names[] = {"fwd", "bwd", "fwd_prefetch", "bwd_prefetch"};
  static_assert(std::size(names) == kEnumerators<fsdp1::UnshardCause>);
  return names[static_cast<int>(c)];
}

std::string text_of(DType d) { return std::string(name_of(d)); }

}  // namespace

void Fsdp1Events::begin_step(std::int64_t step) {
  pushed_.clear();
  add({{"ev", "step_begin"}, {"step", step}});
}

void Fsdp1Events::on_decision(const Decision& d) {
  const bool forward = d.kind == DecisionKind::kModuleForwardBegin;
  if (!forward && d.kind != DecisionKind::kModuleBackwardBegin) return;
  Json event;
  event["ev"] = forward ? "fwd_begin" : "bwd_begin";
  event["module"] = d.parameter.valid() ? model_.at(d.parameter).name : model_.at(d.module).name;
  if (d.flag) event["recompute"] = true;
  add(std::move(event));
}

Json Fsdp1Events::named(const std::string& name, const Event& e) const {
  Json event;
  event["ev"] = name;
  if (e.unit >= 0) event["unit"] = units_.at(static_cast<std::size_t>(e.unit)).name;
  return event;
}

Json Fsdp1Events::hook(const Event& e) const {
  switch (e.kind) {
    case EventKind::kPreForward:
    case EventKind::kPostForward: {
      Json event = named(e.kind == EventKind::kPreForward ? "pre_forward" : "post_forward", e);
      if (e.flag) event["recompute"] = true;
      return event;
    }
    case EventKind::kPreBackward:
      return named("pre_backward", e);
    case EventKind::kPostBackwardReshardOnly:
      return named("post_backward_reshard_only", e);
    case EventKind::kPostBackward: {
      Json event = named("post_backward", e);
      event["grad_bytes"] = e.bytes;
      if (e.bytes > 0) event["dtype"] = text_of(e.dtype);
      return event;
    }
    case EventKind::kFinalCallback:
      return {{"ev", "final_callback"}};
    case EventKind::kStreams: {
      const std::int64_t high = e.number;
      return {{"ev", "streams"},
              {"priority",
               {{"unshard", high},
                {"post_backward", high},
                {"pre_unshard", high},
                {"all_reduce", e.number2}}}};
    }
    default:
      return {{"ev", "lazy_init_end"}};
  }
}

Json Fsdp1Events::storage(const Event& e) const {
  Json event;
  switch (e.kind) {
    case EventKind::kUnshard:
      event = named("unshard", e);
      event["cause"] = text_of(e.cause);
      return event;
    case EventKind::kReshard:
      event = named("reshard", e);
      event["free"] = e.flag;
      return event;
    case EventKind::kAllocate:
      event = named("alloc", e);
      event["bytes"] = e.bytes;
      break;
    case EventKind::kFree:
      event = named("free", e);
      break;
    default:
      event = named("record_stream", e);
  }
  event["buffer"] = text_of(e.buffer);
  event["stream"] = e.stream;
  return event;
}

Json Fsdp1Events::reduction(const Event& e) const {
  Json event;
  switch (e.kind) {
    case EventKind::kReduceInput:
      event = named("rs_input", e);
      event["numel"] = e.numel;
      event["padded_numel"] = e.numel2;
      event["dtype"] = text_of(e.dtype);
      break;
    case EventKind::kDivide:
      event = named("div", e);
      event["bytes"] = e.bytes;
      event["by"] = e.factor;
      break;
    case EventKind::kCast:
      event = named("cast", e);
      event["numel"] = e.numel;
      event["to"] = text_of(e.dtype);
      break;
    case EventKind::kSaveGradient:
      event = named("save_grad", e);
      event["numel"] = e.numel;
      event["accumulate"] = e.flag;
      break;
    default:
      event = named("d2h", e);
      event["bytes"] = e.bytes;
      event["dtype"] = text_of(e.dtype);
  }
  event["stream"] = e.stream;
  return event;
}

Json Fsdp1Events::collective(const Event& e) const {
  Json event = named(name_in_recordings(e.collective), e);
  event["in_bytes"] = e.bytes;
  event["out_bytes"] = e.bytes2;
  event["dtype"] = text_of(e.dtype);
  event["group_size"] = e.number;
  event["group"] = e.group;
  event["stream"] = e.stream;
  return event;
}

/// "F3:layers.2": third push of this step; "prev:layers.2": pushed in an earlier one.
std::string Fsdp1Events::limit_name(const Event& e) const {
  const std::string& unit = units_.at(static_cast<std::size_t>(e.unit)).name;
  const auto it = pushed_.find(e.number);
  return (it == pushed_.end() ? "prev" : "F" + std::to_string(it->second)) + ":" + unit;
}

Json Fsdp1Events::limit(const Event& e) {
  const bool push = e.kind == EventKind::kLimitPush;
  if (push) pushed_.emplace(e.number, pushed_.size() + 1);
  return {
      {"ev", push ? "limit_push" : "limit_pop"}, {"event", limit_name(e)}, {"queue", e.number2}};
}

void Fsdp1Events::on_event(const Event& e) {
  switch (e.kind) {
    case EventKind::kLimitPush:
    case EventKind::kLimitPop:
      return add(limit(e));
    case EventKind::kHostSync:
      return add({{"ev", "cpu_sync"}, {"on", e.on.empty() ? limit_name(e) : e.on}});
    case EventKind::kWait:
      return add({{"ev", "wait"}, {"stream", e.stream}, {"on", e.on}});
    case EventKind::kCollective:
      return add(collective(e));
    case EventKind::kUnshard:
    case EventKind::kReshard:
    case EventKind::kAllocate:
    case EventKind::kFree:
    case EventKind::kRecordStream:
      return add(storage(e));
    case EventKind::kReduceInput:
    case EventKind::kDivide:
    case EventKind::kCast:
    case EventKind::kSaveGradient:
    case EventKind::kToHost:
      return add(reduction(e));
    default:
      return add(hook(e));
  }
}

}  // namespace foreshard
