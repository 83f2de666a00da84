#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "core/json_fwd.h"
#include "study/score_ratios.h"

namespace foreshard::cli {

/// Reads published ratios (docs/formats/ratios.md): a YAML or JSON file of one series, or every
/// such file of a folder in the order of names. Options of the two sides are those of `simulate`;
/// models and profiles may be files beside it. InputError with all problems of all files. A pair
/// that only the planner or the catalogue refuses is kept, with the reason.
std::vector<RatioCase> read_ratio_cases(const std::filesystem::path& file_or_folder);

/// A command over one file or folder of pairs: reads and scores them, prints the text or with
/// --json the document.
int print_scores(Arguments& arguments, const std::function<std::string(const RatioScores&)>& text,
                 const std::function<Json(const RatioScores&)>& document);
/// The text, or null for an empty one.
Json text_or_null(const std::string& text);

}  // namespace foreshard::cli
