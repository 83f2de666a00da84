#include "conformance/fsdp2_check.h"

#include "conformance/event_log_check.h"
#include "conformance/fsdp2_run.h"
#include "core/json.h"

namespace foreshard {
namespace {

/// Errors agree in stage and type; the texts are PyTorch's and ours.
Json without_message(const Json& result) {
  Json out = result;
  if (out.contains("error")) out["error"].erase("message");
  return out;
}

Json run_case(const Json& golden_case) { return without_message(run_fsdp2_case(golden_case)); }

}  // namespace

std::vector<CheckResult> check_fsdp2(const std::filesystem::path& file) {
  return check_event_log(file, {run_case, without_message});
}

}  // namespace foreshard
