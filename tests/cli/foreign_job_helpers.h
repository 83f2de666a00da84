#pragma once

// Imported job files in tests: their settings, what is wrong with them, and the job that the
// commands read from the options file.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "cli/foreign/foreign_job.h"
#include "cli/job_options.h"
#include "cli/parse.h"

namespace foreshard::cli {

inline std::map<std::string, std::string> settings_of(const ForeignJob& job) {
  std::map<std::string, std::string> out;
  for (const JobSetting& s : job.settings)
    EXPECT_TRUE(out.emplace(s.option, s.value).second) << s.option << " stands there twice";
  return out;
}

/// The problems that reading reports, one a line; "" if there are none.
template <typename Read>
std::string problems(Read read) {
  std::string out;
  try {
    read();
  } catch (const InputError& e) {
    for (const Issue& issue : e.issues()) out += issue.text() + "\n";
  }
  return out;
}

/// What `foreshard simulate LINE --config FILE` reads, where FILE holds the imported job.
inline Job job_of(const ForeignJob& imported, const std::string& line) {
  const std::filesystem::path file = std::filesystem::temp_directory_path() /
                                     ("foreshard-imported-" + std::to_string(getpid()) + ".yaml");
  std::ofstream(file) << options_file(imported);
  std::istringstream in("simulate " + line + " --config " + file.string());
  std::vector<std::string> words;
  for (std::string w; in >> w;) words.push_back(w);
  const CommandSpec& command = find_command(words);
  Arguments arguments = parse_arguments(command, words);
  std::filesystem::remove(file);
  Job job = read_job(arguments);
  arguments.check();
  return job;
}

}  // namespace foreshard::cli
