#include "conformance/zero_check.h"

#include "conformance/event_log_check.h"
#include "conformance/zero_run.h"
#include "core/json.h"

namespace foreshard {
namespace {

/// `effective` holds DeepSpeed's defaults, which the case reader takes from ParallelConfig; a null
/// cause is none.
Json comparable_zero(const Json& golden) {
  Json result = golden;
  result.erase("effective");
  result["events"] = expand_repeated_steps(golden.at("events"));
  for (Json& e : result["events"])
    if (e.contains("cause") && e["cause"].is_null()) e.erase("cause");
  return result;
}

}  // namespace

std::vector<CheckResult> check_zero(const std::filesystem::path& file) {
  return check_event_log(file, {run_zero_case, comparable_zero});
}

}  // namespace foreshard
