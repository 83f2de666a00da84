#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "conformance/check.h"
#include "core/json_fwd.h"
#include "schedules/schedule.h"

namespace foreshard {

/// How the recordings of one framework are compared.
struct EventLogKind {
  /// Our answer to a case, in the form of `comparable(result)`.
  Json (*run)(const Json& golden_case);
  /// What of a result is compared; applied to the recording.
  Json (*comparable)(const Json& result);
  /// Keys of a result that are known before anything runs, with our values; compared first, so that
  /// a wrong table is not reported as a wrong event. Null: none.
  Json (*tables)(const Json& golden_case) = nullptr;
};

/// Checks one recorded event log: {"case", "result"}; none if the file has another form. An
/// exception while running or comparing is the case's difference.
std::vector<CheckResult> check_event_log(const std::filesystem::path& file,
                                         const EventLogKind& kind);

/// A collective as the recorders name it: "all_gather".
std::string name_in_recordings(CollectiveKind kind);

/// The events with every `same_as_step` replaced by the events of that step. `setup_end`: name of
/// an event after which the events of the first step begin to count (what comes before happens
/// once); empty: all count.
Json expand_repeated_steps(const Json& events, const std::string& setup_end = {});

}  // namespace foreshard
