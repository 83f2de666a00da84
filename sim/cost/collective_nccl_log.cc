#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/parse_number.h"
#include "core/text.h"
#include "sim/cost/collective_table.h"

namespace foreshard {
namespace {

using Words = std::vector<std::string_view>;

Words words_of(std::string_view line) {
  Words words;
  std::size_t at = 0;
  while (at < line.size()) {
    const auto begin = line.find_first_not_of(" \t\r", at);
    if (begin == std::string_view::npos) break;
    auto end = line.find_first_of(" \t\r", begin);
    if (end == std::string_view::npos) end = line.size();
    words.push_back(line.substr(begin, end - begin));
    at = end;
  }
  return words;
}

std::optional<double> to_double(std::string_view text) {
  const auto value = parse_number<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

/// "8" of "nGpus 8".
std::optional<int> number_after(const Words& words, std::string_view key) {
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == key) {
      const auto value = to_double(words[i + 1]);
      if (value && *value >= 0 && *value < 1e6) return static_cast<int>(*value);
    }
  }
  return std::nullopt;
}

/// A data line as read, before units and kind are known.
struct RawRow {
  int line = 0;
  double bytes = 0;
  double time[2] = {std::nan(""), std::nan("")};
  double algbw = std::nan(""), busbw = std::nan("");
  std::string_view operation;
};

/// busbw / algbw of nccl-tests' doc/PERFORMANCE.md.
double bus_factor(CollectiveKind kind, int ranks) {
  const double n = ranks;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 2 * (n - 1) / n;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
      return (n - 1) / n;
    default:
      return 1;
  }
}

class LogReader {
 public:
  LogReader(std::string_view text, std::string file) : text_(text), issues_(file) {
    table_.id = std::filesystem::path(file).stem().string();
  }

  CollectiveTable read(std::optional<CollectiveKind> kind) {
    if (text_.find('\0') != std::string_view::npos) {
      issues_.add("", "this is a binary file", "the text that nccl-tests prints");
      issues_.throw_if_any();
    }
    int number = 0;
    for (std::size_t at = 0; at <= text_.size() && issues_.issues().size() < 20;) {
      const auto end = std::min(text_.find('\n', at), text_.size());
      read_line(text_.substr(at, end - at), ++number);
      at = end + 1;
    }
    finish(kind);
    return std::move(table_);
  }

 private:
  void read_line(std::string_view line, int number) {
    const auto words = words_of(line);
    if (words.empty()) return;
    if (words[0].front() == '#') return read_comment(words, number);
    if (contains(line, "Test CUDA failure") || contains(line, "Test NCCL failure") ||
        contains(line, "Test failure")) {
      table_.faults.push_back(fmt::format("line {}: {}", number, fmt::join(words, " ")));
      return;
    }
    if (columns_.empty() || !to_double(words[0])) return;  // command lines, mpirun chatter
    read_data(words, number);
  }

  void read_comment(const Words& words, int number) {
    const auto has = [&](std::string_view w) {
      return std::find(words.begin(), words.end(), w) != words.end();
    };
    if (has("Using") && has("devices") && !raw_.empty())
      issues_.add(fmt::format("line {}", number), "a second test begins", "one file for each");
    if (has("bounds") && has("FAILED"))
      table_.faults.push_back(fmt::format("line {}: {}", number, fmt::join(words, " ")));
    if (has("starting:") || has("concluded:")) named_kind_ = parse_nccl_test_name(words.back());
    if (has("nGpus")) {
      table_.gpus_per_process =
          number_after(words, "nGpus").value_or(1) * number_after(words, "nThread").value_or(1);
    }
    if (has("Rank") && has("device")) read_rank(words);
    if (has("time") && (has("size") || has("bytes"))) {
      columns_.assign(words.begin() + 1, words.end());
    } else if (!columns_.empty() && words.size() > 1 && words[1].front() == '(') {
      read_units(words);
    }
  }

