#pragma once

// Imported job files in tests: their settings, what is wrong with them, and the job that the
// commands read from the options file.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "cli/foreign/foreign_job.h"
#include "cli/foreign/key_table.h"
#include "cli/job_options.h"
#include "cli/parse.h"
#include "core/json.h"

namespace foreshard::cli {

/// Lines of a file in tests/cli/data without comments.
inline std::vector<std::string> data_lines(const std::string& name) {
  std::ifstream in(std::string(FORESHARD_SOURCE_DIR) + "/tests/cli/data/" + name);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);)
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  return lines;
}

/// Every key of a list written down from a program's source has its row, and every row a key.
/// `more`: rows for which the list has no key.
inline void expect_table_of(const std::string& list, std::size_t size,
                            std::span<const KeyRow> table,
                            const std::map<std::string, std::string>& names,
                            std::set<std::string> more) {
  const std::vector<std::string> lines = data_lines(list);
  EXPECT_EQ(lines.size(), size);
  for (const std::string& line : lines) {
    std::string path = line;
    const std::size_t dot = std::min(line.find('.'), line.size());
    if (const auto section = names.find(line.substr(0, dot)); section != names.end())
      path = section->second + line.substr(dot);
    if (const auto other = names.find(path); other != names.end()) path = other->second;
    const KeyRow* row = row_of(table, path);
    EXPECT_TRUE(row != nullptr || is_section(table, path)) << line;
    if (row != nullptr) more.emplace(row->key);
  }
  for (const KeyRow& row : table)
    EXPECT_TRUE(more.count(std::string(row.key))) << row.key << " is read by nobody";
}

/// Each key of the list with values of every kind beside `base`: read or refused, and every key
/// that was read is accounted for (anything else throws).
template <typename Import>
void expect_each_key_answered(const std::string& list, const Json& base, Import import) {
  const Json values = Json::parse(
      R"([true, false, null, "auto", -1, 0, 1, 2, 1e30, [], {}, "", "cpu", "nvme", ["a"], 1.5, {"enabled": true}])");
  for (const std::string& path : data_lines(list)) {
    for (const Json& value : values) {
      Json file = base;
      Json* at = &file;
      std::istringstream parts(path);
      for (std::string part; std::getline(parts, part, '.');) {
        if (!at->is_object()) *at = Json::object();
        at = &(*at)[part];
      }
      *at = value;
      try {
        const ForeignJob job = import(file.dump());
        EXPECT_NE(options_file(job), "");
      } catch (const InputError&) {
      } catch (const std::exception& e) {
        ADD_FAILURE() << file.dump() << ": " << e.what();
      }
    }
  }
}

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
