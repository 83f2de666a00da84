#include "conformance/zero_check.h"

#include <map>

#include "conformance/event_log_check.h"
#include "conformance/zero_run.h"
#include "core/json.h"

namespace foreshard {
namespace {

/// Recordings shorten a step that equals an earlier one to `same_as_step`.
Json expanded(const Json& events) {
  std::map<std::int64_t, Json> steps;
  Json all = Json::array();
  std::int64_t step = -1;
  for (const Json& e : events) {
    const std::string kind = e.at("ev");
    if (kind == "step_begin") step = e.at("step");
    if (kind == "same_as_step") {
      steps[step] = steps.at(e.at("step"));
      for (const Json& copy : steps[step]) all.push_back(copy);
      continue;
    }
    all.push_back(e);
    if (kind != "step_begin" && step >= 0) steps[step].push_back(e);
  }
  return all;
}

/// `effective` holds DeepSpeed's defaults, which the case reader takes from ParallelConfig; a null cause is none.
Json comparable(const Json& golden) {
  Json result = golden;
  result.erase("effective");
  result["events"] = expanded(golden.at("events"));
  for (Json& e : result["events"]) if (e.contains("cause") && e["cause"].is_null()) e.erase("cause");
  return result;
}

}  // namespace

std::vector<CheckResult> check_zero(const std::filesystem::path& file) {
  return check_event_log(file, {run_zero_case, comparable});
}

}  // namespace foreshard
