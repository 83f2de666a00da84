#include "report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/atomic_file.h"
#include "core/json.h"
#include "report/embedded_page.h"

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

/// Thinned to what can be seen: of every few points the highest, so that no spike is lost.
Json memory_json(const MemoryCurve& curve) {
  Json out;
  out["categories"] = curve.categories;
  out["peak_at"] = curve.peak_at;
  out["points"] = Json::array();
  out["peak"] = 0;
  const std::size_t stride = curve.points.size() / kMostMemoryPoints + 1;
  for (std::size_t begin = 0; begin < curve.points.size(); begin += stride) {
    const auto first = curve.points.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = curve.points.begin() +
                      static_cast<std::ptrdiff_t>(std::min(begin + stride, curve.points.size()));
    const auto highest = std::max_element(
        first, last, [](const auto& a, const auto& b) { return a.allocated < b.allocated; });
    if (static_cast<std::size_t>(highest - curve.points.begin()) == curve.peak)
      out["peak"] = out["points"].size();
    out["points"].push_back({to_seconds(highest->at), highest->allocated.value,
                             highest->reserved.value, highest->bytes});
  }
  return out;
}

Json data_of(const HtmlReport& r) {
  Json data;
  data["answer"] = to_json(r.answer);
  data["model_size"] = r.answer.model_size;
  data["precision"] = r.answer.precision;
  data["wrapping"] = r.answer.wrapping;
  data["job"] = {r.answer.batch, r.answer.training};
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
  constexpr std::string_view kDataMark = "@DATA@";
  const std::string_view page = embedded_page();
  const std::size_t at = page.find(kDataMark);
  return std::string(page.substr(0, at)) + script_text(data_of(report)) +
         std::string(page.substr(at + kDataMark.size()));
}

void write_html_file(const HtmlReport& report, const std::filesystem::path& path) {
  write_file_atomically(path, html_of(report));
}

}  // namespace foreshard
