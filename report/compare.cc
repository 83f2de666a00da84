#include "report/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/format.h"
#include "core/json.h"

namespace foreshard {
namespace {

using RankStep = std::pair<std::int32_t, std::int32_t>;

/// Handing a loss to the reader of a run is no work of the device; plans that are only simulated
/// leave it out.
bool observes(const TraceDocument& d, const Span& s) {
  const ProgramLabels& labels = d.labels_for(s.rank);
  return labels.instructions[s.instruction].kind == InstructionKind::kLaunch &&
         labels.title(s.instruction).rfind(name_of(OpKind::kObserve), 0) == 0;
}

/// One trace, sorted for look-up by rank and step.
struct Index {
  const TraceDocument* document = nullptr;
  std::map<RankStep, std::vector<const Span*>>
      device;  ///< In stream order, streams one after the other.
  std::map<RankStep, std::vector<std::uint32_t>>
      memory;  ///< Instructions that changed memory, in host order.
  std::map<RankStep, StepMemory> peaks;
  std::map<RankStep, StepTime> times;
  std::map<std::uint32_t, std::int32_t> rank_of_program;  ///< First recorded rank.
  std::int32_t last_step = -1;

  explicit Index(const TraceDocument& d) : document(&d) {
    for (const Span& s : d.trace.spans)
      if (s.lane == Lane::kStream && !observes(d, s)) device[{s.rank, s.step}].push_back(&s);
    for (auto& [key, spans] : device)
      std::stable_sort(spans.begin(), spans.end(), [](const Span* a, const Span* b) {
        return std::tie(a->stream, a->start, a->instruction) <
               std::tie(b->stream, b->start, b->instruction);
      });
    for (const MemorySample& m : d.trace.memory) memory[{m.rank, m.step}].push_back(m.instruction);
    for (const StepMemory& m : d.trace.step_memory) peaks[{m.rank, m.step}] = m;
    for (const StepTime& t : d.trace.step_times) {
      times[{t.rank, t.step}] = t;
      last_step = std::max(last_step, t.step);
      rank_of_program.emplace(d.program_index(t.rank), t.rank);
    }
  }
  const ProgramLabels& labels(std::int32_t rank) const { return document->labels_for(rank); }
};

std::string step_text(Time t) { return format_time(t); }

class Comparer {
 public:
  Comparer(const TraceDocument& predicted, const TraceDocument& measured)
      : predicted_(predicted), measured_(measured) {
    require_same_job(predicted, measured);
  }

  Comparison run() {
    result_.overruns = measured_.document->trace.overruns;
    result_.timing_valid = measured_.document->trace.timing_valid;
    result_.predicted_timing = predicted_.document->trace.timing;
    result_.measured_timing = measured_.document->trace.timing;
    std::set<std::int32_t> ranks;
    for (const auto& [key, time] : measured_.times) {
      ranks.insert(key.first);
      compare_rank_step(key);
    }
    result_.ranks = static_cast<std::int64_t>(ranks.size());
    compare_steps();
    compare_peaks();
    if (result_.times_compare()) add_time_differences();
    return std::move(result_);
  }

 private:
  static void require_same_job(const TraceDocument& p, const TraceDocument& m) {
    if (p.trace.world == m.trace.world) return;
    throw InputError(Issue{m.trace.model, "",
                           fmt::format("the traces are of different jobs: {} ranks against {}",
                                       p.trace.world, m.trace.world),
                           "compare traces of one job"});
  }

  /// The predicted rank and step that stand for a measured one.
  std::optional<RankStep> counterpart(RankStep measured) const {
    const std::int32_t step = std::min(measured.second, predicted_.last_step);
    if (predicted_.times.count({measured.first, step}) != 0) return RankStep{measured.first, step};
    const auto it =
        predicted_.rank_of_program.find(predicted_.document->program_index(measured.first));
    if (it == predicted_.rank_of_program.end()) return std::nullopt;
    if (predicted_.times.count({it->second, step}) != 0) return RankStep{it->second, step};
    return std::nullopt;
  }

  void differ(bool& flag, std::string what, std::string predicted, std::string measured) {
    if (flag && result_.differences.size() < 10)
      result_.differences.push_back(
          {std::move(what), std::move(predicted), std::move(measured), Time(0)});
    flag = false;
  }

  static std::string place(RankStep key) {
    return fmt::format("rank {} step {}", key.first, key.second);
  }

  void compare_rank_step(RankStep key) {
    const std::optional<RankStep> other = counterpart(key);
    if (!other) return;
    const auto device_p = predicted_.device.find(*other), device_m = measured_.device.find(key);
    if (device_p != predicted_.device.end() && device_m != measured_.device.end())
      compare_device(key, *other, device_p->second, device_m->second);
    const auto memory_p = predicted_.memory.find(*other), memory_m = measured_.memory.find(key);
    if (memory_p != predicted_.memory.end() && memory_m != measured_.memory.end())
      compare_memory(key, *other, memory_p->second, memory_m->second);
  }

