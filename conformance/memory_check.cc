#include "conformance/memory_check.h"

#include <exception>

#include "conformance/json_compare.h"
#include "conformance/memory_case.h"
#include "core/json.h"
#include "schedules/planner/planner.h"
#include "study/memory_replay.h"

namespace foreshard {
namespace {

/// The model's buffers: what persists and is there before the first step.
void place_buffers_on_host(RankProgram& program) {
  for (std::uint32_t i = 0; i < program.steps.front().begin; ++i) {
    const Instruction& op = program.instructions[i];
    if (op.kind != InstructionKind::kAlloc) continue;
    Buffer& b = program.buffers[op.id];
    if (b.category == BufferCategory::kPersistent) b.space = MemorySpace::kHostPageable;
  }
}

MemoryReplay run(const MemoryCase& c) {
  PlanOptions plan_options;
  plan_options.steps = c.steps;
  plan_options.ranks = {c.rank};
  plan_options.executable = false;
  plan_options.idle_experts = true;
  Schedule schedule = plan(c.model, c.config, plan_options);
  if (c.buffers_on_host) place_buffers_on_host(schedule.programs.at(0));
  ReplayOptions options;
  options.allocator = c.allocator;
  options.device_memory = c.device_memory;
  options.events = c.events;
  options.lag = c.lag;
  options.number_micro_batches = c.config.accumulate > 1;
  return replay_memory(schedule.programs.at(0), options);
}

/// What both sides say, in one form.
Json expected_of(const Json& golden) {
  Json all;
  all["init"] = {{"allocated", golden.at("init").at("allocated")},
                 {"reserved", golden.at("init").at("reserved")}};
  all["steps"] = Json::array();
  for (const Json& step : golden.at("steps")) {
    Json one;
    one["phases"] = Json::array();
    for (const Json& p : step.at("phases")) {
      one["phases"].push_back({{"phase", p.at("phase")},
                               {"peak_allocated", p.at("peak_allocated")},
                               {"peak_reserved", p.at("peak_reserved")}});
    }
    for (const char* key : {"peak_allocated", "peak_reserved", "allocated_end", "reserved_end"})
      one[key] = step.at(key);
    one["retries"] = step.at("num_alloc_retries");
    all["steps"].push_back(std::move(one));
  }
  all["oom"] = golden.at("oom").is_null() ? Json(false) : golden.at("oom").at("phase");
  return all;
}

Json found_of(const MemoryReplay& r) {
  Json all;
  all["init"] = {{"allocated", r.init_allocated}, {"reserved", r.init_reserved}};
  all["steps"] = Json::array();
  for (const StepPeaks& step : r.steps) {
    Json one;
    one["phases"] = Json::array();
    for (const PhasePeaks& p : step.phases) {
      one["phases"].push_back({{"phase", p.phase},
                               {"peak_allocated", p.peak_allocated},
                               {"peak_reserved", p.peak_reserved}});
    }
    one["peak_allocated"] = step.peak_allocated;
    one["peak_reserved"] = step.peak_reserved;
    one["allocated_end"] = step.allocated_end;
    one["reserved_end"] = step.reserved_end;
    one["retries"] = step.retries;
    all["steps"].push_back(std::move(one));
  }
  all["oom"] = r.oom ? Json(*r.oom) : Json(false);
  return all;
}

Json predicted_of(const MemoryReplay& r) {
  Json p;
  p["allocated_peak_bytes"] = r.steps.empty() ? 0 : r.steps.back().peak_allocated;
  p["reserved_peak_bytes"] = r.steps.empty() ? 0 : r.steps.back().peak_reserved;
  p["retries"] = r.retries;
  p["oom"] = r.oom ? Json(*r.oom) : Json(false);
  return p;
}

}  // namespace

std::vector<CheckResult> check_memory(const std::filesystem::path& file) {
  const Json golden = read_json_file(file);
  if (!golden.is_object() || !golden.contains("case") || !golden.contains("steps")) return {};
  CheckResult r;
  r.id = golden.at("case").value("id", file.filename().string());
  try {
    const MemoryReplay replay = run(read_memory_case(golden.at("case")));
    const auto difference = first_difference(expected_of(golden), found_of(replay), "result");
    r.ok = !difference;
    r.first_difference = difference.value_or("");
    r.predicted = predicted_of(replay).dump();
  } catch (const std::exception& error) {
    r.first_difference = error.what();
  }
  return {r};
}

}  // namespace foreshard
