#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/format.h"
#include "report/answer.h"

namespace foreshard {
namespace {

constexpr int kBarWidth = 32;

class AnswerText {
 public:
  AnswerText(const StepAnswer& a, const TextStyle& style) : a_(a), style_(style) {}

  std::string screen() {
    screen_into();
    return std::move(out_);
  }

  std::string explained() {
    screen_into();
    communication_table();
    critical_path_table();
    owner_table();
    uncertainty_table();
    provenance_table();
    return std::move(out_);
  }

 private:
  void screen_into() {
    head();
    verdict();
    time_line();
    limit_line();
    memory_lines();
    try_lines();
    for (const std::string& r : a_.remarks) wrapped("note   ", r);
    if (!a_.outside.empty())
      wrapped("outside what was calibrated (the range may be too narrow): ",
              joined(a_.outside, "; "));
    if (!a_.not_modelled.empty()) wrapped("not modelled: ", joined(a_.not_modelled, "; "));
  }

  std::string paint(std::string_view text, std::string_view code) const {
    return style_.colour ? fmt::format("\033[{}m{}\033[0m", code, text) : std::string(text);
  }
  static std::string joined(const std::vector<std::string>& list, std::string_view with) {
    return fmt::format("{}", fmt::join(list, with));
  }
  static std::string gib(Bytes b) {
    return fmt::format("{:.1f}", static_cast<double>(b.value) / (1 << 30));
  }

  /// For a need: never less than it.
  static std::string gib_up(Bytes b) {
    return fmt::format("{:.1f}", std::ceil(static_cast<double>(b.value) / (1 << 30) * 10) / 10);
  }

