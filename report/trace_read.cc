#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "core/json.h"
#include "report/trace_document.h"
#include "schedules/names.h"
#include "schedules/structure.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostIssues = 20;

class TraceReader {
 public:
  explicit TraceReader(const std::string& file) : issues_(file) {}

  TraceDocument read(const Json& root) {
    const Json* head =
        root.is_object() && root.contains("foreshard") ? &root["foreshard"] : nullptr;
    if (head == nullptr || !head->is_object()) {
      issues_.add("", "is no trace of Foreshard: the key \"foreshard\" is missing",
                  "traces come from foreshard simulate --trace and foreshard run --trace");
      issues_.throw_if_any();
    }
    read_head(*head);
    issues_.throw_if_any();
    if (!root.contains("traceEvents") || !root["traceEvents"].is_array())
      issues_.add("traceEvents", "a list is wanted here");
    issues_.throw_if_any();
    std::size_t at = 0;
    for (const Json& e : root["traceEvents"]) read_event(e, at++);
    issues_.throw_if_any();
    return std::move(d_);
  }

 private:
  bool open() const { return issues_.issues().size() < kMostIssues; }

  void read_timing(ObjectReader& r) {
    std::vector<std::string> allowed;
    for (const EnumName<Timing>& row : kTimings) allowed.emplace_back(row.name);
    const std::string source = r.choice("source", "", allowed);
    if (source.empty())
      r.report("source", "is missing", fmt::format("{}", fmt::join(allowed, ", ")));
    for (const EnumName<Timing>& row : kTimings)
      if (row.name == source) d_.trace.timing = row.value;
  }

  void read_head(const Json& head) {
    ObjectReader r(head, "foreshard", issues_);
    Trace& t = d_.trace;
    if (const std::string format = r.required_string("format");
        format != "foreshard-trace" && !format.empty())
      r.report("format", fmt::format("found \"{}\", expected \"foreshard-trace\"", format));
    if (const std::int64_t version = r.required_integer("version", 0, INT64_MAX); version != 1)
      r.report("version", fmt::format("found {}, this program reads 1", version));
    read_timing(r);
    t.model = r.string("model", "");
    t.description = r.string("description", "");
    t.world = r.required_integer("world", 1, kLargestWorld);
    t.overruns = r.integer("overruns", 0, 0, INT64_MAX);
    t.timing_valid = r.boolean("timing_valid", true);
    origin_ = Time(r.integer("origin_ps", 0, INT64_MIN / 2, 0));
    t.notes = r.string_list("notes").value_or(std::vector<std::string>{});
    numbers(r, "losses", t.losses);
    numbers(r, "gradient_norms", t.gradient_norms);
    for (const std::int64_t p :
         r.integer_list("program_of_rank", 0, UINT32_MAX - 1).value_or(std::vector<std::int64_t>{}))
      d_.program_of_rank.push_back(static_cast<std::uint32_t>(p));
    read_programs(r);
    check_ranks(r);
    if (!issues_.empty()) return;
    rows(r, "step_times", 4, [&](const auto& n) {
      t.step_times.push_back({static_cast<std::int32_t>(n[0]), static_cast<std::int32_t>(n[1]),
                              Time(n[2]), Time(n[3])});
      return known_rank(n[0]);
    });
    rows(r, "step_memory", 7, [&](const auto& n) {
      t.step_memory.push_back({static_cast<std::int32_t>(n[0]), static_cast<std::int32_t>(n[1]),
                               Bytes(n[2]), Bytes(n[3]), Bytes(n[4]), n[5], n[6] != 0});
      return known_rank(n[0]);
    });
    rows(r, "memory", 7, [&](const auto& n) {
      t.memory.push_back({static_cast<std::int32_t>(n[0]), static_cast<std::uint32_t>(n[1]),
                          static_cast<std::int32_t>(n[2]), Time(n[3]), Bytes(n[4]), Bytes(n[5]),
                          Bytes(n[6])});
      return known_rank(n[0]) && known_instruction(n[0], n[1]);
    });
    r.finish();
  }

  bool known_rank(std::int64_t rank) const { return rank >= 0 && rank < d_.trace.world; }
  bool known_instruction(std::int64_t rank, std::int64_t i) const {
    return i >= 0 && static_cast<std::size_t>(i) < d_.labels_for(rank).instructions.size();
  }

  void check_ranks(ObjectReader& r) {
    if (!issues_.empty()) return;
    const std::size_t n = d_.program_of_rank.size();
    if (n != 1 && n != static_cast<std::size_t>(d_.trace.world))
      return r.report("program_of_rank",
                      fmt::format("has {} entries; needs 1 or {}", n, d_.trace.world));
    for (const std::uint32_t p : d_.program_of_rank)
      if (p >= d_.programs.size())
        return r.report("program_of_rank", fmt::format("program {} does not exist", p));
  }

  void numbers(ObjectReader& r, const char* key, std::vector<double>& out) {
    const Json* list = r.get(key);
    if (list == nullptr) return;
    if (!list->is_array()) return r.report(key, "a list is wanted here");
    for (const Json& x : *list) {
      if (!x.is_number())
        return r.report(key, fmt::format("contains {}, expected numbers", describe_json(x)));
      out.push_back(x.get<double>());
    }
  }

