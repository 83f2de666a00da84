#pragma once

// A self-contained HTML page: verdict, streams over time, memory over time by category, wrap curve,
// assumptions with sources. No network, no other files.

#include <filesystem>
#include <string>
#include <vector>

#include "report/answer.h"
#include "report/memory_curve.h"
#include "report/trace_document.h"

namespace foreshard {

/// One wrapping on the curve of step time over memory.
struct WrapPoint {
  std::string label;  ///< "2 blocks, reshard"
  Time step;
  Bytes memory;
  bool fits = true, pareto = false, chosen = false, asked = false;
  std::string verdict;
};

struct HtmlReport {
  StepAnswer answer;
  TraceDocument trace;  ///< Of one step; the lowest recorded rank is drawn.
  MemoryCurve memory;
  std::vector<WrapPoint> wrap;  ///< Empty: the section is left out.
};

std::string html_of(const HtmlReport& report);
/// RunError if it cannot be written.
void write_html_file(const HtmlReport& report, const std::filesystem::path& path);

}  // namespace foreshard