  /// "# Rank 0 [Group 0] Pid 1 on HOST device 0 [0x0f] NVIDIA A100-SXM4-40GB"
  void read_rank(const Words& words) {
    ++table_.ranks;
    for (std::size_t i = 0; i + 1 < words.size(); ++i) {
      if (words[i] == "on") hosts_.insert(std::string(words[i + 1]));
      if (words[i].front() == '[' && words[i].back() == ']' && table_.gpu.empty()) {
        table_.gpu = fmt::format(
            "{}", fmt::join(words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end(), " "));
      }
    }
  }

  void read_units(const Words& words) {
    for (const auto word : words) {
      const double unit = word == "(us)" ? 1e-6 : word == "(ms)" ? 1e-3 : word == "(s)" ? 1 : 0;
      if (unit > 0 && unit_.value_or(unit) != unit)
        issues_.add("units", "two units of time in one header", "(us)");
      if (unit > 0) unit_ = unit;
      if (unit == 0 && word.front() == '(' && word != "(B)" && word != "(elements)" &&
          word != "(GB/s)") {
        issues_.add("units", fmt::format("unknown unit {}", word), "(B), (elements), (us), (GB/s)");
      }
    }
  }

  void read_data(const Words& words, int number) {
    const auto place = fmt::format("line {}", number);
    if (words.size() != columns_.size()) {
      return issues_.add(
          place, fmt::format("{} columns where the header has {}", words.size(), columns_.size()),
          "the line may be cut off");
    }
    RawRow row;
    row.line = number;
    int time = 0;
    double wrong = 0;
    for (std::size_t i = 0; i < words.size(); ++i) {
      const auto name = columns_[i];
      const auto value = to_double(words[i]);
      const bool measured =
          name == "size" || name == "bytes" || name == "time" || name == "algbw" || name == "busbw";
      if (measured && (!value || *value < 0)) {
        return issues_.add(place, fmt::format("\"{}\" is no {}", words[i], name), "a number");
      }
      if (name == "time" && *value == 0 && row.bytes > 0) {
        return issues_.add(place, fmt::format("\"{}\" is no time of {} bytes", words[i], row.bytes),
                           "a number above 0; the line may be damaged");
      }
      if (name == "#wrong") wrong += value.value_or(0);  // "N/A": not checked.
      if (name == "size" || name == "bytes") row.bytes = *value;
      if (name == "time" && time < 2) row.time[time++] = *value;
      if (name == "algbw" && std::isnan(row.algbw)) row.algbw = *value;
      if (name == "busbw" && std::isnan(row.busbw)) row.busbw = *value;
      if (name == "redop" || name == "op") row.operation = words[i];
    }
    if (wrong > 0)
      table_.faults.push_back(fmt::format("{}: {:.0f} values were wrong (#wrong)", place, wrong));
    if (row.time[0] > 0 || row.time[1] > 0) raw_.push_back(row);  // Else an empty call.
  }

