#include <fmt/format.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/nccl_log.h"
#include "cli/output.h"
#include "core/atomic_file.h"
#include "core/format.h"
#include "core/integers.h"
#include "core/json.h"
#include "sim/cost/collective_calibrate.h"
#include "study/run_hardware.h"

namespace foreshard::cli {
namespace {

CalibrationInput calibration_input(const HardwareProfile& profile, const CollectiveTable& t,
                                   std::int64_t nodes) {
  CalibrationInput in;
  in.profile = profile;
  in.placement = place_block(t.ranks, static_cast<int>(nodes));
  in.kind = t.kind;
  for (const CollectiveRow& r : t.rows)
    if (r.bytes.value > 0 && r.undisturbed_seconds() > 0)
      in.samples.push_back({r.bytes, r.undisturbed_seconds()});
  return in;
}

/// A log of wrong results or failed calls is of no machine that works, unless the user says so.
void refuse_faults(Arguments& a, const CollectiveTable& t) {
  if (a.flag("accept-faults")) return;
  for (const std::string& fault : t.faults)
    a.report(InputError(Issue{a.positional(0), "", fault + ": the times may say nothing",
                              "a log without faults, or --accept-faults"}));
  a.check();
}

Json json_of(const CollectiveTable& t, const CollectiveCalibration& fit) {
  Json out;
  out["mean_error"] = fit.mean_error;
  out["worst_error"] = fit.worst_error;
  out["warnings"] = fit.warnings;
  out["faults"] = t.faults;
  out["residuals"] = Json::array();
  for (const CalibrationResidual& r : fit.residuals)
    out["residuals"].push_back(
        {{"bytes", r.bytes.value}, {"measured_s", r.measured_s}, {"fitted_s", r.fitted_s}});
  return out;
}

std::string text_of(const CollectiveTable& t, const CollectiveCalibration& fit) {
  std::string out =
      fmt::format("{} on {} ranks: mean error {:.1f} %, worst {:.1f} %\n", name_of(t.kind), t.ranks,
                  100 * fit.mean_error, 100 * fit.worst_error);
  for (const CalibrationResidual& r : fit.residuals)
    out += fmt::format("  {:>12} measured {:>10} fitted {:>10} {:>+6.1f} %\n",
                       format_bytes_decimal(r.bytes), format_time(from_seconds(r.measured_s)),
                       format_time(from_seconds(r.fitted_s)), 100 * r.error());
  for (const std::string& w : fit.warnings) out += "  warning: " + w + "\n";
  for (const std::string& f : t.faults) out += "  fault: " + f + "\n";
  return out;
}

int calibrate(Arguments& a) {
  const std::int64_t nodes_given = a.integer("nodes", 0, 1, 1 << 16);
  if (!a.has("on"))
    a.report("on", "is missing", "the machine that the log was made on, e.g. --on dgx-h100");
  const CollectiveTable t = read_nccl_log(a, a.positional(0));
  refuse_faults(a, t);
  const HardwareProfile profile = load_hardware(a.text("on"));
  const int per_node = std::max(1, profile.gpus_per_node());
  const std::int64_t nodes = nodes_given > 0 ? nodes_given
                             : t.nodes > 0   ? t.nodes
                                             : ceil_div(t.ranks, per_node);
  CollectiveCalibration fit = calibrate_collectives(calibration_input(profile, t, nodes));
  if (names_other_gpu(t.gpu, profile.gpu))
    fit.warnings.push_back(
        fmt::format("the log is of \"{}\", the profile of {}", t.gpu, profile.gpu.name));
  const std::string file = a.text("output");
  if (!file.empty())
    write_file_atomically(file,
                          to_json(with_calibration(profile, fit, a.positional(0))).dump(1) + "\n");
  if (a.flag("json")) return print_json(json_of(t, fit)), kOk;
  print(text_of(t, fit) + (file.empty() ? "-o FILE writes the profile\n"
                                        : fmt::format("wrote {0}; use it with --on {0}\n", file)));
  return kOk;
}

}  // namespace

CommandSpec calibrate_command() {
  CommandSpec c;
  c.name = "calibrate";
  c.summary = "Fits a machine's profile to measured collectives.";
  c.examples = {{"foreshard calibrate all_reduce.log --on dgx-h100",
                 "how far the catalogue's machine, fitted to the log, is off at each size"},
                {"foreshard calibrate all_reduce.log --on dgx-h100 -o my-box.json",
                 "the same, and a profile of your own for --on my-box.json"}};
  c.positionals = {{"LOG", "Output of nccl-tests", true}};
  c.groups = {{"Question",
               {{"on", "HARDWARE", "The machine it was measured on", {}, false},
                {"nodes", "N", "Nodes of the run (default: from the log)", {}, false},
                {"collective", "NAME", "For logs that do not name their test", {}, false},
                {"accept-faults",
                 "",
                 "Fit a log with wrong results or failed calls all the same",
                 {},
                 false}}},
              {"Answer",
               {{"output", "FILE", "Write the profile", {}, false},
                {"json", "", "One JSON document instead of text", {}, false}}}};
  c.run = calibrate;
  return c;
}

}  // namespace foreshard::cli
