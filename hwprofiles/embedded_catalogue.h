#pragma once

#include <span>
#include <string_view>

namespace foreshard {

/// One catalogue file compiled into the library.
struct EmbeddedFile {
  std::string_view folder;  ///< "gpus", "nodes", "networks" or "calibrations"
  std::string_view name;    ///< file name without ".json", equal to its "name" key
  std::string_view text;
};

/// All files, sorted by folder and name (hwprofiles/embed_catalogue.cmake writes the definition).
std::span<const EmbeddedFile> embedded_catalogue();

}  // namespace foreshard
