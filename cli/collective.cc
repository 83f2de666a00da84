#include <fmt/format.h>

#include <cctype>
#include <optional>

#include "cli/commands.h"
#include "cli/output.h"
#include "core/format.h"
#include "core/integers.h"
#include "core/json.h"
#include "sim/cost/collective.h"
#include "sim/cost/collective_table.h"

namespace foreshard::cli {
namespace {

constexpr std::int64_t kMostRanks = 1 << 17;
constexpr std::int64_t kSmallest = 1 << 10, kLargest = std::int64_t{1} << 34;

/// Powers of four from 1 KiB to 16 GiB, or the sizes that were asked for.
std::vector<Bytes> sizes_of(Arguments& a) {
  std::vector<Bytes> out;
  if (a.has("bytes")) {
    out.push_back(Bytes(static_cast<std::int64_t>(a.bytes("bytes", 0, 1, 1, 1e15))));
  } else {
    for (std::int64_t n = kSmallest; n <= kLargest; n *= 4) out.push_back(Bytes(n));
  }
  return out;
}

Json json_of(Bytes bytes, const CollectiveCost& c) {
  return {{"bytes", bytes.value},
          {"time_s", to_seconds(c.time)},
          {"latency_s", to_seconds(c.latency)},
          {"algorithm", name_of(c.algorithm)},
          {"protocol", name_of(c.protocol)},
          {"limited_by", name_of(c.bound)},
          {"bus_bytes_per_s", c.bus_bandwidth.per_second},
          {"channels", c.channels},
          {"nvlink_bytes", c.nvlink_bytes},
          {"pcie_bytes", c.pcie_bytes},
          {"network_bytes", c.network_bytes}};
}

/// Also "allreduce", "all-reduce", "AllReduce".
std::optional<CollectiveKind> kind_of(const std::string& typed) {
  if (const auto kind = parse_nccl_test_name(typed)) return kind;
  std::string plain;
  for (const char c : typed)
    if (c != '-' && c != '_')
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* name : {"all_gather", "reduce_scatter", "all_reduce", "alltoall", "broadcast",
                           "reduce", "sendrecv"}) {
    std::string other = name;
    std::erase(other, '_');
    if (plain == other) return parse_nccl_test_name(name);
  }
  return std::nullopt;
}

int ask(Arguments& a) {
  const auto kind = kind_of(a.positional(0));
  if (!kind)
    a.report(InputError(
        Issue{a.positional(0), "", "no such collective",
              "all_gather, reduce_scatter, all_reduce, broadcast, reduce, alltoall, sendrecv"}));
  if (!a.has("on")) a.report("on", "is missing", "which machine? e.g. --on dgx-h100");
  if (!a.has("gpus")) a.report("gpus", "is missing", "ranks of the group, e.g. --gpus 16");
  const std::int64_t ranks = a.integer("gpus", 2, 2, kMostRanks);
  const std::int64_t nodes_given = a.integer("nodes", 0, 1, kMostRanks);
  const std::vector<Bytes> sizes = sizes_of(a);
  a.check();
  const HardwareProfile machine = load_hardware(a.text("on"));
  const std::int64_t per_node = std::max(1, machine.gpus_per_node());
  const std::int64_t nodes = nodes_given > 0 ? nodes_given : ceil_div(ranks, per_node);
  if (ranks % nodes != 0 || ranks / nodes > per_node)
    throw InputError(
        Issue{"--nodes", "",
              fmt::format("{} ranks do not lie evenly on {} nodes of {}", ranks, nodes, per_node),
              "a divisor of --gpus"});
  if (machine.nodes > 0 && nodes > machine.nodes)
    throw InputError(
        Issue{"--nodes", "",
              fmt::format("{} nodes are asked for, {} has {}", nodes, machine.name, machine.nodes),
              fmt::format("at most {}", machine.nodes)});
  const CollectiveModel model(machine,
                              place_block(static_cast<int>(ranks), static_cast<int>(nodes)));
  Json json = Json::array();
  std::string text = fmt::format(
      "{} over {} ranks on {} node{} of {}\n\n  {:>10} {:>10} {:>12} {:>10} {:<9} {:<8} {:>8}  "
      "{}\n",
      name_of(*kind), ranks, nodes, nodes == 1 ? "" : "s", machine.title, "bytes", "time", "bus",
      "latency", "algorithm", "protocol", "channels", "limited by");
  for (const Bytes n : sizes) {
    const CollectiveCost c = model.cost(*kind, n);
    json.push_back(json_of(n, c));
    text += fmt::format("  {:>10} {:>10} {:>12} {:>10} {:<9} {:<8} {:>8}  {}\n",
                        format_bytes_decimal(n), format_time(c.time), format_rate(c.bus_bandwidth),
                        format_time(c.latency), name_of(c.algorithm), name_of(c.protocol),
                        c.channels, name_of(c.bound));
  }
  if (a.flag("json"))
    print_json(json);
  else
    print(text);
  return kOk;
}

}  // namespace

CommandSpec collective_command() {
  CommandSpec c;
  c.name = "collective";
  c.summary =
      "How long does one collective take? Algorithm, protocol, bus bandwidth, what limits it.";
  c.examples = {
      {"foreshard collective all_gather --gpus 8 --on dgx-h100", "one node, 1 KiB to 16 GiB"},
      {"foreshard collective all_reduce --gpus 256 --on dgx-h100 --bytes 2GB",
       "32 nodes, one size"},
      {"foreshard collective all_reduce --gpus 4 --nodes 4 --on dgx-a100-80",
       "one rank on each of four nodes"}};
  c.positionals = {{"KIND",
                    "all_gather, reduce_scatter, all_reduce, broadcast, reduce, alltoall, sendrecv",
                    true}};
  c.groups = {
      {"Question",
       {{"gpus", "N", "Ranks of the group", {}, false},
        {"nodes", "N", "Nodes they lie on (default: as few as possible)", {}, false},
        {"on", "HARDWARE", "Machine (foreshard hw) or a profile file", {}, false},
        {"bytes",
         "N",
         "Whole buffer: gathered, before reduction, or reduced, e.g. 1GB, 64MiB (default: a "
         "sweep)",
         {},
         false}}},
      {"Answer", {{"json", "", "One JSON document instead of text", {}, false}}}};
  c.run = ask;
  return c;
}

}  // namespace foreshard::cli
