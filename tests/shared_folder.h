#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace foreshard {

/// The folder of reference material that is not part of this repository: recordings of frameworks
/// (golden/) and files of users and laboratories (data/). FORESHARD_SHARED names it; else it is
/// "shared" beside the source folder.
inline std::filesystem::path shared_folder() {
  if (const char* named = std::getenv("FORESHARD_SHARED")) return named;
  return std::filesystem::path(FORESHARD_SOURCE_DIR).parent_path() / "shared";
}

}  // namespace foreshard

/// Skips a test whose reference material is not there; with FORESHARD_REQUIRE_SHARED set (to
/// anything), the test fails.
#define FORESHARD_NEEDS(path)                                                 \
  if (!std::filesystem::exists(path)) {                                       \
    if (std::getenv("FORESHARD_REQUIRE_SHARED") != nullptr)                   \
      FAIL() << (path) << " is missing, and FORESHARD_REQUIRE_SHARED is set"; \
    GTEST_SKIP() << (path) << " is not there";                                \
  }                                                                           \
  static_assert(true, "")
