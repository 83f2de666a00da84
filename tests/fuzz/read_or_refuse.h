#pragma once

// What every fuzz target does: any bytes are either read or refused with an InputError; anything
// else (another exception, a sanitizer's report, more than ten seconds) is a bug.

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "core/error.h"

namespace foreshard::fuzz {

template <class Read>
int read_or_refuse(const std::uint8_t* data, std::size_t size, Read&& read) {
  try {
    read(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const InputError&) {
  }
  return 0;
}

/// A file that holds `text` while this object lives, for readers that take a path.
class ScratchFile {
 public:
  ScratchFile(std::string_view text, std::string_view extension)
      : path_(std::filesystem::temp_directory_path() /
              fmt::format("foreshard-fuzz-{}{}", getpid(), extension)) {
    std::ofstream(path_, std::ios::binary) << text;
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile() { std::filesystem::remove(path_); }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace foreshard::fuzz
