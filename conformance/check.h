#pragma once

// Golden checks by kind. A kind reads files of golden/KIND/, runs our own planner, allocator,
// importer or executor on each case and compares. A new kind is one row in check.cc.

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace foreshard {

/// What became of one golden case.
struct CheckResult {
  std::string id;
  bool ok = false;
  std::string first_difference;  ///< Empty if ok.
  std::string predicted =
      "{}";  ///< JSON object with what we predicted; its keys depend on the kind.
};

struct CheckKind {
  const char* name;
  /// Results of one file: none if the file is no case of this kind (an index, a catalogue). Throws
  /// InputError on a file that cannot be read.
  std::vector<CheckResult> (*check)(const std::filesystem::path& file);
};

std::span<const CheckKind> check_kinds();
/// nullptr if there is no such kind.
const CheckKind* find_check_kind(const std::string& name);

/// Checks every golden file under `paths`. A case that throws is a failed case with the message as
/// its difference.
std::vector<CheckResult> check_all(const CheckKind& kind,
                                   const std::vector<std::filesystem::path>& paths);

}  // namespace foreshard
