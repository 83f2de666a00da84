#include "report/plan_difference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/format.h"
#include "core/json.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostRowsOfAKind = 7, kWidth = 100, kFirstColumn = 44, kColumn = 20;
constexpr double kWorthSaying = 0.002;  ///< Of the step or the peak.

std::string signed_gib(Bytes b) {
  return fmt::format("{:+.2f}", static_cast<double>(b.value) / (1 << 30));
}
std::string in_gib(Bytes b) {
  return fmt::format("{:.1f}", static_cast<double>(b.value) / (1 << 30));
}

std::string signed_memory(Bytes b) {
  if (b.value == 0) return "0";
  return (b.value < 0 ? "-" : "+") + format_memory(Bytes(std::abs(b.value)));
}

template <typename Value>
struct Change {
  std::string name;
  Value by{};
};

/// b - a by name, largest first; changes below a share of `whole` are left out.
template <typename Value>
std::vector<Change<Value>> changes(const std::vector<std::pair<std::string, Value>>& a,
                                   const std::vector<std::pair<std::string, Value>>& b,
                                   Value whole) {
  std::vector<Change<Value>> out;
  const auto at = [&out](const std::string& name) -> Value& {
    for (Change<Value>& c : out)
      if (c.name == name) return c.by;
    out.push_back({name, {}});
    return out.back().by;
  };
  for (const auto& [name, value] : b) at(name) += value;
  for (const auto& [name, value] : a) at(name) -= value;
  std::erase_if(out, [whole](const Change<Value>& c) {
    return std::abs(static_cast<double>(c.by.value)) <
           kWorthSaying * static_cast<double>(whole.value);
  });
  std::stable_sort(out.begin(), out.end(), [](const Change<Value>& x, const Change<Value>& y) {
    return std::abs(x.by.value) > std::abs(y.by.value);
  });
  return out;
}

/// Parts joined by dots, broken into lines of kWidth that continue under `indent` blanks.
std::string broken(const std::vector<std::string>& parts, std::size_t indent) {
  std::string out;
  std::size_t column = indent;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string part = parts[i] + (i + 1 < parts.size() ? " ·" : "");
    if (column > indent && column + 1 + part.size() > kWidth) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += " ";
      ++column;
    }
    out += part;
    column += part.size();
  }
  return out;
}

std::string percent(double a, double b) {
  return a > 0 ? fmt::format("{:+.1f} %", 100 * (b - a) / a) : "";
}

std::string step_line(const PlanDifference& d) {
  std::vector<std::string> parts;
  for (const Change<Time>& c :
       changes(d.a.time_parts, d.b.time_parts, std::max(d.a.step, d.b.step)))
    parts.push_back(c.name + " " + format_signed_time(c.by));
  if (parts.empty()) parts.push_back("no part differs by 0.2 %");
  return fmt::format(
      "  step     {} -> {} ({})\n           {}\n", format_time(d.a.step), format_time(d.b.step),
      percent(static_cast<double>(d.a.step.value), static_cast<double>(d.b.step.value)),
      broken(parts, 11));
}

std::string memory_line(const PlanDifference& d) {
  std::vector<std::string> parts;
  for (const Change<Bytes>& c :
       changes(d.a.memory_parts, d.b.memory_parts, std::max(d.a.device_peak, d.b.device_peak)))
    parts.push_back(c.name + " " + signed_gib(c.by));
  if (parts.empty()) parts.push_back("no part differs by 0.2 %");
  const auto fits = [](const DifferenceSide& s) { return s.fits ? "" : ", does not fit"; };
  return fmt::format("  memory   {}{} -> {}{} GiB of the device ({})\n           {}\n",
                     in_gib(d.a.device_peak), fits(d.a), in_gib(d.b.device_peak), fits(d.b),
                     signed_gib(d.b.device_peak - d.a.device_peak), broken(parts, 11));
}

std::string amount(std::int64_t count, const std::optional<Bytes>& bytes) {
  if (count == 0) return "-";
  if (!bytes) return with_thousands(count);
  return fmt::format("{} x, {}", with_thousands(count), format_bytes_decimal(*bytes));
}

/// A line without blanks at its end.
std::string trimmed(std::string line) {
  while (line.ends_with(' ')) line.pop_back();
  return line + "\n";
}

/// The end tells titles apart ("FSDP2, micro-batch 1" and "..., micro-batch 2"): the middle goes.
std::string shortened(const std::string& s, std::size_t width) {
  if (s.size() <= width) return s;
  const std::size_t tail = (width - 3) * 2 / 3, head = width - 3 - tail;
  return s.substr(0, head) + "..." + s.substr(s.size() - tail);
}

/// One line of a table. Cells never touch: a first cell that is too long has a line of its own.
std::string columns(const std::string& indent, const std::string& first, const std::string& a,
                    const std::string& b, const std::string& cost) {
  const std::string cells = fmt::format(" {:>{}} {:>{}} {:>13}", a, kColumn, b, kColumn, cost);
  const std::size_t room = kFirstColumn - indent.size();
  if (first.size() <= room) return trimmed(fmt::format("{}{:<{}}{}", indent, first, room, cells));
  return indent + first + "\n" + trimmed(std::string(kFirstColumn, ' ') + cells);
}

