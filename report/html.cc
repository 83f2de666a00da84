#include "report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/json.h"
#include "report/html_page.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostMemoryPoints = 2500;  ///< More than the picture has columns.

/// Text that may stand inside a script element.
std::string script_text(const Json& json) {
  std::string text = json.dump(-1, ' ', true, Json::error_handler_t::replace);
  for (std::size_t at = 0; (at = text.find("</", at)) != std::string::npos; at += 3)
    text.replace(at, 2, "<\\/");
  return text;
}

int colour_class(InstructionKind kind) {
  return kind == InstructionKind::kCollective ? 1 : kind == InstructionKind::kCopy ? 2 : 0;
}

/// Spans of the lowest recorded rank: [row, start, end, class, title].
void add_spans(const TraceDocument& d, Json& data) {
  Json spans = Json::array(), rows = Json::array();
  double begin = 0, end = 0;
  if (!d.trace.spans.empty()) {
    std::int32_t rank = INT32_MAX;
    for (const Span& s : d.trace.spans) rank = std::min(rank, s.rank);
    const ProgramLabels& labels = d.labels_for(rank);
    for (const std::string& name : labels.streams) rows.push_back(name);
    std::vector<const Span*> sorted;
    for (const Span& s : d.trace.spans)
      if (s.rank == rank && s.lane == Lane::kStream) sorted.push_back(&s);
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const Span* a, const Span* b) { return a->start < b->start; });
    begin = sorted.empty() ? 0 : to_seconds(sorted.front()->start);
    for (const Span* s : sorted) {
      const InstructionLabel& l = labels.instructions[s->instruction];
      spans.push_back(
          {s->stream, to_seconds(s->start), to_seconds(s->end), colour_class(l.kind), l.title});
      end = std::max(end, to_seconds(s->end));
    }
    data["titles"] = labels.titles;
  } else {
    data["titles"] = Json::array();
  }
  data["streams"] = std::move(rows);
  data["spans"] = std::move(spans);
  data["begin"] = begin;
  data["end"] = end;
}

/// Thinned to what can be seen; the peak is always kept.
Json memory_json(const MemoryCurve& curve) {
  Json out;
  out["categories"] = curve.categories;
  out["peak_at"] = curve.peak_at;
  out["points"] = Json::array();
  out["peak"] = 0;
  const std::size_t stride = std::max<std::size_t>(1, curve.points.size() / kMostMemoryPoints);
  for (std::size_t i = 0; i < curve.points.size(); ++i) {
    if (i % stride != 0 && i != curve.peak && i + 1 != curve.points.size()) continue;
    if (i == curve.peak) out["peak"] = out["points"].size();
    const MemoryCurve::Point& p = curve.points[i];
    out["points"].push_back({to_seconds(p.at), p.allocated.value, p.reserved.value, p.bytes});
  }
  return out;
}

Json data_of(const HtmlReport& r) {
  Json data;
  data["answer"] = to_json(r.answer);
  data["model_size"] = r.answer.model_size;
  data["precision"] = r.answer.precision;
  data["wrapping"] = r.answer.wrapping;
  add_spans(r.trace, data);
  data["memory"] = memory_json(r.memory);
  data["wrap"] = Json::array();
  for (const WrapPoint& p : r.wrap)
    data["wrap"].push_back({{"label", p.label},
                            {"step", to_seconds(p.step)},
                            {"memory", p.memory.value},
                            {"fits", p.fits},
                            {"pareto", p.pareto},
                            {"chosen", p.chosen},
                            {"verdict", p.verdict}});
  return data;
}

}  // namespace

std::string html_of(const HtmlReport& report) {
  return std::string(kHtmlBefore) + script_text(data_of(report)) + std::string(kHtmlAfter);
}

void write_html_file(const HtmlReport& report, const std::filesystem::path& path) {
  write_file_atomically(path, html_of(report));
}

}  // namespace foreshard
