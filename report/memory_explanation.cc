#include "report/memory_explanation.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/format.h"
#include "core/json.h"

namespace foreshard {
namespace {

double gib(Bytes b) { return static_cast<double>(b.value) / (1 << 30); }

struct Category {
  std::string name;
  Bytes bytes;
  std::vector<const AnswerOwner*> owners;  ///< Largest first.
};

std::vector<Category> categories_of(const AnswerMemory& m) {
  std::vector<Category> out;
  for (const AnswerOwner& o : m.owners) {
    auto at = std::find_if(out.begin(), out.end(),
                           [&](const Category& c) { return c.name == o.category; });
    if (at == out.end()) at = out.insert(out.end(), Category{o.category, Bytes(0), {}});
    at->bytes += o.bytes;
    at->owners.push_back(&o);
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Category& a, const Category& b) { return a.bytes > b.bytes; });
  return out;
}

std::string amount(Bytes b) {
  return b.value >= (1 << 30) / 10 ? fmt::format("{:.2f} GiB", gib(b)) : format_memory(b);
}

/// "32 x 0.66 GiB (layers.0 .. layers.31)": owners of equal size together, at most two groups.
std::string owners_text(const Category& c) {
  std::string out;
  int groups = 0;
  for (std::size_t i = 0; i < c.owners.size() && groups < 2; ++groups) {
    std::size_t end = i + 1;
    while (end < c.owners.size() && c.owners[end]->bytes == c.owners[i]->bytes) ++end;
    const auto by_number = [](const AnswerOwner* x,
                              const AnswerOwner* y) {  // layers.9 before layers.10
      return std::pair(x->unit.size(), x->unit) < std::pair(y->unit.size(), y->unit);
    };
    const auto from = c.owners.begin() + static_cast<std::ptrdiff_t>(i),
               to = c.owners.begin() + static_cast<std::ptrdiff_t>(end);
    const std::string &first = (*std::min_element(from, to, by_number))->unit,
                      &last = (*std::max_element(from, to, by_number))->unit;
    if (!out.empty()) out += ", ";
    const std::string name = first.empty() ? "the model" : first;
    out += end - i > 1
               ? fmt::format("{} x {} ({} .. {})", end - i, amount(c.owners[i]->bytes), name, last)
               : fmt::format("{} {}", name, amount(c.owners[i]->bytes));
    i = end;
  }
  return out;
}

class ExplanationText {
 public:
  ExplanationText(const MemoryExplanation& x, const TextStyle& style) : x_(x), style_(style) {}

  std::string write() {
    head();
    phases();
    live_set();
    changes();
    checkpoints();
    return std::move(out_);
  }

 private:
  std::string paint(const std::string& text, const char* code) const {
    return style_.colour ? fmt::format("\033[{}m{}\033[0m", code, text) : text;
  }

  void head() {
    const AnswerMemory& m = x_.memory;
    out_ += x_.title + "\n\n";
    out_ +=
        "  " +
        paint(fmt::format(
                  "Peak {:.2f} GiB allocated, {:.2f} reserved, {:.2f} of {:.2f} on the device{}",
                  gib(m.allocated_peak), gib(m.reserved_peak), gib(m.device_peak), gib(m.capacity),
                  m.fits ? "" : ": does not fit"),
              m.fits ? "1;32" : "1;31") +
        "\n";
    const std::string when =
        x_.step < 0 ? "before the first step" : fmt::format("step {}", x_.step + 1);
    out_ += fmt::format("  at   {}, {}, rank {}\n", m.peak_at, when, x_.rank);
    out_ += fmt::format("  plus {} reserved but unallocated, {} context, {} NCCL buffers\n\n",
                        amount(m.reserved_peak - m.allocated_peak), amount(m.context),
                        amount(m.communicators));
  }

  /// Phases as rows, steps as columns; the initialisation stands in the first of them.
  void phases() {
    if (x_.phases.empty()) return;
    std::set<std::int32_t> steps;
    for (const AnswerPhase& p : x_.phases) steps.insert(std::max(p.step, 0));
    std::string head = fmt::format("{:<14}", "phase");
    for (const std::int32_t step : steps)
      head += fmt::format("{:>18}",
                          fmt::format("{}step {}", step == x_.step ? "peak: " : "", step + 1));
    out_ += "  " + paint(head + "   allocated / reserved, GiB", "2") + "\n";
    std::vector<std::string> names;
    for (const AnswerPhase& p : x_.phases) {
      if (std::find(names.begin(), names.end(), p.phase) == names.end()) names.push_back(p.phase);
    }
    for (const std::string& name : names) {
      std::string row = fmt::format("  {:<14}", name);
      for (const std::int32_t step : steps) {
        const auto at = std::find_if(x_.phases.begin(), x_.phases.end(), [&](const AnswerPhase& p) {
          return p.phase == name && std::max(p.step, 0) == step;
        });
        row += fmt::format(
            "{:>18}", at == x_.phases.end()
                          ? ""
                          : fmt::format("{:.2f} / {:.2f}", gib(at->allocated), gib(at->reserved)));
      }
      row.erase(row.find_last_not_of(' ') + 1);
      out_ += row + "\n";
    }
    out_ += "\n";
  }

