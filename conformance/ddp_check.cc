#include "conformance/ddp_check.h"

#include "conformance/ddp_run.h"
#include "conformance/event_log_check.h"
#include "core/json.h"

namespace foreshard {
namespace {

/// An error's message is PyTorch's own text; its class and the events before it are compared.
Json comparable(const Json& golden) {
  Json result = golden;
  result["events"] = expand_repeated_steps(golden.at("events"));
  if (result.contains("error")) result["error"].erase("message");
  return result;
}

}  // namespace

std::vector<CheckResult> check_ddp(const std::filesystem::path& file) {
  return check_event_log(file, {run_ddp_case, comparable});
}

}  // namespace foreshard
