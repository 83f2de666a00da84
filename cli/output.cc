#include "cli/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/json.h"

namespace foreshard::cli {

TextStyle terminal_style() {
  TextStyle style;
  style.bars = ::isatty(STDOUT_FILENO) == 1;
  const char* no_color = std::getenv("NO_COLOR");
  style.colour = style.bars && (no_color == nullptr || *no_color == '\0');
  return style;
}

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void print_json(const Json& json) {
  print(json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void warn(const std::string& text) { std::fprintf(stderr, "foreshard: %s\n", text.c_str()); }

std::function<void(int, int)> progress(std::string what) {
  if (::isatty(STDERR_FILENO) != 1) return {};
  return [what = std::move(what)](int done, int all) {
    std::fprintf(stderr, "\r\033[K%s %d of %d", what.c_str(), done, all);
    if (done == all) std::fputs("\r\033[K", stderr);
    std::fflush(stderr);
  };
}

std::string why_not_writable(const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty()) return "has no name";
  std::error_code error;
  const fs::path file(path), folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  if (fs::is_directory(file, error)) return "is a folder";
  if (fs::exists(file, error) && !fs::is_regular_file(file, error)) return "is no regular file";
  if (!fs::is_directory(folder, error))
    return fmt::format("cannot be written: there is no folder {}", folder.string());
  if (::access(folder.c_str(), W_OK) != 0)
    return fmt::format("cannot be written: {}: {}", folder.string(), std::strerror(errno));
  return "";
}

}  // namespace foreshard::cli
