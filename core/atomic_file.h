#pragma once

// Output files that appear at once or not at all.

#include <filesystem>
#include <fstream>
#include <ostream>
#include <string_view>

namespace foreshard {

/// A file that is written under a temporary name beside its own and takes its name in commit():
/// readers never see half of it. Without commit() nothing is left of it, nor where SIGINT, SIGTERM
/// or SIGHUP ends the program (signals that the program ignores or handles stay as they are).
class AtomicFile {
 public:
  /// A link stays a link: its target is replaced. RunError where `path` is a device or a pipe.
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  std::ostream& out() { return out_; }
  /// RunError if anything could not be written.
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  std::ofstream out_;
  int slot_;  ///< Where a signal's handler finds the temporary name; -1: nowhere.
};

/// Writes `bytes` as an AtomicFile. RunError on failure.
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

}  // namespace foreshard
