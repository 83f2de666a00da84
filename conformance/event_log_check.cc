#include "conformance/event_log_check.h"

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <string>

#include "conformance/json_compare.h"
#include "core/json.h"

namespace foreshard {
namespace {

/// FSDP2's recordings keep the id in the case, the others beside it.
std::string id_of(const Json& golden, const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  return golden.contains("id") ? golden.value("id", name) : golden.at("case").value("id", name);
}

/// First difference of what is known before the run; of the keys that the recording has.
std::optional<std::string> differing_table(const Json& golden_case, const Json& expected,
                                           const EventLogKind& kind) {
  if (kind.tables == nullptr) return std::nullopt;
  const Json tables = kind.tables(golden_case);
  for (const auto& [key, value] : tables.items()) {
    if (!expected.contains(key)) continue;
    if (auto d = first_difference(expected.at(key), value, "result." + key)) return d;
  }
  return std::nullopt;
}

}  // namespace

std::string name_in_recordings(CollectiveKind kind) {
  std::string name(name_of(kind));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::vector<CheckResult> check_event_log(const std::filesystem::path& file,
                                         const EventLogKind& kind) {
  const Json golden = read_json_file(file);
  if (!golden.is_object() || !golden.contains("case") || !golden.contains("result")) return {};
  CheckResult r;
  r.id = id_of(golden, file);
  try {
    const Json expected = kind.comparable(golden.at("result"));
    if (const auto difference = differing_table(golden.at("case"), expected, kind)) {
      r.first_difference = *difference;
      return {r};
    }
    const Json found = kind.run(golden.at("case"));
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

Json expand_repeated_steps(const Json& events, const std::string& setup_end) {
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
    if (kind == setup_end) {
      steps[step] = Json::array();
    } else if (kind != "step_begin" && step >= 0) {
      steps[step].push_back(e);
    }
  }
  return all;
}

}  // namespace foreshard
