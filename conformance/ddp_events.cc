#include "conformance/ddp_events.h"

#include <string>

#include "conformance/event_log_check.h"

namespace foreshard {
namespace {}  // namespace

void DdpEvents::on_decision(const Decision& d) {
  switch (d.kind) {
    case DecisionKind::kModuleForwardBegin:
      return add_module_event("fwd_begin", d);
    case DecisionKind::kModuleBackwardBegin:
      return add_module_event("bwd_begin", d);
    case DecisionKind::kGradientReady:
      return add({{"ev", "grad_ready"}, {"param", model_.at(d.parameter).name}});
    case DecisionKind::kCollective:
      return add_collective(d);
    case DecisionKind::kBucketReady:
      return add_bucket(d);
    case DecisionKind::kBackwardBegin:
      return add({{"ev", "backward_begin"}});
    case DecisionKind::kBackwardEnd:
      return add({{"ev", "backward_end"}});
    default:
      return;
  }
}

void DdpEvents::add_module_event(const char* name, const Decision& d) {
  Json event;
  event["ev"] = name;
  event["module"] = d.parameter.valid() ? model_.at(d.parameter).name : model_.at(d.module).name;
  if (d.flag) event["recompute"] = true;
  add(std::move(event));
}

void DdpEvents::add_collective(const Decision& d) {
  const Collective& c = host_->program().program().collectives[d.collective];
  Json event;
  event["ev"] = name_in_recordings(c.kind);
  event["in_bytes"] = d.bytes;
  event["out_bytes"] = d.bytes2;
  event["dtype"] = std::string(name_of(c.dtype));
  event["group_size"] = host_->groups()[c.group.value].size;
  if (c.kind == CollectiveKind::kBroadcast) event["root"] = c.root;
  add(std::move(event));
}

void DdpEvents::begin_micro_batch(std::int64_t step, std::int64_t micro) {
  backwards_.push_back({{"step", step}, {"micro", micro}, {"launches", Json::array()}});
}

void DdpEvents::add_bucket(const Decision& d) {
  const ShardUnit& unit = host_->program().program().units[d.unit.value];
  Json launch;
  launch["bucket"] = d.number;
  launch["last"] = d.flag;
  launch["bytes"] = d.bytes;
  launch["dtype"] = std::string(name_of(unit.reduce_dtype));
  launch["params"] = unit.parameters;
  backwards_.back()["launches"].push_back(std::move(launch));
}

Json DdpEvents::buckets() const {
  Json result = Json::array();
  for (const Json& backward : backwards_) {
    if (result.empty() || result.back()["launches"] != backward["launches"])
      result.push_back(backward);
  }
  return result;
}

}  // namespace foreshard