  static bool same(const ProgramLabels& a, std::uint32_t i, const ProgramLabels& b,
                   std::uint32_t j) {
    return i < a.instructions.size() && j < b.instructions.size() &&
           a.instructions[i].kind == b.instructions[j].kind &&
           a.instructions[i].stream == b.instructions[j].stream && a.title(i) == b.title(j);
  }

  void compare_device(RankStep key, RankStep other, const std::vector<const Span*>& p,
                      const std::vector<const Span*>& m) {
    const ProgramLabels &lp = predicted_.labels(other.first), &lm = measured_.labels(key.first);
    const std::size_t n = std::min(p.size(), m.size());
    for (std::size_t i = 0; i < n; ++i) {
      if (!same(lp, p[i]->instruction, lm, m[i]->instruction)) {
        differ(result_.order_equal,
               fmt::format("order on stream {}, {}, position {}", lm.streams[m[i]->stream],
                           place(key), i),
               lp.title(p[i]->instruction), lm.title(m[i]->instruction));
        return;
      }
      const Bytes bp = lp.instructions[p[i]->instruction].bytes,
                  bm = lm.instructions[m[i]->instruction].bytes;
      if (bp != bm)
        differ(result_.bytes_equal,
               fmt::format("bytes of {}, {}", lm.title(m[i]->instruction), place(key)),
               with_thousands(bp.value), with_thousands(bm.value));
      const Time extra = (m[i]->end - m[i]->start) - (p[i]->end - p[i]->start);
      Total& total = totals_[lm.title(m[i]->instruction)];
      total.extra += extra;
      total.predicted += p[i]->end - p[i]->start;
      total.measured += m[i]->end - m[i]->start;
    }
    ++compared_rank_steps_;
    if (p.size() != m.size())
      differ(result_.order_equal, "number of device operations, " + place(key),
             std::to_string(p.size()), std::to_string(m.size()));
    matched_ = std::max(matched_, static_cast<std::int64_t>(n));
  }

  void compare_memory(RankStep key, RankStep other, const std::vector<std::uint32_t>& p,
                      const std::vector<std::uint32_t>& m) {
    const ProgramLabels &lp = predicted_.labels(other.first), &lm = measured_.labels(key.first);
    const std::size_t n = std::min(p.size(), m.size());
    for (std::size_t i = 0; i < n; ++i) {
      if (!same(lp, p[i], lm, m[i])) {
        differ(result_.order_equal,
               fmt::format("order of memory requests, {}, position {}", place(key), i),
               lp.title(p[i]), lm.title(m[i]));
        return;
      }
      const Bytes bp = lp.instructions[p[i]].bytes, bm = lm.instructions[m[i]].bytes;
      if (bp != bm)
        differ(result_.bytes_equal, fmt::format("bytes of {}, {}", lm.title(m[i]), place(key)),
               with_thousands(bp.value), with_thousands(bm.value));
    }
    if (p.size() != m.size())
      differ(result_.order_equal, "number of memory requests, " + place(key),
             std::to_string(p.size()), std::to_string(m.size()));
    matched_memory_ = std::max(matched_memory_, static_cast<std::int64_t>(n));
  }

  /// The slowest rank of a step decides its time.
  static std::map<std::int32_t, Time> longest(const Index& index) {
    std::map<std::int32_t, Time> out;
    for (const auto& [key, t] : index.times)
      out[key.second] = std::max(out[key.second], t.end - t.start);
    return out;
  }

  void compare_steps() {
    result_.instructions = matched_ + matched_memory_;
    const auto p = longest(predicted_), m = longest(measured_);
    if (!p.empty()) result_.predicted_step = p.rbegin()->second;
    std::vector<Time> steady;
    for (const auto& [step, t] :
         m)  // The first step also fills the allocator and makes the optimizer states.
      if (step > 0 || m.size() == 1) steady.push_back(t);
    std::sort(steady.begin(), steady.end());
    if (!steady.empty()) result_.measured_step = steady[steady.size() / 2];
    result_.measured_steps = static_cast<std::int64_t>(steady.size());
  }

  void compare_peaks() {
    bool first = true;
    for (const auto& [key, m] : measured_.peaks) {
      const std::optional<RankStep> other = counterpart(key);
      const auto p = other ? predicted_.peaks.find(*other) : predicted_.peaks.end();
      if (p == predicted_.peaks.end()) continue;
      const auto gap = [](Bytes a, Bytes b) { return std::abs(a.value - b.value); };
      const bool larger = gap(m.allocated_peak, p->second.allocated_peak) >
                          gap(result_.measured_peak, result_.predicted_peak);
      const bool equal_but_higher = gap(m.allocated_peak, p->second.allocated_peak) ==
                                        gap(result_.measured_peak, result_.predicted_peak) &&
                                    m.allocated_peak > result_.measured_peak;
      if (!first && !larger && !equal_but_higher) continue;
      first = false;
      result_.measured_peak = m.allocated_peak;
      result_.predicted_peak = p->second.allocated_peak;
    }
    if (result_.peak_difference().value != 0)
      result_.differences.push_back({"allocated peak (bytes)",
                                     with_thousands(result_.predicted_peak.value),
                                     with_thousands(result_.measured_peak.value), Time(0)});
  }

