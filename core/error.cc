#include "core/error.h"

#include "core/text.h"

namespace foreshard {
namespace {

std::string join_lines(const std::vector<Issue>& issues) {
  std::string out;
  for (const Issue& issue : issues) {
    if (!out.empty()) out += '\n';
    out += issue.text();
  }
  return out;
}

}  // namespace

std::string Issue::text() const {
  std::string out;
  for (const std::string& part : {file, path}) {
    if (!part.empty()) out += part + ": ";
  }
  out += message;
  if (!hint.empty()) out += " (" + hint + ")";
  return out;
}

InputError::InputError(std::vector<Issue> issues)
    : std::runtime_error(join_lines(issues)), issues_(std::move(issues)) {}

void IssueList::add(std::string path, std::string message, std::string hint) {
  issues_.push_back({file_, std::move(path), std::move(message), std::move(hint)});
}

void IssueList::throw_if_any() const {
  if (!issues_.empty()) throw InputError(issues_);
}

std::string nearest_name(const std::string& word, const std::vector<std::string>& candidates) {
  constexpr std::size_t kLongestCompared = 200;
  if (word.size() > kLongestCompared) return {};
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kLongestCompared) continue;
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace foreshard
