#include "conformance/event_log_check.h"

#include <exception>

#include "conformance/json_compare.h"
#include "core/json.h"

namespace foreshard {
namespace {

/// FSDP2's recordings keep the id in the case, the others beside it.
std::string id_of(const Json& golden, const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  return golden.contains("id") ? golden.value("id", name) : golden.at("case").value("id", name);
}

}  // namespace

std::vector<CheckResult> check_event_log(const std::filesystem::path& file, const EventLogKind& kind) {
  const Json golden = read_json_file(file);
  if (!golden.is_object() || !golden.contains("case") || !golden.contains("result")) return {};
  CheckResult r;
  r.id = id_of(golden, file);
  try {
    const Json found = kind.run(golden.at("case"));
    const auto difference = first_difference(kind.comparable(golden.at("result")), found, "result");
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
