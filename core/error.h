#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace foreshard {

/// One problem of an input: where it is, what was found, what is allowed. Printed as "FILE: PATH:
/// MESSAGE (HINT)".
struct Issue {
  std::string file;     ///< File name or option name; empty if there is none.
  std::string path;     ///< Place inside it: JSON path, line number, column name.
  std::string message;  ///< What was found and why it is wrong.
  std::string hint;     ///< What is allowed, or the nearest name; may be empty.

  std::string text() const;
};

/// Wrong input (exit code 2). Carries every problem of the input at once; `what()` prints them line
/// by line.
class InputError : public std::runtime_error {
 public:
  explicit InputError(std::vector<Issue> issues);
  explicit InputError(Issue issue) : InputError(std::vector<Issue>{std::move(issue)}) {}
  const std::vector<Issue>& issues() const { return issues_; }

 private:
  std::vector<Issue> issues_;
};

/// A device, a rank or a run failed (exit code 3).
class RunError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A rule of our own was broken (exit code 1): always a bug of Foreshard.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Collects issues while reading one input and throws them together.
class IssueList {
 public:
  explicit IssueList(std::string file) : file_(std::move(file)) {}
  void add(std::string path, std::string message, std::string hint = {});
  bool empty() const { return issues_.empty(); }
  const std::vector<Issue>& issues() const { return issues_; }
  /// Throws InputError if anything was added.
  void throw_if_any() const;

 private:
  std::string file_;
  std::vector<Issue> issues_;
};

/// The candidate nearest to `word` by edit distance, or "" if none is near enough to be a slip of
/// the pen.
std::string nearest_name(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace foreshard