  void finish(std::optional<CollectiveKind> kind) {
    if (columns_.empty()) {
      issues_.add("", "no header line of nccl-tests found",
                  "a line \"#  size  count  type  redop ... time  algbw  busbw\"");
    } else if (raw_.empty() && issues_.empty()) {
      issues_.add("", "no measured line", "the log may be cut off");
    }
    issues_.throw_if_any();
    settle_unit();
    if (table_.ranks == 0)
      issues_.add("", "the log lists no ranks", "lines \"#  Rank  0 ... on HOST device  0\"");
    issues_.throw_if_any();
    table_.nodes = std::max<int>(1, static_cast<int>(hosts_.size()));
    if (kind) check_kind(*kind);
    issues_.throw_if_any();
    table_.kind = kind ? *kind : settle_kind();
    for (const auto& row : raw_) {
      const double unit = *unit_;
      table_.rows.push_back(
          {Bytes(static_cast<std::int64_t>(row.bytes)), row.time[0] * unit, row.time[1] * unit});
    }
    std::stable_sort(table_.rows.begin(), table_.rows.end(),
                     [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  }

  /// The longest line settles the unit of logs that name none, and checks that of logs that do.
  void settle_unit() {
    const auto longest = std::max_element(
        raw_.begin(), raw_.end(), [](const auto& a, const auto& b) { return a.algbw < b.algbw; });
    const auto fits = [&](double unit) {
      if (!(longest->algbw > 0) || !(longest->time[0] > 0)) return true;
      const double algbw = longest->bytes / (longest->time[0] * unit) * 1e-9;
      return std::abs(algbw - longest->algbw) < 0.02 * longest->algbw + 0.006;
    };
    if (!unit_) {
      for (const double unit : {1e-6, 1e-3}) {
        if (!unit_ && longest->algbw > 0 && fits(unit)) unit_ = unit;
      }
      if (!unit_) unit_ = 1e-6;
      table_.notes.push_back(
          fmt::format("the header names no unit of time; {} fits the bandwidth column",
                      *unit_ < 1e-5 ? "us" : "ms"));
    }
    if (!fits(*unit_)) {
      issues_.add(fmt::format("line {}", longest->line),
                  fmt::format("{} bytes in {} contradict an algbw of {} GB/s", longest->bytes,
                              longest->time[0], longest->algbw),
                  "a wrong unit or a damaged line");
    }
  }

  const RawRow& fastest() const {
    return *std::max_element(raw_.begin(), raw_.end(),
                             [](const auto& a, const auto& b) { return a.busbw < b.busbw; });
  }

  /// A kind that the user gave, against the name and the bandwidth columns of the log.
  void check_kind(CollectiveKind kind) {
    if (named_kind_ && *named_kind_ != kind) {
      issues_.add("",
                  fmt::format("the log is of {}, not of {}", name_of(*named_kind_), name_of(kind)),
                  "leave --collective out");
    }
    const RawRow& row = fastest();
    const double expected = bus_factor(kind, table_.ranks);
    if (named_kind_ || !(row.algbw > 0) || is_first_generation()) return;
    const double ratio = row.busbw / row.algbw;
    const double rounding = 0.01 * (1 + ratio) / row.algbw;  // Printed with two digits.
    if (std::abs(ratio - expected) <= 0.03 * expected + rounding) return;
    issues_.add(fmt::format("line {}", row.line),
                fmt::format("busbw / algbw = {:.3f} contradicts {} of {} ranks, whose ratio is "
                            "{:.3f}",
                            ratio, name_of(kind), table_.ranks, expected),
                fmt::format("{}, by the ratio and the reduction; or leave --collective out",
                            name_of(settle_kind())));
  }

  /// The programs of 2017 counted what other ranks send only, so that both bandwidths of gathers
  /// and scatters are one.
  bool is_first_generation() const {
    return std::find(columns_.begin(), columns_.end(), "bytes") != columns_.end();
  }

  CollectiveKind settle_kind() {
    if (named_kind_) return *named_kind_;
    const RawRow* const longest = &fastest();
    const double ratio = longest->algbw > 0 ? longest->busbw / longest->algbw : 0;
    const bool reduces = longest->operation != "none" && !longest->operation.empty();
    const auto near = [&](CollectiveKind k) {
      const double expected = bus_factor(k, table_.ranks);
      return std::abs(ratio - expected) < 0.03 * expected;
    };
    auto kind = CollectiveKind::kAllReduce;
    if (near(CollectiveKind::kAllReduce) && reduces) {
      kind = CollectiveKind::kAllReduce;
    } else if (near(CollectiveKind::kAllGather)) {
      kind = reduces ? CollectiveKind::kReduceScatter : CollectiveKind::kAllGather;
    } else if (near(CollectiveKind::kBroadcast)) {
      kind = reduces ? CollectiveKind::kReduce : CollectiveKind::kBroadcast;
    } else {
      table_.notes.push_back("busbw / algbw fits no collective; taken as all-reduce");
    }
    table_.notes.push_back(fmt::format("the log names no test; busbw / algbw = {:.3f} suggests {}",
                                       ratio, name_of(kind)));
    return kind;
  }

  std::string_view text_;
  IssueList issues_;
  CollectiveTable table_;
  std::vector<std::string_view> columns_;
  std::set<std::string> hosts_;
  std::vector<RawRow> raw_;
  std::optional<double> unit_;
  std::optional<CollectiveKind> named_kind_;
};

}  // namespace

CollectiveTable parse_nccl_log(std::string_view text, const std::string& file,
                               std::optional<CollectiveKind> kind) {
  return LogReader(text, file).read(kind);
}

}  // namespace foreshard
