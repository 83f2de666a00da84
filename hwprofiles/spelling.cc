#include "hwprofiles/spelling.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace foreshard {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// "80gb", "80gib", or "80g" after a blank (after a dash that is a network's rate).
std::string memory_in(const std::string& word, char before) {
  const std::size_t n = std::find_if_not(word.begin(), word.end(), is_digit) - word.begin();
  const std::string unit = word.substr(n);
  const bool memory = unit == "gb" || unit == "gib" || (unit == "g" && before == ' ');
  return n > 0 && memory ? word.substr(0, n) : "";
}

struct Words {
  std::string count;               ///< "8x-", or nothing.
  std::vector<std::string> words;  ///< Of the name, memory as its number.
  std::string memory;              ///< The number among them that was said as memory.
};

/// The count of "8xa100", "8x a100", "8 x a100"; removed from `text`.
std::string take_count(std::string& text) {
  std::size_t at = std::find_if_not(text.begin(), text.end(), is_digit) - text.begin();
  const std::string digits = text.substr(0, at);
  while (at < text.size() && text[at] == ' ') ++at;
  if (digits.empty() || at >= text.size() || text[at] != 'x') return "";
  ++at;
  while (at < text.size() && (text[at] == ' ' || text[at] == '-')) ++at;
  text.erase(0, at);
  return digits + "x-";
}

Words words_of(std::string text) {
  static const std::set<std::string> empty{"nvidia", "amd",  "tesla", "geforce",   "instinct",
                                           "gpu",    "gpus", "hbm2",  "hbm2e",     "hbm3",
                                           "hbm3e",  "ecc",  "node",  "generation"};
  Words out;
  out.count = take_count(text);
  char before = ' ';
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find_first_of(" _-", at), text.size());
    const std::string word = text.substr(at, end - at);
    if (const std::string memory = memory_in(word, before); !memory.empty())
      out.words.push_back(out.memory = memory);
    else if (!word.empty() && empty.count(word) == 0)
      out.words.push_back(word);
    before = end < text.size() ? text[end] : ' ';
    at = end + 1;
  }
  return out;
}

}  // namespace

std::vector<Spelling> spellings_of(const std::string& typed) {
  Words w = words_of(typed);
  std::vector<Spelling> out;
  const auto add = [&](const std::vector<std::string>& words, std::optional<double> memory) {
    const std::string name = fmt::format("{}{}", w.count, fmt::join(words, "-"));
    if (std::none_of(out.begin(), out.end(), [&](const Spelling& s) { return s.name == name; }))
      out.push_back({name, memory});
  };
  const auto add_with_and_without_memory = [&](const std::vector<std::string>& words) {
    add(words, std::nullopt);
    if (w.memory.empty()) return;
    std::vector<std::string> rest = words;
    std::erase(rest, w.memory);
    add(rest, std::stod(w.memory.substr(0, 9)));
  };
  if (w.words.empty()) return out;
  add_with_and_without_memory(w.words);
  if (const auto pcie = std::find(w.words.begin(), w.words.end(), "pcie");
      pcie > w.words.begin() + 1 && pcie != w.words.end()) {
    std::rotate(w.words.begin() + 1, pcie, pcie + 1);
    add_with_and_without_memory(w.words);
  }
  const auto sxm = std::remove_if(w.words.begin(), w.words.end(),
                                  [](const std::string& s) { return s.rfind("sxm", 0) == 0; });
  if (sxm != w.words.end()) {
    w.words.erase(sxm, w.words.end());
    add_with_and_without_memory(w.words);
  }
  return out;
}

}  // namespace foreshard
