#include <fmt/format.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/output.h"
#include "core/format.h"
#include "core/json.h"
#include "core/text.h"
#include "hwprofiles/profile.h"
#include "hwprofiles/topology.h"
#include "study/job.h"

namespace foreshard::cli {
namespace {

std::string text_or_dash(std::string text) { return text.empty() ? "-" : text; }

int list_hardware(Arguments& a) {
  a.check();
  Json json = Json::array();
  std::string text = fmt::format("  {:<24} {:>4}  {:<30} {:>8}  {:<22} {}\n", "name", "GPUs", "GPU",
                                 "GiB", "network of a node", "title");
  for (const std::string& name : hardware_names()) {
    const HardwareProfile h = load_hardware(name);
    const double gib = h.gpu.usable_memory.value_or(h.gpu.memory.value_or(0)) / (1 << 30);
    json.push_back({{"name", h.name},
                    {"aliases", h.aliases},
                    {"title", h.title},
                    {"gpu", h.gpu.name},
                    {"gpus", h.gpus_per_node()}});
    text += fmt::format("  {:<24} {:>4}  {:<30} {:>8.1f}  {:<22} {}\n", h.name, h.gpus_per_node(),
                        h.gpu.title, gib, text_or_dash(network_text(h)), h.title);
  }
  text += fmt::format("\nGPUs: {}\n", fmt::join(gpu_names(), ", "));
  text +=
      "Also: 4x-a100-80 (GPUs of a type), 2x-a100-80-200g (nodes), dgx-h100@400g (another "
      "network), FILE.json or FILE.yaml of your own\n";
  if (a.flag("json"))
    print_json(json);
  else
    print(text);
  return kOk;
}

int describe_hardware(Arguments& a) {
  a.check();
  const HardwareProfile h = load_hardware(a.positional(0));
  if (a.flag("json"))
    print_json(to_json(h));
  else
    print(describe(h) + (a.flag("topology") ? "\n" + Topology(h, 1).draw() : ""));
  return kOk;
}

}  // namespace

CommandSpec hw_command() {
  CommandSpec c;
  c.name = "hw";
  c.summary = "Lists the machines known by name.";
  c.examples = {{"foreshard hw", "names, GPUs, networks"}};
  c.groups = {{"Answer", {{"json", "", "One JSON document instead of text", {}, false}}}};
  c.run = list_hardware;
  return c;
}

CommandSpec hw_describe_command() {
  CommandSpec c;
  c.name = "hw describe";
  c.summary = "Every number of one machine with its source.";
  c.examples = {{"foreshard hw describe dgx-h100 --topology", "numbers, sources, links of a node"},
                {"foreshard hw describe dgx-h100 --json > mine.json",
                 "a profile to edit and use with --on mine.json"}};
  c.positionals = {{"HARDWARE", "Name or profile file", true}};
  c.groups = {{"Answer",
               {{"json", "", "The profile file", {}, false},
                {"topology", "", "Also the links of one node", {}, false}}}};
  c.run = describe_hardware;
  return c;
}

}  // namespace foreshard::cli
