#include "conformance/fsdp2_events.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "conformance/event_log_check.h"
#include "core/enum_names.h"
#include "core/json.h"

namespace foreshard {
namespace {

const char* status_text(DecisionStatus s) {
  constexpr const char* names[] = {
      "none",    "issue", "local", "pending",      "already",
      "skipped", "free",  "kept",  "post_forward", "from_post_forward"};
  static_assert(std::size(names) == kEnumerators<DecisionStatus>);
  return names[static_cast<int>(s)];
}

const char* op_text(ReduceOp op) {
  constexpr const char* names[] = {"NONE", "SUM", "AVG", "PREMUL_SUM", "MAX"};
  static_assert(std::size(names) == kEnumerators<ReduceOp>);
  return names[static_cast<int>(op)];
}

Json sorted_names(std::span<const DType> dtypes) {
  std::set<std::string> names;
  for (const DType d : dtypes) names.insert(std::string(name_of(d)));
  return Json(names);
}

Json as_array(std::span<const std::uint32_t> indices) {
  Json list = Json::array();
  for (const std::uint32_t i : indices) list.push_back(i);
  return list;
}

}  // namespace

Fsdp2Events::Fsdp2Events(const Model& model) : model_(model), events_(Json::array()) {}

void Fsdp2Events::add(Json event) { events_.push_back(std::move(event)); }

std::string Fsdp2Events::unit(UnitId id) const {
  return unit_name(model_, framework_->group_of(id));
}

std::string Fsdp2Events::root(const Decision& d) const {
  return state_name(model_, *framework_->wrapping().states()[static_cast<std::size_t>(d.number)]);
}

void Fsdp2Events::add_unit_event(const char* name, const Decision& d, Json rest) {
  Json event;
  event["ev"] = name;
  event["unit"] = unit(d.unit);
  for (const auto& [key, value] : rest.items()) event[key] = value;
  add(std::move(event));
}

void Fsdp2Events::add_module_event(const char* name, const Decision& d) {
  Json event;
  event["ev"] = name;
  event["module"] = model_.at(d.module).name;
  if (d.flag) event["recompute"] = true;
  add(std::move(event));
}

void Fsdp2Events::add_collective(const Decision& d) {
  const Collective& c = host_->program().program().collectives[d.collective];
  const std::int64_t part = d.bytes, whole = c.bytes.value;
  Json event;
  event["ev"] = name_in_recordings(c.kind);
  event["unit"] = d.unit.valid() ? Json(unit(d.unit)) : Json();
  event["in_bytes"] = c.kind == CollectiveKind::kAllGather ? part : whole;
  event["out_bytes"] = c.kind == CollectiveKind::kReduceScatter ? part : whole;
  event["dtype"] = std::string(name_of(c.dtype));
  event["group_size"] = host_->groups()[c.group.value].size;
  if (c.op != ReduceOp::kNone) event["op"] = op_text(c.op);
  if (c.op == ReduceOp::kPreMulSum) event["premul"] = c.factor;
  if (d.flag) event["async"] = true;
  if (d.bytes2 != 0) event["cast_bytes"] = d.bytes2;
  event["phase"] = recomputing_ > 0 ? "recompute" : phase;
  event["step"] = step;
  event["micro"] = micro;
  add(std::move(event));
}

void Fsdp2Events::on_gathering(const Decision& d) {
  Json rest = Json::object();
  switch (d.kind) {
    case DecisionKind::kUnshard:
      rest["status"] = status_text(d.status);
      return add_unit_event("unshard", d, rest);
    case DecisionKind::kCopyOut:
      rest["bytes"] = d.bytes;
      if (d.bytes2 != 0) rest["temp_bytes"] = d.bytes2;
      if (d.flag) rest["frees_post_forward_shard"] = true;
      return add_unit_event("copy_out", d, rest);
    case DecisionKind::kFreeGatherOutput:
      rest["bytes"] = d.bytes;
      if (d.flag) rest["reason"] = "mistargeted";
      return add_unit_event("free_ag_output", d, rest);
    case DecisionKind::kReshard:
      rest["status"] = status_text(d.status);
      if (d.status == DecisionStatus::kPostForward) rest["bytes"] = d.bytes;
      return add_unit_event("reshard", d, rest);
    case DecisionKind::kPrefetch:
      rest["pass"] = d.flag ? "backward" : "forward";
      return add_unit_event("prefetch", d, rest);
    default:
      return;
  }
}

void Fsdp2Events::on_gradients(const Decision& d) {
  Json rest = Json::object();
  rest["params"] = as_array(d.indices);
  if (d.kind == DecisionKind::kGradientsKept) {
    rest["bytes"] = d.bytes;
    rest["dtypes"] = sorted_names(d.dtypes);
    return add_unit_event("grads_kept", d, rest);
  }
  rest["grad_dtypes"] = sorted_names(d.dtypes);
  rest["grad_bytes"] = d.bytes;
  rest["dtype"] = std::string(name_of(d.dtype));
  rest["bytes"] = d.bytes2;
  rest["world"] = framework_->group_of(d.unit).mesh->shard;
  add_unit_event("rs_copy_in", d, rest);
}

void Fsdp2Events::on_reduced(const Decision& d) {
  Json rest = Json::object();
  if (d.pre_divide != 0) rest["pre_div"] = d.pre_divide;
  if (d.post_divide != 0) rest["post_div"] = d.post_divide;
  if (d.flag2) rest["pending_all_reduce"] = true;
  if (d.bytes != 0) rest["cast_bytes"] = d.bytes;
  if (d.flag) rest["accumulated"] = true;
  add_unit_event("reduced", d, rest);
}

void Fsdp2Events::on_decision(const Decision& d) {
  const auto named = [&](const char* name, const char* key, Json value) {
    Json event;
    event["ev"] = name;
    if (key != nullptr) event[key] = std::move(value);
    add(std::move(event));
  };
  Json bytes = Json::object();
  bytes["bytes"] = d.bytes;
  switch (d.kind) {
    case DecisionKind::kModuleForwardBegin:
      return add_module_event("fwd_begin", d);
    case DecisionKind::kModuleForwardEnd:
      return add_module_event("fwd_end", d);
    case DecisionKind::kModuleBackwardBegin:
      return add_module_event("bwd_begin", d);
    case DecisionKind::kModuleBackwardEnd:
      return add_module_event("bwd_end", d);
    case DecisionKind::kRecomputeBegin:
      ++recomputing_;
      return named("recompute_begin", nullptr, {});
    case DecisionKind::kRecomputeEnd:
      --recomputing_;
      return named("recompute_end", nullptr, {});
    case DecisionKind::kRootPreForward:
      return named("root_pre_forward", "root", root(d));
    case DecisionKind::kFinalCallbackBegin:
      return named("final_callback_begin", "root", root(d));
    case DecisionKind::kFinalCallbackEnd:
      return named("final_callback_end", "root", root(d));
    case DecisionKind::kFinalize:
      return named("finalize", "root", root(d));
    case DecisionKind::kUnshard:
    case DecisionKind::kCopyOut:
    case DecisionKind::kFreeGatherOutput:
    case DecisionKind::kReshard:
    case DecisionKind::kPrefetch:
      return on_gathering(d);
    case DecisionKind::kPreBackward:
      return add_unit_event("pre_backward", d, Json::object());
    case DecisionKind::kPostBackward: {
      Json rest = Json::object();
      rest["by"] = d.flag ? "final_callback" : "autograd";
      return add_unit_event("post_backward", d, rest);
    }
    case DecisionKind::kGradientsKept:
    case DecisionKind::kReduceCopyIn:
      return on_gradients(d);
    case DecisionKind::kReduced:
      return on_reduced(d);
    case DecisionKind::kFreeReduceInput:
      return add_unit_event("free_rs_input", d, bytes);
    case DecisionKind::kFreeAllReduceBuffer:
      return add_unit_event("free_ar_buffer", d, bytes);
    case DecisionKind::kAllReduceHook:
      return add_unit_event("all_reduce_hook", d, bytes);
    case DecisionKind::kCollective:
      return add_collective(d);
    default:
      return;  // Steps and micro-batches are the script's.
  }
}

}  // namespace foreshard