  void add_time_differences() {
    std::vector<TraceDifference> times;
    for (const auto& [title, total] : totals_) {
      if (total.extra.value == 0) continue;
      const std::int64_t n = std::max<std::int64_t>(1, compared_rank_steps_);
      times.push_back(
          {title, step_text(total.predicted / n), step_text(total.measured / n), total.extra / n});
    }
    std::stable_sort(times.begin(), times.end(),
                     [](const TraceDifference& a, const TraceDifference& b) {
                       return std::abs(a.contribution.value) > std::abs(b.contribution.value);
                     });
    if (times.size() > 20) times.resize(20);
    result_.differences.insert(result_.differences.end(), times.begin(), times.end());
  }

  struct Total {
    Time extra, predicted, measured;
  };
  Index predicted_, measured_;
  Comparison result_;
  std::map<std::string, Total> totals_;
  std::int64_t matched_ = 0, matched_memory_ = 0, compared_rank_steps_ = 0;
};

}  // namespace

Comparison compare(const TraceDocument& predicted, const TraceDocument& measured) {
  return Comparer(predicted, measured).run();
}

namespace {

std::string step_of(const Comparison& c) {
  if (!c.times_compare()) {
    return fmt::format(
        "not compared: {} (median of {}) is this machine's CPU, not the hardware predicted for; "
        "run --emulate-links yes compares times",
        format_time(c.measured_timing == Timing::kCpuRanks ? c.measured_step : c.predicted_step),
        c.measured_steps);
  }
  std::string overruns;
  if (c.measured_timing == Timing::kEmulated)
    overruns = c.overruns == 0 ? ", no overrun" : fmt::format(", {} overruns", c.overruns);
  return fmt::format("predicted {}, measured {} (median of {}; {:+.1f} %{})",
                     format_time(c.predicted_step), format_time(c.measured_step), c.measured_steps,
                     100 * (c.step_ratio() - 1), overruns);
}

}  // namespace

std::string text_of(const Comparison& c) {
  const auto row = [](std::string_view what, const std::string& value) {
    return fmt::format("  {:<34}{}\n", what, value);
  };
  const std::string ranks = fmt::format("{} rank{}", c.ranks, c.ranks == 1 ? "" : "s");
  if (c.other_plans())
    return row("different plans",
               fmt::format("{}: {} -> {}", c.differences[0].what, c.differences[0].predicted,
                           c.differences[0].measured)) +
           "  no stream is the same to its end: these are not traces of the same plan; foreshard "
           "diff "
           "compares plans\n";
  std::string out = row(fmt::format("order of {} operations", with_thousands(c.instructions)),
                        c.order_equal ? "identical on " + ranks : "DIFFERENT");
  out += row("bytes moved", c.bytes_equal ? "identical" : "DIFFERENT");
  out +=
      row("allocated peak",
          c.peak_difference().value == 0
              ? fmt::format("identical ({} B at most)", with_thousands(c.measured_peak.value))
              : fmt::format("predicted {} B, measured {} B", with_thousands(c.predicted_peak.value),
                            with_thousands(c.measured_peak.value)));
  out += row("step", step_of(c));
  if (!c.timing_valid) out += row("", "too many overruns: the measured time says nothing");
  if (c.differences.empty()) return out;
  out += "  largest differences\n";
  for (std::size_t i = 0; i < std::min<std::size_t>(8, c.differences.size()); ++i) {
    const TraceDifference& d = c.differences[i];
    out += fmt::format("    {:<44} {:>12} -> {:<12} {}\n", d.what, d.predicted, d.measured,
                       d.contribution.value == 0 ? "" : format_signed_time(d.contribution));
  }
  return out;
}

Json to_json(const Comparison& c) {
  Json out;
  out["order_equal"] = c.order_equal;
  out["bytes_equal"] = c.bytes_equal;
  out["peak_bytes_difference"] = c.peak_difference().value;
  out["predicted_peak_bytes"] = c.predicted_peak.value;
  out["measured_peak_bytes"] = c.measured_peak.value;
  out["step_time_ratio"] = c.step_ratio();
  out["times_compare"] = c.times_compare();
  out["predicted_step_s"] = to_seconds(c.predicted_step);
  out["measured_step_s"] = to_seconds(c.measured_step);
  out["operations"] = c.instructions;
  out["ranks"] = c.ranks;
  out["overruns"] = c.overruns;
  out["timing_valid"] = c.timing_valid;
  out["differences"] = Json::array();
  for (const TraceDifference& d : c.differences)
    out["differences"].push_back({{"what", d.what},
                                  {"predicted", d.predicted},
                                  {"measured", d.measured},
                                  {"contribution_s", to_seconds(d.contribution)}});
  return out;
}

}  // namespace foreshard
