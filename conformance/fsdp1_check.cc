#include "conformance/fsdp1_check.h"

#include "conformance/event_log_check.h"
#include "conformance/fsdp1_run.h"
#include "core/json.h"

namespace foreshard {
namespace {

/// Messages of refusals are our own.
Json comparable_fsdp1(const Json& golden) {
  Json result = golden;
  result["events"] = expand_repeated_steps(golden.at("events"), "lazy_init_end");
  if (result.contains("error")) result["error"].erase("message");
  return result;
}

}  // namespace

std::vector<CheckResult> check_fsdp1(const std::filesystem::path& file) {
  return check_event_log(file, {run_fsdp1_case, comparable_fsdp1, fsdp1_tables});
}

}  // namespace foreshard
