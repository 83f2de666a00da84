#include "conformance/fsdp2_check.h"

#include <exception>

#include "conformance/fsdp2_run.h"
#include "conformance/json_compare.h"
#include "core/json.h"

namespace foreshard {
namespace {

/// Errors agree in stage and type; the texts are PyTorch's and ours.
Json without_message(Json result) {
  if (result.contains("error")) result["error"].erase("message");
  return result;
}

}  // namespace

std::vector<CheckResult> check_fsdp2(const std::filesystem::path& file) {
  const Json golden = read_json_file(file);
  if (!golden.is_object() || !golden.contains("case") || !golden.contains("result")) return {};
  CheckResult r;
  r.id = golden.at("case").value("id", file.filename().string());
  try {
    const Json found = without_message(run_fsdp2_case(golden.at("case")));
    const Json expected = without_message(golden.at("result"));
    const auto difference = first_difference(expected, found, "result");
    r.ok = !difference;
    r.first_difference = difference.value_or("");
    Json predicted;
    predicted["events"] = found.at("events").size();
    r.predicted = predicted.dump();
  } catch (const std::exception& error) {
    r.first_difference = error.what();
  }
  return {r};
}

}  // namespace foreshard
