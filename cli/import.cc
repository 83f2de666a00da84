#include <fmt/format.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/import_topology.h"
#include "cli/output.h"
#include "core/format.h"
#include "core/integers.h"
#include "core/json.h"
#include "sim/cost/collective_calibrate.h"
#include "sim/cost/collective_table.h"
#include "study/run_words.h"

namespace foreshard::cli {
namespace {

std::optional<CollectiveKind> kind_option(Arguments& a) {
  if (!a.has("collective")) return std::nullopt;
  const auto kind = parse_nccl_test_name(a.text("collective"));
  if (!kind)
    a.report("collective", fmt::format("found \"{}\"", a.text("collective")),
             "allowed: all_reduce, all_gather, reduce_scatter, broadcast, ...");
  return kind;
}

Json table_json(const CollectiveTable& t) {
  Json out;
  out["id"] = t.id;
  out["collective"] = std::string(name_of(t.kind));
  out["ranks"] = t.ranks;
  out["nodes"] = t.nodes;
  out["gpu"] = t.gpu;
  out["notes"] = t.notes;
  out["rows"] = Json::array();
  for (const CollectiveRow& r : t.rows)
    out["rows"].push_back({{"bytes", r.bytes.value}, {"time_s", r.seconds()}});
  return out;
}

int import_file(Arguments& a) {
  const std::string form = a.positional(0);
  if (form == "topo-m" || form == "nccl-topology") return import_topology(a);
  const auto kind = kind_option(a);
  if (form != "nccl-tests")
    a.report(InputError(
        Issue{form, "", "no such kind of file", "allowed: nccl-tests, topo-m, nccl-topology"}));
  a.check();
  const std::string file = a.positional(1);
  const CollectiveTable t = parse_nccl_log(read_text_file(file), file, kind);
  if (a.flag("json")) return print_json(table_json(t)), kOk;
  std::string text = fmt::format("{}: {} on {} ranks{}\n", file, name_of(t.kind), t.ranks,
                                 t.gpu.empty() ? "" : " of " + t.gpu);
  for (const std::string& note : t.notes) text += "  note: " + note + "\n";
  for (const CollectiveRow& r : t.rows)
    text +=
        fmt::format("  {:>12} {:>12} {:>14}\n", format_bytes_decimal(r.bytes),
                    format_time(from_seconds(r.seconds())),
                    format_rate(BytesPerSecond(static_cast<double>(r.bytes.value) / r.seconds())));
  print(text + "foreshard calibrate fits a machine to it\n");
  return kOk;
}

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

/// What the log says of its GPUs, where that is not the profile's chip; "" otherwise.
std::string other_gpu(const CollectiveTable& t, const HardwareProfile& profile) {
  const std::string& name = profile.gpu.name;
  if (t.gpu.empty()) return "";
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t end = std::min(name.find_first_of(" -", at), name.size());
    const std::string word = name.substr(at, end - at);
    at = end + 1;
    if (word.find_first_of("0123456789") == std::string::npos) continue;  // "rtx"
    if (contains_any_case(t.gpu, word)) return "";
    return fmt::format("the log is of \"{}\", the profile of {}", t.gpu, profile.gpu.name);
  }
  return "";
}

int calibrate(Arguments& a) {
  const auto kind = kind_option(a);
  const std::int64_t nodes_given = a.integer("nodes", 0, 1, 1 << 16);
  if (!a.has("on"))
    a.report("on", "is missing", "the machine that the log was made on, e.g. --on dgx-h100");
  if (!a.has("output"))
    a.report("output", "is missing", "where should the profile go? -o my-box.json");
  a.check();
  const HardwareProfile profile = load_hardware(a.text("on"));
  const CollectiveTable t = parse_nccl_log(read_text_file(a.positional(0)), a.positional(0), kind);
  const int per_node = std::max(1, profile.gpus_per_node());
  const std::int64_t nodes = nodes_given > 0 ? nodes_given
                             : t.nodes > 0   ? t.nodes
                                             : ceil_div(t.ranks, per_node);
  CollectiveCalibration fit = calibrate_collectives(calibration_input(profile, t, nodes));
  if (std::string other = other_gpu(t, profile); !other.empty()) fit.warnings.push_back(other);
  write_file_atomically(a.text("output"),
                        to_json(with_calibration(profile, fit, a.positional(0))).dump(1) + "\n");
  if (a.flag("json")) {
    Json out;
    out["mean_error"] = fit.mean_error;
    out["worst_error"] = fit.worst_error;
    out["warnings"] = fit.warnings;
    out["residuals"] = Json::array();
    for (const CalibrationResidual& r : fit.residuals)
      out["residuals"].push_back(
          {{"bytes", r.bytes.value}, {"measured_s", r.measured_s}, {"fitted_s", r.fitted_s}});
    return print_json(out), kOk;
  }
  std::string text =
      fmt::format("{} on {} ranks: mean error {:.1f} %, worst {:.1f} %\n", name_of(t.kind), t.ranks,
                  100 * fit.mean_error, 100 * fit.worst_error);
  for (const CalibrationResidual& r : fit.residuals)
    text += fmt::format("  {:>12} measured {:>10} fitted {:>10} {:>+6.1f} %\n",
                        format_bytes_decimal(r.bytes), format_time(from_seconds(r.measured_s)),
                        format_time(from_seconds(r.fitted_s)), 100 * r.error());
  for (const std::string& w : fit.warnings) text += "  warning: " + w + "\n";
  print(text + fmt::format("wrote {0}; use it with --on {0}\n", a.text("output")));
  return kOk;
}

}  // namespace

CommandSpec import_command() {
  CommandSpec c;
  c.name = "import";
  c.summary = "Reads measurements of other programs.";
  c.examples = {{"foreshard import nccl-tests all_reduce.log",
                 "the table of an nccl-tests log of any generation"},
                {"foreshard import topo-m topo.txt --on dgx-a100-80 -o my-box.json",
                 "the node of `nvidia-smi topo -m` as a profile"},
                {"foreshard import nccl-topology topo.xml --on dgx-h100",
                 "the file that NCCL_TOPO_DUMP_FILE names"}};
  c.positionals = {{"KIND", "nccl-tests, topo-m (nvidia-smi) or nccl-topology (XML)", true},
                   {"FILE", "The file", true}};
  c.groups = {{"Answer",
               {{"collective", "NAME", "For logs that do not name their test", {}, false},
                {"on", "HARDWARE", "Topologies: the machine whose other numbers hold", {}, false},
                {"output", "FILE", "Topologies: write the profile", {}, false},
                {"json", "", "One JSON document instead of text", {}, false}}}};
  c.run = import_file;
  return c;
}

CommandSpec calibrate_command() {
  CommandSpec c;
  c.name = "calibrate";
  c.summary = "Fits a machine's profile to measured collectives.";
  c.examples = {{"foreshard calibrate all_reduce.log --on dgx-h100 -o my-box.json",
                 "a profile of your own for --on my-box.json, with the residual of each size"}};
  c.positionals = {{"LOG", "Output of nccl-tests", true}};
  c.groups = {{"Question",
               {{"on", "HARDWARE", "The machine it was measured on", {}, false},
                {"nodes", "N", "Nodes of the run (default: from the log)", {}, false},
                {"collective", "NAME", "For logs that do not name their test", {}, false}}},
              {"Answer",
               {{"output", "FILE", "The profile", {}, false},
                {"json", "", "One JSON document instead of text", {}, false}}}};
  c.run = calibrate;
  return c;
}

}  // namespace foreshard::cli
