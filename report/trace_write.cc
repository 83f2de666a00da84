#include <fmt/format.h>

#include <map>
#include <ostream>
#include <set>

#include "core/atomic_file.h"
#include "core/json.h"
#include "report/trace_document.h"
#include "schedules/names.h"

namespace foreshard {
namespace {

constexpr int kHostTrack = 0;  ///< Thread number of the host; stream s is s + 1.

std::string json_text(std::string_view s) {
  return Json(s).dump(-1, ' ', false, Json::error_handler_t::replace);
}
/// Microseconds with all digits of a picosecond.
std::string micros(Time t) {
  const std::int64_t ps = t.value < 0 ? -t.value : t.value;
  return fmt::format("{}{}.{:06}", t.value < 0 ? "-" : "", ps / 1'000'000, ps % 1'000'000);
}

class TraceWriter {
 public:
  TraceWriter(const TraceDocument& d, std::ostream& out) : d_(d), t_(d.trace), out_(out) {
    for (const Span& s : t_.spans) origin_ = std::min(origin_, s.start);
    for (const MemorySample& m : t_.memory) origin_ = std::min(origin_, m.at);
  }

  void run() {
    out_ << "{\"displayTimeUnit\": \"ns\",\n\"foreshard\": ";
    write_head();
    out_ << ",\n\"traceEvents\": [";
    write_tracks();
    for (const Span& s : t_.spans) write_span(s);
    for (const MemorySample& m : t_.memory) write_counter(m);
    write_arrows();
    out_ << "\n]}\n";
  }

 private:
  template <typename List, typename Write>
  void list(std::string_view key, const List& items, Write write) {
    out_ << ",\n\"" << key << "\": [";
    bool first = true;
    for (const auto& x : items) {
      out_ << (first ? "" : ", ") << write(x);
      first = false;
    }
    out_ << "]";
  }

  void write_head() {
    out_ << fmt::format(
        "{{\"format\": \"foreshard-trace\", \"version\": 1,\n\"source\": {}, \"model\": {}, "
        "\"description\": {},\n"
        "\"world\": {}, \"overruns\": {}, \"timing_valid\": {}, \"origin_ps\": {}",
        json_text(std::string(name_of(t_.timing))), json_text(t_.model), json_text(t_.description),
        t_.world, t_.overruns, t_.timing_valid, origin_.value);
    list("notes", t_.notes, [](const std::string& s) { return json_text(s); });
    list("losses", t_.losses, [](double x) { return fmt::format("{}", x); });
    list("gradient_norms", t_.gradient_norms, [](double x) { return fmt::format("{}", x); });
    list("step_times", t_.step_times, [](const StepTime& s) {
      return fmt::format("[{}, {}, {}, {}]", s.rank, s.step, s.start.value, s.end.value);
    });
    list("step_memory", t_.step_memory, [](const StepMemory& s) {
      return fmt::format("[{}, {}, {}, {}, {}, {}, {}]", s.rank, s.step, s.allocated_peak.value,
                         s.reserved_peak.value, s.active_peak.value, s.retries, s.out_of_memory);
    });
    list("memory", t_.memory, [](const MemorySample& m) {
      return fmt::format("[{}, {}, {}, {}, {}, {}, {}]", m.rank, m.instruction, m.step, m.at.value,
                         m.allocated.value, m.reserved.value, m.active.value);
    });
    list("program_of_rank", d_.program_of_rank,
         [](std::uint32_t n) { return fmt::format("{}", n); });
    out_ << ",\n\"programs\": [";
    for (std::size_t i = 0; i < d_.programs.size(); ++i) write_program(d_.programs[i], i == 0);
    out_ << "]}";
  }

  void write_program(const ProgramLabels& p, bool first) {
    out_ << (first ? "" : ",\n") << "{\"kind\": \"program\"";
    list("streams", p.streams, [](const std::string& s) { return json_text(s); });
    list("titles", p.titles, [](const std::string& s) { return json_text(s); });
    list("instructions", p.instructions, [](const InstructionLabel& l) {
      return fmt::format("[\"{}\", {}, {}, {}]", name_of(l.kind), l.title, l.bytes.value, l.stream);
    });
    list("first_uses", p.first_uses,
         [](const ProgramLabels::Use& u) { return fmt::format("[{}, {}]", u.gather, u.launch); });
    out_ << "}";
  }

