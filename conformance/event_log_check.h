#pragma once

#include <filesystem>
#include <vector>

#include "conformance/check.h"
#include "core/json_fwd.h"

namespace foreshard {

/// How the recordings of one framework are compared.
struct EventLogKind {
  /// Our answer to a case, in the form of `comparable(result)`.
  Json (*run)(const Json& golden_case);
  /// What of a result is compared; applied to the recording.
  Json (*comparable)(const Json& result);
};

/// Checks one recorded event log: {"case", "result"}; none if the file has another form. An exception while running or
/// comparing is the case's difference.
std::vector<CheckResult> check_event_log(const std::filesystem::path& file, const EventLogKind& kind);

}  // namespace foreshard
