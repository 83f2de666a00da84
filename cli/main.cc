// The program: finds the command, runs it, and turns every failure into a message and an exit code.

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/completion.h"
#include "cli/output.h"
#include "cli/parse.h"
#include "core/error.h"
#include "core/keep_memory.h"

namespace foreshard::cli {
namespace {

int run(std::vector<std::string> words) {
  if (words.empty()) return std::fputs(welcome().c_str(), stdout), kOk;
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    if (words.size() == 1 || words[0] != "help")
      return std::fputs(help_of_program().c_str(), stdout), kOk;
    words.erase(words.begin());
    words.push_back("--help");
  }
  if (words[0] == "--version") return std::puts("foreshard " FORESHARD_VERSION), kOk;
  if (words[0] == "completion") {
    words.erase(words.begin());
    const bool asks = std::find(words.begin(), words.end(), "--help") != words.end();
    return std::fputs(asks ? help_of_program().c_str() : completion(words).c_str(), stdout), kOk;
  }
  const CommandSpec& command = find_command(words);
  for (const std::string& w : words)
    if (w == "--help" || w == "-h" || w == "--help-all")
      return std::fputs(help_of(command, w == "--help-all").c_str(), stdout), kOk;
  Arguments arguments = parse_arguments(command, words);
  const int code = command.run(arguments);
  for (const std::string& note : arguments.notes()) warn(note);
  return code;
}

void print_issues(const InputError& e) {
  const std::size_t n = e.issues().size();
  std::fprintf(stderr,
               n == 1 ? "foreshard: wrong input\n" : "foreshard: wrong input (%zu problems)\n", n);
  constexpr std::size_t kMost = 40;
  for (std::size_t i = 0; i < n && i < kMost; ++i)
    std::fprintf(stderr, "  %s\n", e.issues()[i].text().c_str());
  if (n > kMost) std::fprintf(stderr, "  ... and %zu more\n", n - kMost);
}

/// What stands in the buffer of standard output is written, too: a full disk must not look like
/// an answer.
int check_output(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  throw RunError(std::string("standard output cannot be written: ") + std::strerror(errno));
}

int guarded(std::vector<std::string> words) {
  try {
    return check_output(run(std::move(words)));
  } catch (const InputError& e) {
    print_issues(e);
    return kWrongInput;
  } catch (const RunError& e) {
    std::fprintf(stderr, "foreshard: run failed\n  %s\n", e.what());
    return kRunFailed;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "foreshard: run failed\n  this machine's memory is used up\n");
    return kRunFailed;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "foreshard: a bug of ours, please report it\n  %s\n", e.what());
    return kBug;
  }
}

}  // namespace
}  // namespace foreshard::cli

int main(int argc, char** argv) {
  foreshard::keep_freed_memory();
  return foreshard::cli::guarded({argv + 1, argv + argc});
}