  void live_set() {
    const std::vector<Category> all = categories_of(x_.memory);
    out_ +=
        "  " +
        paint(fmt::format("{:<24}{:>10}{:>8}  {}", "live at the peak", "GiB", "share", "owners"),
              "2") +
        "\n";
    const double whole = std::max<double>(1, static_cast<double>(x_.memory.allocated_peak.value));
    Bytes rest;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i >= 9) {
        rest += all[i].bytes;
        continue;
      }
      out_ +=
          fmt::format("  {:<24}{:>10.2f}{:>6.1f} %  {}\n", all[i].name, gib(all[i].bytes),
                      100 * static_cast<double>(all[i].bytes.value) / whole, owners_text(all[i]));
    }
    if (rest.value > 0)
      out_ += fmt::format("  {:<24}{:>10.2f}{:>6.1f} %\n", "others", gib(rest),
                          100 * static_cast<double>(rest.value) / whole);
    out_ += "\n";
  }

  void changes() {
    out_ += "  " +
            paint(fmt::format("{:<30}{:>10}{:>10}{:>11}{:>9}  {}", "what lowers it", "device",
                              "gain GiB", "step", "speed", "peak then at"),
                  "2") +
            "\n";
    std::string useless;
    int rows = 0;
    for (const AnswerMemoryChange& c : x_.changes) {
      if (c.device_change.value >= 0) {
        useless += fmt::format("{}{} ({:+.2f})", useless.empty() ? "" : ", ", c.change,
                               gib(c.device_change));
        continue;
      }
      if (++rows > 10) continue;
      const std::string name =
          c.change.starts_with("PYTORCH") ? "expandable_segments:True" : c.change;
      out_ += fmt::format("  {:<30}{:>10.2f}{:>10.2f}{:>11}{:>+7.0f} %  {}{}\n", name,
                          gib(c.device), -gib(c.device_change), format_time(c.step_time),
                          100 * (c.speed - 1), c.peak_at, c.fits ? "" : " (does not fit)");
    }
    if (rows == 0) out_ += "  nothing of what was tried\n";
    if (!useless.empty()) out_ += "  no gain: " + useless + "\n";
  }

  void checkpoints() {
    if (x_.checkpoints.empty()) return;
    out_ += "\n  " +
            paint(fmt::format("{:<38}{:>18}{:>12}{:>12}", "saving and loading, GiB", "device",
                              "host: rank", "node"),
                  "2") +
            "\n";
    for (const AnswerCheckpoint& c : x_.checkpoints) {
      out_ += fmt::format("  {:<38}{:>18}{:>12.2f}{:>12.2f}{}{}\n", c.phase + " " + c.way,
                          fmt::format("{:.2f} / {:.2f}", gib(c.allocated), gib(c.reserved)),
                          gib(c.host), gib(c.host_node), c.fits ? "" : "  device memory runs out",
                          c.host_fits ? "" : "  more than a node has");
    }
  }

  const MemoryExplanation& x_;
  const TextStyle& style_;
  std::string out_;
};

}  // namespace

std::string text_of(const MemoryExplanation& explanation, const TextStyle& style) {
  return ExplanationText(explanation, style).write();
}

Json to_json(const MemoryExplanation& x) {
  Json out;
  out["peak_at"] = x.memory.peak_at;
  out["rank"] = x.rank;
  out["step"] = x.step;
  out["allocated_peak_bytes"] = x.memory.allocated_peak.value;
  out["reserved_peak_bytes"] = x.memory.reserved_peak.value;
  out["device_peak_bytes"] = x.memory.device_peak.value;
  out["live"] = Json::array();
  for (const Category& c : categories_of(x.memory)) {
    Json owners = Json::array();
    for (const AnswerOwner* o : c.owners)
      owners.push_back({{"owner", o->unit}, {"bytes", o->bytes.value}});
    out["live"].push_back(
        {{"category", c.name}, {"bytes", c.bytes.value}, {"owners", std::move(owners)}});
  }
  out["phases"] = Json::array();
  for (const AnswerPhase& p : x.phases)
    out["phases"].push_back({{"step", p.step},
                             {"phase", p.phase},
                             {"allocated_peak_bytes", p.allocated.value},
                             {"reserved_peak_bytes", p.reserved.value}});
  out["changes"] = Json::array();
  for (const AnswerMemoryChange& c : x.changes)
    out["changes"].push_back({{"change", c.change},
                              {"kind", c.kind},
                              {"allocated_peak_bytes", c.allocated.value},
                              {"reserved_peak_bytes", c.reserved.value},
                              {"device_peak_bytes", c.device.value},
                              {"device_change_bytes", c.device_change.value},
                              {"step_time_s", to_seconds(c.step_time)},
                              {"relative_speed", c.speed},
                              {"fits", c.fits},
                              {"peak_at", c.peak_at}});
  out["checkpoints"] = Json::array();
  for (const AnswerCheckpoint& c : x.checkpoints)
    out["checkpoints"].push_back({{"phase", c.phase},
                                  {"way", c.way},
                                  {"allocated_peak_bytes", c.allocated.value},
                                  {"reserved_peak_bytes", c.reserved.value},
                                  {"host_bytes", c.host.value},
                                  {"host_node_bytes", c.host_node.value},
                                  {"fits", c.fits},
                                  {"host_fits", c.host_fits}});
  return out;
}

}  // namespace foreshard
