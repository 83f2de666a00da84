#include <string>

#include "core/json.h"
#include "report/answer.h"

namespace foreshard {
namespace {

Json memory_json(const AnswerMemory& m) {
  Json out;
  out["allocated_peak_bytes"] = m.allocated_peak.value;
  out["reserved_peak_bytes"] = m.reserved_peak.value;
  out["device_peak_bytes"] = m.device_peak.value;
  out["device_capacity_bytes"] = m.capacity.value;
  out["context_bytes"] = m.context.value;
  out["communicator_bytes"] = m.communicators.value;
  out["host_peak_bytes"] = m.host_peak.value;
  out["host_node_peak_bytes"] = m.host_node_peak.value;
  out["host_capacity_bytes"] = m.host_capacity.value > 0 ? Json(m.host_capacity.value) : Json();
  out["allocator_retries"] = m.retries;
  out["allocator_retries_total"] = m.retries_total;
  out["borderline"] = m.borderline();
  out["tight"] = m.tight;
  out["fits"] = m.fits;
  out["fits_device"] = m.fits_device;
  out["fits_host"] = m.fits_host;
  out["peak_at"] = m.peak_at;
  if (!m.out_of_memory.empty()) out["out_of_memory"] = m.out_of_memory;
  if (m.runs_with) out["runs_with_bytes"] = m.runs_with->value;
  out["owners"] = Json::array();
  for (const AnswerOwner& o : m.owners)
    out["owners"].push_back({{"category", o.category}, {"unit", o.unit}, {"bytes", o.bytes.value}});
  return out;
}

/// Names and values as a --config file has them: numbers without quotes.
Json configuration_json(const StepAnswer& a) {
  Json out = Json::object();
  for (const auto& [name, value] : a.configuration) {
    const bool digits = !value.empty() && value.size() <= 18 &&
                        value.find_first_not_of("0123456789") == std::string::npos;
    out[name] = digits ? Json(std::stoll(value)) : Json(value);
  }
  return out;
}

Json row_of(const AnswerCommunication& c) {
  return {{"kind", c.kind},
          {"group", c.group},
          {"group_size", c.group_size},
          {"count", c.count},
          {"bytes", c.bytes.value},
          {"busy_s", to_seconds(c.busy)},
          {"exposed_s", to_seconds(c.exposed)},
          {"sharing_s", to_seconds(c.shared)},
          {"limited_by", c.limited_by}};
}

Json row_of(const AnswerShare& s) {
  return {{"resource", s.resource}, {"s", to_seconds(s.time)}};
}

Json row_of(const AnswerSuggestion& s) {
  return {{"change", s.change},
          {"step_time_s", to_seconds(s.step_time)},
          {"fits", s.fits},
          {"memory_change_bytes", s.memory_change.value},
          {"tokens_per_s_per_gpu", s.tokens_per_s_per_gpu},
          {"samples_per_s_per_gpu", s.samples_per_s_per_gpu},
          {"speedup", s.speedup}};
}

Json row_of(const AnswerProvenance& p) {
  return {{"quantity", p.quantity}, {"value", p.value}, {"source", p.source}, {"kind", p.kind}};
}

Json row_of(const AnswerUncertainty& u) {
  return {{"quantity", u.quantity}, {"sd", u.sd}, {"effect", u.effect}, {"source", u.source}};
}

template <typename Rows>
Json rows_of(const Rows& rows) {
  Json out = Json::array();
  for (const auto& row : rows) out.push_back(row_of(row));
  return out;
}

}  // namespace

Json to_json(const StepAnswer& a) {
  Json out;
  out["configuration"] = configuration_json(a);
  out["model"] = a.model;
  out["machines"] = a.machines;
  out["framework"] = a.framework;
  out["step_time_s"] = to_seconds(a.step_time);
  if (a.step_range) {
    out["step_time_p10_s"] = to_seconds(a.step_range->first);
    out["step_time_p90_s"] = to_seconds(a.step_range->second);
  }
  out["tokens_per_s_per_gpu"] = a.tokens_per_s_per_gpu;
  out["samples_per_s_per_gpu"] = a.samples_per_s_per_gpu;
  out["mfu"] = a.mfu;
  out["hfu"] = a.hfu;
  out["peak"] = a.peak;
  out["breakdown"] = {{"compute_s", to_seconds(a.compute)},
                      {"exposed_communication_s", to_seconds(a.exposed_communication)},
                      {"exposed_host_s", to_seconds(a.exposed_host)},
                      {"optimizer_s", to_seconds(a.optimizer)},
                      {"idle_s", to_seconds(a.idle)}};
  out["interference_s"] = to_seconds(a.interference);
  out["communication"] = rows_of(a.communication);
  out["memory"] = memory_json(a.memory);
  out["critical_path"] = rows_of(a.critical_path);
  out["suggestions"] = rows_of(a.suggestions);
  out["remarks"] = a.remarks;
  out["not_modelled"] = a.not_modelled;
  out["provenance"] = rows_of(a.provenance);
  out["uncertainty"] = rows_of(a.uncertainty);
  out["outside_calibration"] = a.outside;
  return out;
}

}  // namespace foreshard
