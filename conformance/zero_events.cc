#include "conformance/zero_events.h"

#include "conformance/event_log_check.h"
#include "conformance/zero_case.h"

namespace foreshard {
namespace {}  // namespace

std::string ZeroEvents::name(ModuleId m) const {
  const std::string& full = model_.at(m).name;
  return full.substr(0, full.find(kCheckpointWrapper));
}

void ZeroEvents::on_decision(const Decision& d) {
  const bool forward = d.kind == DecisionKind::kModuleForwardBegin;
  if (!forward && d.kind != DecisionKind::kModuleBackwardBegin) return;
  Json event;
  event["ev"] = forward ? "fwd_begin" : "bwd_begin";
  event["module"] = d.parameter.valid() ? model_.at(d.parameter).name : name(d.module);
  if (d.flag) event["recompute"] = true;
  add(std::move(event));
}

Json ZeroEvents::names(const zero::Event& e) const {
  Json list = Json::array();
  for (const ParameterId id : e.parameters) list.push_back(model_.at(id).name);
  return list;
}

Json ZeroEvents::collective(const zero::Event& e) const {
  Json event;
  event["ev"] = name_in_recordings(e.collective);
  event["in_bytes"] = e.in_bytes;
  event["out_bytes"] = e.out_bytes;
  event["dtype"] = std::string(name_of(e.dtype));
  event["group_size"] = e.group_size;
  if (e.number >= 0) event["root"] = e.number;
  event["stream"] = e.stream;
  if (!e.cause.empty()) event["cause"] = e.cause;
  return event;
}

void ZeroEvents::on_event(const zero::Event& e) {
  using zero::EventKind;
  const char* const pass = e.forward ? "forward" : "backward";
  Json event;
  switch (e.kind) {
    case EventKind::kCollective:
      event = collective(e);
      break;
    case EventKind::kWait:
      event = {{"ev", "wait"}, {"stream", e.stream}, {"on", e.on}};
      if (e.cause == kEngineTimers) event["cause"] = e.cause;
      break;
    case EventKind::kHostSync:
      event = {{"ev", "cpu_sync"}, {"on", e.on}};
      if (e.on == "device" && !e.cause.empty()) event["cause"] = e.cause;
      break;
    case EventKind::kBucketAdd:
      event = {{"ev", "bucket_add"}, {"param", names(e).at(0)}, {"numel", e.numel}};
      break;
    case EventKind::kReduceBucket:
      event = {{"ev", "reduce_bucket"}, {"params", names(e)}, {"numel", e.numel}};
      if (e.number >= 0) event["buffer"] = e.number;
      break;
    case EventKind::kSubGroupStep:
      event = {{"ev", "sub_group_step"}, {"group", e.number}};
      break;
    case EventKind::kTrace:
      event = {{"ev", "trace"}, {"mode", e.cause}};
      break;
    case EventKind::kTraceInvalidated:
      event = {{"ev", "trace_invalidated"}};
      break;
    case EventKind::kFetch:
      event = {{"ev", "fetch"}, {"module", name(e.module)}, {"pass", pass}};
      break;
    case EventKind::kGather:
      event = {{"ev", "gather"}, {"cause", e.cause}, {"params", names(e)}, {"numel", e.numel}};
      break;
    case EventKind::kRelease:
      event = {{"ev", "release"}, {"params", names(e)}, {"module", name(e.module)}, {"pass", pass}};
      break;
    case EventKind::kReleaseAll:
      event = {{"ev", "release_all"}, {"params", names(e)}};
      break;
  }
  add(std::move(event));
}

}  // namespace foreshard