  void label(std::string_view name) { out_ += "  " + paint(fmt::format("{:<7}", name), "2"); }
  /// Text broken at blanks, continued under its beginning.
  void wrapped(const std::string& first, const std::string& text) {
    const std::size_t indent = 2 + display_width(first);
    std::size_t column = indent;
    out_ += "  " + paint(first, "2");
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t space = std::min(text.find(' ', at), text.size());
      const std::string word = text.substr(at, space - at);
      if (column + display_width(word) > static_cast<std::size_t>(style_.width) &&
          column > indent) {
        while (!out_.empty() && out_.back() == ' ') out_.pop_back();
        out_ += "\n" + std::string(indent, ' ');
        column = indent;
      }
      out_ += word + (space < text.size() ? " " : "");
      column += display_width(word) + 1;
      at = space + 1;
    }
    out_ += "\n";
  }
  static std::size_t display_width(std::string_view s) {
    return static_cast<std::size_t>(
        std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xC0) != 0x80; }));
  }

  void head() {
    std::string line = fmt::format("{} ({})", paint(a_.model, "1"), a_.model_size);
    for (const std::string& part : {a_.framework, a_.machines, a_.precision})
      if (!part.empty()) line += " · " + part;
    out_ += line + "\n";
    for (const std::string& part : {a_.batch, a_.training})
      if (!part.empty()) out_ += paint(part, "2") + "\n";
    out_ += "\n";
  }

  std::string fit_text() const {
    const AnswerMemory& m = a_.memory;
    if (m.borderline())
      return paint(fmt::format("Fits, borderline: {} of {} GiB, {}", gib(m.device_peak),
                               gib(m.capacity), retries_text(m.retries, m.retries_total)),
                   "1;33");
    if (m.tight)
      return paint(fmt::format("Fits, tight: {} of {} GiB", gib(m.device_peak), gib(m.capacity)),
                   "1;33");
    if (m.fits)
      return paint(fmt::format("Fits: {} of {} GiB", gib(m.device_peak), gib(m.capacity)), "1;32");
    std::vector<std::string> lacks;
    if (!m.fits_device)
      lacks.push_back("has " + gib(m.capacity) + " GiB" +
                      (m.runs_with ? fmt::format(", runs with {} GiB", gib_up(*m.runs_with)) : ""));
    if (!m.fits_host)
      lacks.push_back(fmt::format("needs {} of {} GiB of host memory on a node",
                                  gib(m.host_node_peak), gib(m.host_capacity)));
    return paint("Does not fit: " + joined(lacks, "; "), "1;31");
  }

  std::string throughput(double tokens, double samples) const {
    if (tokens > 0) return fmt::format("{:>6.0f} tok/s/GPU", tokens);
    return samples > 0 ? fmt::format("{:>6.4g} samples/s/GPU", samples) : "";
  }

  void verdict() {
    const AnswerMemory& m = a_.memory;
    std::string step = "step " + format_time(a_.step_time);
    if (a_.step_range)
      step += fmt::format(" ({} to {}, 80 % range)", format_time(a_.step_range->first),
                          format_time(a_.step_range->second));
    std::vector<std::string> parts{fit_text(), paint(step, "1")};
    const std::string rate = throughput(a_.tokens_per_s_per_gpu, a_.samples_per_s_per_gpu);
    if (!rate.empty()) parts.push_back(rate.substr(rate.find_first_not_of(' ')));
    if (a_.mfu > 0)
      parts.push_back(fmt::format("MFU {:.1f} %{}", 100 * a_.mfu,
                                  a_.peak.empty() ? "" : " of the " + a_.peak + " peak"));
    out_ += "  " + joined(parts, "    ") + "\n";
    if (!m.fits && !m.out_of_memory.empty()) wrapped("", m.out_of_memory);
    out_ += "\n";
  }

  std::string bar() const {
    struct Part {
      Time time;
      const char* cell;
      const char* colour;
    };
    const Part parts[] = {{a_.compute, "█", "32"},
                          {a_.exposed_communication, "▒", "33"},
                          {a_.exposed_host, "░", "35"},
                          {a_.optimizer, "▓", "36"},
                          {a_.idle, "·", "2"}};
    const double total = std::max(1.0, static_cast<double>(a_.step_time.value));
    std::string out;
    for (const Part& p : parts) {
      std::string cells;
      for (int i = 0;
           i < static_cast<int>(std::lround(kBarWidth * static_cast<double>(p.time.value) / total));
           ++i)
        cells += p.cell;
      if (!cells.empty()) out += paint(cells, p.colour);
    }
    return out + "  ";
  }

  struct TimePart {
    std::string name;
    Time time;
  };
  bool is_small(Time t) const { return t.value * 200 < a_.step_time.value; }

  /// Exposed communication by kind, largest first; kinds that are small go into the rest.
  std::vector<TimePart> exposed_parts() const {
    std::vector<TimePart> kinds;
    Time sum;
    for (const AnswerCommunication& c : a_.communication) {
      const std::string name = "exposed " + c.kind;
      const auto at = std::find_if(kinds.begin(), kinds.end(),
                                   [&](const TimePart& k) { return k.name == name; });
      if (at == kinds.end())
        kinds.push_back({name, c.exposed});
      else
        at->time += c.exposed;
      sum += c.exposed;
    }
    std::stable_sort(kinds.begin(), kinds.end(),
                     [](const TimePart& a, const TimePart& b) { return a.time > b.time; });
    std::erase_if(kinds, [this](const TimePart& k) { return is_small(k.time); });
    // Kinds that are exposed at the same time do not add up.
    if (kinds.empty() || sum > a_.exposed_communication)
      return {{"exposed communication", a_.exposed_communication}};
    const Time rest = a_.exposed_communication - sum;
    if (!is_small(rest)) kinds.push_back({"exposed packing and copies", rest});
    return kinds;
  }

  /// Parts that add up to the step: what is small goes together.
  std::vector<TimePart> time_parts() const {
    std::vector<TimePart> parts{{"compute", a_.compute}};
    const std::vector<TimePart> exposed = exposed_parts();
    parts.insert(parts.end(), exposed.begin(), exposed.end());
    if (!is_small(a_.exposed_host)) parts.push_back({"waiting for the host", a_.exposed_host});
    parts.push_back({"optimizer", a_.optimizer});
    if (!is_small(a_.idle)) parts.push_back({"idle", a_.idle});
    Time rest = a_.step_time;
    for (const TimePart& p : parts) rest -= p.time;
    if (rest.value > 0 && !is_small(rest)) parts.push_back({"other", rest});
    return parts;
  }

  void time_line() {
    std::vector<std::string> parts;
    for (const TimePart& p : time_parts()) parts.push_back(p.name + " " + format_time(p.time));
    if (style_.bars) {
      label("time");
      out_ += bar() + "\n";
      wrapped("       ", joined(parts, " · "));
    } else {
      wrapped("time   ", joined(parts, " · "));
    }
  }

  void limit_line() {
    if (a_.critical_path.empty()) return;
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < std::min<std::size_t>(4, a_.critical_path.size()); ++i) {
      const AnswerShare& s = a_.critical_path[i];
      parts.push_back(
          fmt::format("{} {:.0f} %", s.resource, 100 * (s.time / std::max(a_.step_time, Time(1)))));
    }
    wrapped("limit  ", "critical path: " + joined(parts, " · ") + hidden_compute());
  }

  /// Kernels that run while the step waits for something slower are not on its critical path:
  /// said where they are many, else the two lines seem to contradict each other.
  std::string hidden_compute() const {
    Time on_path;
    for (const AnswerShare& s : a_.critical_path)
      if (s.is_kernel) on_path += s.time;
    const Time hidden = a_.compute + a_.optimizer - on_path;
    if (hidden.value * 5 < a_.step_time.value) return "";
    return fmt::format(" ({} of the kernels run beside it and do not lengthen the step)",
                       format_time(hidden));
  }

  void memory_lines() {
    const AnswerMemory& m = a_.memory;
    wrapped(
        "memory ",
        fmt::format(
            "{} GiB reserved = {} allocated + {} reserved but unallocated; device total {} with context {} "
            "and NCCL {}{}",
            gib(m.reserved_peak), gib(m.allocated_peak), gib(m.reserved_peak - m.allocated_peak),
            gib(m.device_peak), gib(m.context), gib(m.communicators),
            m.fits_device ? "" : "; on a device without limit"));
    if (m.host_peak.value > (1 << 30))
      wrapped("       ", fmt::format("host memory {} GiB on each rank, {} of {} GiB on a node",
                                     gib(m.host_peak), gib(m.host_node_peak),
                                     m.host_capacity.value > 0 ? gib(m.host_capacity) : "unknown"));
    if (m.owners.empty()) return;
    std::vector<std::pair<std::string, Bytes>> categories = by_category();
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < std::min<std::size_t>(6, categories.size()); ++i)
      parts.push_back(fmt::format("{} {}", categories[i].first, gib(categories[i].second)));
    wrapped("       ", fmt::format("peak at {}: {}", m.peak_at, joined(parts, " · ")));
  }

  std::vector<std::pair<std::string, Bytes>> by_category() const {
    std::vector<std::pair<std::string, Bytes>> out;
    for (const AnswerOwner& o : a_.memory.owners) {
      const auto at = std::find_if(out.begin(), out.end(),
                                   [&](const auto& c) { return c.first == o.category; });
      if (at == out.end())
        out.emplace_back(o.category, o.bytes);
      else
        at->second += o.bytes;
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    return out;
  }

  /// Rounded to what is shown, without a sign on nothing.
  static std::string gib_change(Bytes b) {
    const double gib = std::round(static_cast<double>(b.value) / (1 << 30) * 10) / 10;
    return gib == 0 ? "0.0" : fmt::format("{:+.1f}", gib);
  }

  void try_lines() {
    bool first = true;
    std::size_t width = 24;
    for (const AnswerSuggestion& s : a_.suggestions) width = std::max(width, s.change.size());
    for (const AnswerSuggestion& s : a_.suggestions) {
      label(first ? "try" : "");
      first = false;
      std::string line = fmt::format("{:<{}} step {:<9} {:>6} GiB", s.change, width,
                                     format_time(s.step_time), gib_change(s.memory_change));
      const std::string rate = throughput(s.tokens_per_s_per_gpu, s.samples_per_s_per_gpu);
      if (!rate.empty()) line += "  " + rate;
      const double gain = 100 * (s.speedup - 1);
      std::string verdict = "(does not fit)";
      if (s.fits && a_.memory.fits)
        verdict =
            fmt::format("<- fits, {:.0f} % {}", std::abs(gain), gain >= 0 ? "faster" : "slower");
      else if (s.fits)
        verdict = "<- fits";
      out_ += line + "  " + (s.fits ? paint(verdict, "32") : paint(verdict, "2")) + "\n";
    }
  }

  void communication_table() {
    if (a_.communication.empty()) return;
    out_ += "\n  " +
            paint(fmt::format("{:<16}{:<11}{:>5}{:>7}{:>11}{:>11}{:>11}{:>11}  {}", "collective",
                              "group", "ranks", "count", "bytes", "busy", "sharing", "exposed",
                              "limited by"),
                  "2") +
            "\n";
    for (const AnswerCommunication& c : a_.communication)
      out_ += fmt::format("  {:<16}{:<11}{:>5}{:>7}{:>11}{:>11}{:>11}{:>11}  {}\n", c.kind, c.group,
                          c.group_size, c.count, format_bytes_decimal(c.bytes), format_time(c.busy),
                          format_time(c.shared), format_time(c.exposed), c.limited_by);
    if (a_.interference.value > 0)
      out_ += fmt::format("  kernels take {} longer because of transfers and other kernels beside them\n",
                          format_time(a_.interference));
  }
  void critical_path_table() {
    if (a_.critical_path.empty()) return;
    out_ += "\n  " + paint("critical path", "2") + "\n";
    for (const AnswerShare& s : a_.critical_path)
      out_ += fmt::format("  {:<40}{:>12}{:>8.1f} %\n", s.resource, format_time(s.time),
                          100 * (s.time / std::max(a_.step_time, Time(1))));
  }
  void owner_table() {
    if (a_.memory.owners.empty()) return;
    out_ += "\n  " + paint("live at the memory peak (" + a_.memory.peak_at + ")", "2") + "\n";
    wrapped("  ",
            "memory has no range: it follows the allocations of recorded runs; docs/validation.md "
            "says how far published peaks are from it");
    for (std::size_t i = 0; i < std::min<std::size_t>(20, a_.memory.owners.size()); ++i) {
      const AnswerOwner& o = a_.memory.owners[i];
      out_ += fmt::format("  {:<28}{:<32}{:>12}\n", o.category, o.unit, format_memory(o.bytes));
    }
  }
  /// A row whose last cell is prose: broken at blanks, continued on lines of its own.
  void row_with_source(const std::string& cells, const std::string& source) {
    if (display_width(cells + source) <= static_cast<std::size_t>(style_.width)) {
      out_ += cells + source + "\n";
      return;
    }
    out_ += cells.substr(0, cells.find_last_not_of(' ') + 1) + "\n";
    wrapped("      ", source);
  }

  void uncertainty_table() {
    if (a_.uncertainty.empty()) return;
    out_ += "\n  " + paint("what the range of the step comes from (one standard deviation)", "2") +
            "\n";
    for (const AnswerUncertainty& u : a_.uncertainty)
      row_with_source(fmt::format("  {:<36}+-{:>5.1f} %  step +-{:>5.1f} %  ", u.quantity,
                                  100 * u.sd, 100 * u.effect),
                      u.source);
  }
  void provenance_table() {
    if (a_.provenance.empty()) return;
    out_ += "\n  " + paint("numbers this rests on", "2") + "\n";
    for (const AnswerProvenance& p : a_.provenance)
      row_with_source(fmt::format("  {:<36}{:>16}  {:<11} ", p.quantity, p.value, p.kind),
                      p.source);
  }

  const StepAnswer& a_;
  const TextStyle& style_;
  std::string out_;
};

}  // namespace

std::string text_of(const StepAnswer& answer, const TextStyle& style, bool explain) {
  AnswerText text(answer, style);
  return explain ? text.explained() : text.screen();
}

}  // namespace foreshard