  /// On the file's axis, which has no times below zero (Perfetto drops those).
  std::string at(Time t) const { return micros(t - origin_); }

  void event(const std::string& text) {
    out_ << (first_event_ ? "\n" : ",\n") << text;
    first_event_ = false;
  }

  /// Names of processes (ranks) and threads (host and streams).
  void write_tracks() {
    std::set<std::int32_t> ranks;
    for (const Span& s : t_.spans) ranks.insert(s.rank);
    for (const std::int32_t r : ranks) {
      event(fmt::format(
          R"({{"ph": "M", "pid": {}, "name": "process_name", "args": {{"name": "rank {}"}}}})", r,
          r));
      track(r, kHostTrack, "host");
      const ProgramLabels& labels = d_.labels_for(r);
      for (std::size_t s = 0; s < labels.streams.size(); ++s)
        track(r, static_cast<int>(s) + 1, labels.streams[s]);
    }
  }
  void track(std::int32_t rank, int number, const std::string& name) {
    event(fmt::format(
        R"({{"ph": "M", "pid": {}, "tid": {}, "name": "thread_name", "args": {{"name": {}}}}})",
        rank, number, json_text(name)));
    event(fmt::format(
        R"({{"ph": "M", "pid": {}, "tid": {}, "name": "thread_sort_index", "args": {{"sort_index": {}}}}})",
        rank, number, number));
  }

  static int track_of(const Span& s) { return s.lane == Lane::kHost ? kHostTrack : s.stream + 1; }

  void write_span(const Span& s) {
    const ProgramLabels& labels = d_.labels_for(s.rank);
    const InstructionLabel& l = labels.instructions[s.instruction];
    event(fmt::format(
        R"({{"ph": "X", "pid": {}, "tid": {}, "ts": {}, "dur": {}, "name": {}, "cat": "{}", "args": {{"i": {}, "step": {}{}}}}})",
        s.rank, track_of(s), at(s.start), micros(s.end - s.start),
        json_text(labels.titles[l.title]), name_of(l.kind), s.instruction, s.step,
        l.bytes.value > 0 ? fmt::format(", \"bytes\": {}", l.bytes.value) : ""));
  }

  void write_counter(const MemorySample& m) {
    event(fmt::format(
        R"({{"ph": "C", "pid": {}, "ts": {}, "name": "memory bytes", "args": {{"allocated": {}, "reserved": {}}}}})",
        m.rank, at(m.at), m.allocated.value, m.reserved.value));
  }

  /// Arrows ("s" at the gather's end, "f" at the use) between the spans of one rank and step.
  void write_arrows() {
    std::map<std::tuple<std::int32_t, std::int32_t, std::uint32_t>, const Span*> device;
    for (const Span& s : t_.spans)
      if (s.lane == Lane::kStream) device[{s.rank, s.step, s.instruction}] = &s;
    std::int64_t number = 0;
    for (const auto& [key, span] : device) {
      const auto& [rank, step, instruction] = key;
      const auto& uses = d_.labels_for(rank).first_uses;
      const auto use =
          std::find_if(uses.begin(), uses.end(),
                       [&, gather = instruction](const auto& u) { return u.gather == gather; });
      if (use == uses.end()) continue;
      const auto target = device.find({rank, step, use->launch});
      if (target == device.end()) continue;
      const Span& to = *target->second;
      event(fmt::format(
          R"({{"ph": "s", "pid": {}, "tid": {}, "ts": {}, "id": {}, "name": "gathered", "cat": "gather"}})",
          rank, track_of(*span), at(span->end), number));
      event(fmt::format(
          R"({{"ph": "f", "bp": "e", "pid": {}, "tid": {}, "ts": {}, "id": {}, "name": "gathered", "cat": "gather"}})",
          rank, track_of(to), at(to.start), number));
      ++number;
    }
  }

  const TraceDocument& d_;
  const Trace& t_;
  std::ostream& out_;
  Time origin_{0};  ///< Of the first event, if that is before zero: an initialisation.
  bool first_event_ = true;
};

}  // namespace

void write_trace(const TraceDocument& document, std::ostream& out) {
  TraceWriter(document, out).run();
}

void write_trace_file(const TraceDocument& document, const std::filesystem::path& path) {
  AtomicFile file(path);
  write_trace(document, file.out());
  file.commit();
}

}  // namespace foreshard
