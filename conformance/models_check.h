#pragma once

#include <filesystem>
#include <vector>

#include "conformance/check.h"

namespace foreshard {

/// Kind `models`: imports the configuration of the same name and compares parameter counts, ties,
/// every tensor, buffers, unit sizes under the three wrap rules, FLOPs by operator and saved bytes.
/// A file `catalogue.json` is a table of cases with their configuration inside. Where a case has no
/// configuration of its own ("config_json", "inline"), it is looked for as
/// `data/user-files/hf-config/NAME.json` above the file, or above the folder that FORESHARD_SHARED
/// names.
std::vector<CheckResult> check_models(const std::filesystem::path& file);

}  // namespace foreshard
