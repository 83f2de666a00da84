#pragma once

#include <filesystem>
#include <vector>

#include "study/score_ratios.h"

namespace foreshard::cli {

/// Reads published ratios (docs/formats/ratios.md): a YAML or JSON file of one series, or every
/// such file of a folder in the order of names. Options of the two sides are those of `simulate`;
/// models and profiles may be files beside it. InputError with all problems of all files. A pair
/// that only the planner or the catalogue refuses is kept, with the reason.
std::vector<RatioCase> read_ratio_cases(const std::filesystem::path& file_or_folder);

}  // namespace foreshard::cli
