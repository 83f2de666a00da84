#include "report/compare.h"

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/output.h"
#include "core/error.h"
#include "core/json.h"
#include "report/trace_document.h"

namespace foreshard::cli {
namespace {

bool is_measured(const TraceDocument& t) { return t.trace.timing != Timing::kPredicted; }

int run_compare(Arguments& a) {
  a.check();
  const TraceDocument predicted = read_trace_file(a.positional(0)),
                      measured = read_trace_file(a.positional(1));
  if (is_measured(predicted) && !is_measured(measured))
    throw InputError(Issue{a.positional(0), "source", "is measured, and the other is predicted",
                           "the predicted trace comes first"});
  if (is_measured(predicted) == is_measured(measured))
    a.note(fmt::format("both traces are {}: read \"measured\" as the second",
                       is_measured(measured) ? "measured" : "predicted"));
  const Comparison c = compare(predicted, measured);
  if (a.flag("json"))
    print_json(to_json(c));
  else
    print(text_of(c));
  return c.order_equal && c.bytes_equal ? kOk : kTargetMissed;
}

}  // namespace

CommandSpec compare_command() {
  CommandSpec c;
  c.name = "compare";
  c.summary =
      "Was the prediction right? Two traces, event by event: order, bytes, peak, and times where "
      "the "
      "run was emulated. Exit code 4 where order or bytes differ.";
  c.examples = {{"foreshard compare predicted.json measured.json",
                 "traces of foreshard simulate --trace and foreshard run --trace"}};
  c.positionals = {{"PREDICTED", "Trace file", true},
                   {"MEASURED", "Trace file of the same plan", true}};
  c.groups = {{"Answer", {{"json", "", "One JSON document instead of text", {}, false}}}};
  c.run = run_compare;
  return c;
}

}  // namespace foreshard::cli