  /// Rows of `width` integers (true and false count as 1 and 0); `take` answers whether the row
  /// makes sense.
  template <typename Take>
  void rows(ObjectReader& r, const char* key, std::size_t width, Take take) {
    const Json* list = r.get(key);
    if (list == nullptr) return;
    if (!list->is_array()) return r.report(key, "a list is wanted here");
    std::vector<std::int64_t> numbers(width);
    for (std::size_t i = 0; i < list->size() && open(); ++i) {
      const Json& row = (*list)[i];
      const std::string path = fmt::format("foreshard.{}[{}]", key, i);
      if (!row.is_array() || row.size() != width) {
        issues_.add(path,
                    fmt::format("found {}, expected a list of {}", describe_json(row), width));
        continue;
      }
      bool good = true;
      for (std::size_t c = 0; c < width; ++c) {
        good = good && (row[c].is_number_integer() || row[c].is_boolean());
        if (good)
          numbers[c] = row[c].is_boolean() ? row[c].get<bool>() : row[c].get<std::int64_t>();
      }
      if (!good)
        issues_.add(path, "expected integers");
      else if (!take(numbers))
        issues_.add(path, "names a rank or an instruction that does not exist");
    }
  }

  void read_programs(ObjectReader& r) {
    const Json* list = r.get("programs");
    if (list == nullptr || !list->is_array() || list->empty())
      return r.report("programs", "a list of programs is wanted here");
    for (std::size_t i = 0; i < list->size() && open(); ++i) {
      ObjectReader p((*list)[i], fmt::format("foreshard.programs[{}]", i), issues_);
      p.ignore("kind");
      ProgramLabels labels;
      labels.streams = p.string_list("streams").value_or(std::vector<std::string>{});
      labels.titles = p.string_list("titles").value_or(std::vector<std::string>{});
      read_labels(p, labels);
      rows_of_uses(p, labels);
      p.finish();
      d_.programs.push_back(std::move(labels));
    }
  }

  void read_labels(ObjectReader& p, ProgramLabels& labels) {
    const Json* list = p.get("instructions");
    if (list == nullptr || !list->is_array())
      return p.report("instructions", "a list is wanted here");
    for (std::size_t i = 0; i < list->size() && open(); ++i) {
      const Json& row = (*list)[i];
      const bool shape = row.is_array() && row.size() == 4 && row[0].is_string() &&
                         row[1].is_number_integer() && row[2].is_number_integer() &&
                         row[3].is_number_integer();
      const auto kind = shape ? parse_enum<InstructionKind>(row[0].get_ref<const std::string&>(),
                                                            kInstructionKindCount)
                              : std::nullopt;
      const std::int64_t title = shape ? row[1].get<std::int64_t>() : -1;
      const std::int64_t stream = shape ? row[3].get<std::int64_t>() : -1;
      if (!kind || title < 0 || title >= static_cast<std::int64_t>(labels.titles.size()) ||
          stream < 0 ||
          stream >= std::max<std::int64_t>(1, static_cast<std::int64_t>(labels.streams.size()))) {
        issues_.add(p.path_of("instructions") + fmt::format("[{}]", i),
                    "expected [kind, title, bytes, stream]");
        continue;
      }
      labels.instructions.push_back({*kind, static_cast<std::uint32_t>(title),
                                     Bytes(row[2].get<std::int64_t>()),
                                     static_cast<StreamIndex>(stream)});
    }
  }

  void rows_of_uses(ObjectReader& p, ProgramLabels& labels) {
    const auto size = static_cast<std::int64_t>(labels.instructions.size());
    rows(p, "first_uses", 2, [&](const auto& n) {
      labels.first_uses.push_back(
          {static_cast<std::uint32_t>(n[0]), static_cast<std::uint32_t>(n[1])});
      return n[0] >= 0 && n[1] >= 0 && n[0] < size && n[1] < size;
    });
  }

  void read_event(const Json& e, std::size_t at) {
    if (!open() || !e.is_object() || !e.contains("ph") || e["ph"] != "X") return;
    const auto integer = [&](const Json& o, const char* key) -> std::int64_t {
      return o.contains(key) && o[key].is_number_integer() ? o[key].get<std::int64_t>() : -1;
    };
    const auto time = [&](const char* key) {
      return e.contains(key) && e[key].is_number() ? e[key].get<double>() * 1e6 : std::nan("");
    };
    const Json empty = Json::object();
    const Json& args = e.contains("args") && e["args"].is_object() ? e["args"] : empty;
    const std::int64_t rank = integer(e, "pid"), track = integer(e, "tid"), i = integer(args, "i");
    const double start = time("ts"), length = time("dur");
    const bool good = known_rank(rank) && track >= 0 &&
                      track <= static_cast<std::int64_t>(d_.labels_for(rank).streams.size()) &&
                      known_instruction(rank, i) && std::abs(start) < 9e18 && length >= 0 &&
                      length < 9e18;
    if (!good)
      return issues_.add(fmt::format("traceEvents[{}]", at),
                         "is no event of this trace: check pid, tid, ts, dur, args.i");
    Span s;
    s.rank = static_cast<std::int32_t>(rank);
    s.lane = track == 0 ? Lane::kHost : Lane::kStream;
    s.stream = static_cast<StreamIndex>(track == 0 ? 0 : track - 1);
    s.instruction = static_cast<std::uint32_t>(i);
    s.step = static_cast<std::int32_t>(integer(args, "step"));
    s.start = origin_ + Time(std::llround(start));
    s.end = s.start + Time(std::llround(length));
    d_.trace.spans.push_back(s);
  }

  IssueList issues_;
  TraceDocument d_;
  Time origin_{0};  ///< Zero of `ts`.
};

}  // namespace

TraceDocument parse_trace(std::string_view text, const std::string& file) {
  const Json json = parse_json(text, file);
  return TraceReader(file).read(json);
}

TraceDocument read_trace_file(const std::filesystem::path& path) {
  return parse_trace(read_text_file(path), path.string());
}

}  // namespace foreshard