std::string heading(const std::string& kind, const PlanDifference& d) {
  const char* const cost = kind == "buffer"                         ? "at the peak"
                           : kind == "collective" || kind == "copy" ? "exposed"
                                                                    : "";
  const char* const title = kind == "collective" ? "collectives"
                            : kind == "copy"     ? "copies"
                            : kind == "wait"     ? "waits"
                            : kind == "buffer"   ? "buffers allocated"
                            : kind == "kernel"   ? "kernels"
                                                 : "plan";
  return "\n" +
         columns("  ", title, shortened(d.a.title, kColumn), shortened(d.b.title, kColumn), cost);
}

/// Words broken into lines of kWidth that continue under `indent` blanks.
std::string wrapped(const std::string& text, std::size_t indent) {
  std::string out;
  std::size_t column = indent;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (column > indent && column + 1 + end - at > kWidth) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += " ";
      ++column;
    }
    out += text.substr(at, end - at);
    column += end - at;
    at = end + 1;
  }
  return out;
}

std::string row_line(const DifferenceRow& r) {
  std::string cost;
  if (r.time) cost = format_signed_time(*r.time);
  if (r.memory) cost = signed_memory(*r.memory);
  return columns("    ", r.what, amount(r.count_a, r.bytes_a), amount(r.count_b, r.bytes_b), cost);
}

/// The rows by kind, those that cost most first.
std::string table_of(const PlanDifference& d) {
  std::string out, kind;
  std::size_t shown = 0, left = 0;
  const auto close = [&] {
    if (left > 0) out += fmt::format("    and {} more (--json has all)\n", left);
    left = 0;
  };
  for (const DifferenceRow& r : d.rows) {
    if (r.kind != kind) {
      close();
      kind = r.kind;
      shown = 0;
      out += heading(kind, d);
    }
    if (++shown > kMostRowsOfAKind)
      ++left;
    else
      out += row_line(r);
  }
  close();
  return out;
}

Json side(const DifferenceSide& s) {
  Json out;
  out["title"] = s.title;
  out["subject"] = s.subject;
  out["step_time_s"] = to_seconds(s.step);
  out["breakdown"] = Json::object();
  for (const auto& [name, time] : s.time_parts) out["breakdown"][name] = to_seconds(time);
  out["interference_s"] = to_seconds(s.interference);
  out["device_peak_bytes"] = s.device_peak.value;
  out["memory"] = Json::object();
  for (const auto& [name, bytes] : s.memory_parts) out["memory"][name] = bytes.value;
  out["fits"] = s.fits;
  return out;
}

}  // namespace

std::string text_of(const PlanDifference& d, bool table) {
  std::string out =
      fmt::format("{} -> {}: {}\n\n", d.a.title, d.b.title,
                  d.a.subject == d.b.subject ? d.a.subject : d.a.subject + " -> " + d.b.subject);
  out += step_line(d) + memory_line(d);
  const std::vector<std::string> words = words_of(d);
  if (!words.empty()) out += "\n";
  for (const std::string& w : words) out += "  - " + wrapped(w, 4) + "\n";
  if (d.rows.empty()) out += "\n  The two plans issue the same.\n";
  if (table) out += table_of(d);
  if (!d.equal.empty()) out += "\n  equal: " + broken(d.equal, 9) + "\n";
  if (!table && !d.rows.empty()) out += "  every count: --table, --json\n";
  for (const std::string& n : d.notes) out += "  note: " + n + "\n";
  if (!d.not_modelled.empty()) out += "  not modelled: " + broken(d.not_modelled, 16) + "\n";
  return out;
}

Json to_json(const PlanDifference& d) {
  Json out;
  out["a"] = side(d.a);
  out["b"] = side(d.b);
  out["words"] = words_of(d);
  out["differences"] = Json::array();
  for (const DifferenceRow& r : d.rows) {
    Json row;
    row["kind"] = r.kind;
    row["what"] = r.what;
    row["a"] = {{"count", r.count_a}, {"bytes", r.bytes_a ? Json(r.bytes_a->value) : Json()}};
    row["b"] = {{"count", r.count_b}, {"bytes", r.bytes_b ? Json(r.bytes_b->value) : Json()}};
    row["time_s"] =
        r.time ? Json(r.time->value < 0 ? -to_seconds(Time(-r.time->value)) : to_seconds(*r.time))
               : Json();
    row["memory_bytes"] = r.memory ? Json(r.memory->value) : Json();
    out["differences"].push_back(std::move(row));
  }
  out["equal"] = d.equal;
  out["notes"] = d.notes;
  out["not_modelled"] = d.not_modelled;
  return out;
}

}  // namespace foreshard
