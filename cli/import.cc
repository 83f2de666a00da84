#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "cli/commands.h"
#include "cli/foreign/foreign_job.h"
#include "cli/import_job.h"
#include "cli/import_topology.h"
#include "cli/nccl_log.h"
#include "cli/output.h"
#include "core/format.h"
#include "core/json.h"

namespace foreshard::cli {
namespace {

Json table_json(const CollectiveTable& t) {
  Json out;
  out["id"] = t.id;
  out["collective"] = std::string(name_of(t.kind));
  out["ranks"] = t.ranks;
  out["nodes"] = t.nodes;
  out["gpu"] = t.gpu;
  out["notes"] = t.notes;
  out["faults"] = t.faults;
  out["rows"] = Json::array();
  for (const CollectiveRow& r : t.rows)
    out["rows"].push_back({{"bytes", r.bytes.value}, {"time_s", r.seconds()}});
  return out;
}

std::vector<std::string> import_kinds() {
  std::vector<std::string> kinds{"nccl-tests", "topo-m", "nccl-topology"};
  kinds.insert(kinds.end(), std::begin(kForeignJobKinds), std::end(kForeignJobKinds));
  return kinds;
}

int import_file(Arguments& a) {
  const std::string form = a.positional(0);
  if (form == "topo-m" || form == "nccl-topology") return import_topology(a);
  if (std::find(std::begin(kForeignJobKinds), std::end(kForeignJobKinds), form) !=
      std::end(kForeignJobKinds))
    return import_job(a);
  if (form != "nccl-tests")
    a.report(InputError(Issue{form, "", "no such kind of file",
                              fmt::format("allowed: {}", fmt::join(import_kinds(), ", "))}));
  const std::string file = a.positional(1);
  const CollectiveTable t = read_nccl_log(a, file);
  if (a.flag("json")) return print_json(table_json(t)), kOk;
  std::string text = fmt::format("{}: {} on {} ranks{}\n", file, name_of(t.kind), t.ranks,
                                 t.gpu.empty() ? "" : " of " + t.gpu);
  for (const std::string& note : t.notes) text += "  note: " + note + "\n";
  for (const std::string& fault : t.faults) text += "  fault: " + fault + "\n";
  for (const CollectiveRow& r : t.rows)
    text +=
        fmt::format("  {:>12} {:>12} {:>14}\n", format_bytes_decimal(r.bytes),
                    format_time(from_seconds(r.seconds())),
                    format_rate(BytesPerSecond(static_cast<double>(r.bytes.value) / r.seconds())));
  print(text + "foreshard calibrate fits a machine to it\n");
  return kOk;
}

}  // namespace

CommandSpec import_command() {
  CommandSpec c;
  c.name = "import";
  c.summary = "Reads job files and measurements of other programs.";
  c.examples = {{"foreshard import deepspeed ds_config.json --gpus 8 -o job.yaml",
                 "DeepSpeed's file as options for simulate --config job.yaml, key by key"},
                {"foreshard import accelerate config.yaml",
                 "Accelerate's (FSDP, DeepSpeed, DDP); import torchtitan job.toml likewise"},
                {"foreshard import nccl-tests all_reduce.log",
                 "the table of an nccl-tests log of any generation"},
                {"foreshard import topo-m topo.txt --on dgx-a100-80 -o my-box.json",
                 "the node of `nvidia-smi topo -m` as a profile"},
                {"foreshard import nccl-topology topo.xml --on dgx-h100",
                 "the file that NCCL_TOPO_DUMP_FILE names"}};
  c.positionals = {
      {"KIND",
       "Job files: deepspeed, accelerate, torchtitan; measurements: nccl-tests, topo-m "
       "(nvidia-smi), nccl-topology (XML)",
       true, import_kinds()},
      {"FILE", "The file", true}};
  c.groups = {
      {"Answer",
       {{"collective", "NAME", "For logs that do not name their test", {}, false},
        {"on", "HARDWARE", "Topologies: the machine whose other numbers hold", {}, false},
        {"gpus", "N", "Job files: GPUs of the job, which divide a batch", {}, false},
        {"output", "FILE", "Write the options of a job file, the profile of a topology", {}, false},
        {"json", "", "One JSON document instead of text", {}, false}}}};
  c.run = import_file;
  return c;
}

}  // namespace foreshard::cli
