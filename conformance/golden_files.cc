#include "conformance/golden_files.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace foreshard {
namespace fs = std::filesystem;

std::vector<fs::path> golden_files(const std::vector<fs::path>& paths) {
  std::vector<fs::path> files;
  const auto is_golden = [](const fs::path& p) {
    const std::string name = p.filename().string();
    return name.ends_with(".json") || name.ends_with(".json.gz");
  };
  for (const fs::path& path : paths) {
    if (fs::is_directory(path)) {
      for (const auto& entry : fs::recursive_directory_iterator(path)) {
        if (entry.is_regular_file() && is_golden(entry.path())) files.push_back(entry.path());
      }
    } else if (fs::exists(path)) {
      files.push_back(path);
    } else {
      throw InputError(Issue{path.string(), "", "no such file or folder", ""});
    }
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

}  // namespace foreshard
