#pragma once

#include <filesystem>
#include <vector>

namespace foreshard {

/// Every golden file under the given files and folders (`.json`, `.json.gz`), sorted by path, each
/// once. InputError for a path that does not exist.
std::vector<std::filesystem::path> golden_files(const std::vector<std::filesystem::path>& paths);

}  // namespace foreshard
