#include "schedules/validate.h"

#include <iterator>

#include <fmt/format.h>

#include "core/enum_names.h"
#include "core/error.h"
#include "schedules/structure.h"
#include "schedules/text.h"
#include "schedules/validate_internal.h"

namespace foreshard {

std::string_view name_of(ScheduleFault fault) {
  static constexpr std::string_view kNames[] = {"structure",
                                                "use before alloc",
                                                "use after free",
                                                "double alloc",
                                                "double free",
                                                "leak",
                                                "use before gather",
                                                "read before write",
                                                "unordered streams",
                                                "event not recorded",
                                                "collective order differs",
                                                "deadlock"};
  static_assert(std::size(kNames) == kEnumerators<ScheduleFault>);
  return kNames[static_cast<int>(fault)];
}

std::vector<ScheduleFinding> validate(const Schedule& schedule, const ValidateOptions& options) {
  using namespace validate_internal;
  Findings findings(options.most_findings);
  IssueList issues("");
  check_structure(schedule, issues);
  for (const Issue& i : issues.issues())
    findings.add(ScheduleFault::kStructure, i.path + ": " + i.message, {});
  if (!issues.empty()) return findings.take();
  for (std::uint32_t p = 0; p < schedule.programs.size() && !findings.full(); ++p) {
    check_lifetimes(schedule, p, findings);
    check_ordering(schedule, p, findings);
  }
  check_collective_order(schedule, findings);
  check_progress(schedule, findings);
  return findings.take();
}

std::string text_of(const Schedule& schedule, const ScheduleFinding& finding) {
  std::string out = fmt::format("{}: {}", name_of(finding.fault), finding.message);
  for (const ScheduleFinding::Place& place : finding.places) {
    const RankProgram& p = schedule.programs[place.program];
    out += fmt::format("\n    program {} #{:<6} {}", place.program, place.instruction,
                       describe_instruction(p, schedule.groups, p.instructions[place.instruction]));
  }
  return out;
}

void require_valid(const Schedule& schedule, const std::string& file) {
  std::vector<Issue> issues;
  for (const ScheduleFinding& f : validate(schedule))
    issues.push_back({file, "", text_of(schedule, f), ""});
  if (!issues.empty()) throw InputError(std::move(issues));
}

}  // namespace foreshard
