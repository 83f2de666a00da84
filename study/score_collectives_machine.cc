// From the words of a table's description to a machine of the catalogue and the habits of the
// benchmark.

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <regex>

#include "core/error.h"
#include "core/integers.h"
#include "core/text.h"
#include "study/score_collectives.h"

namespace foreshard {
namespace {

struct Naming {
  const char* word;
  const char* hardware;
};

/// Words of a machine description that name a catalogue machine; the first that fits counts.
constexpr Naming kMachines[] = {{"p4de", "aws-p4de"},
                                {"p4d", "aws-p4d"},
                                {"p3dn", "aws-p3dn"},
                                {"p5en", "aws-p5en"},
                                {"p5e", "aws-p5e"},
                                {"p5.", "aws-p5"},
                                {"p6-b200", "aws-p6-b200"},
                                {"p6-b300", "aws-p6-b300"},
                                {"g5.", "aws-g5"},
                                {"a3-mega", "gcp-a3-mega"},
                                {"a3mega", "gcp-a3-mega"},
                                {"a3-ultra", "gcp-a3-ultra"},
                                {"a3-high", "gcp-a3-high"},
                                {"gke a4", "gcp-a4"},
                                {"a4-high", "gcp-a4"},
                                {"a2-ultra", "gcp-a2-ultragpu"},
                                {"a2-high", "gcp-a2-highgpu"},
                                {"nd a100", "azure-nd-a100-v4"},
                                {"ndv4", "azure-nd-a100-v4"},
                                {"nd h100", "azure-nd-h100-v5"},
                                {"nd h200", "azure-nd-h200-v5"},
                                {"bm.gpu.b4", "oci-bm-gpu-b4-8"},
                                {"bm.gpu.mi300x", "8x-mi300x-node"}};

/// GPU words; the longer and rarer ones first.
constexpr Naming kGpus[] = {{"gb300", "gb300"},
                            {"gb200", "gb200"},
                            {"gh200", "gh200-96"},
                            {"b300", "b300"},
                            {"b200", "b200"},
                            {"h200", "h200"},
                            {"h100 pcie", "h100-pcie"},
                            {"h100-pcie", "h100-pcie"},
                            {"h100 nvl", "h100-nvl"},
                            {"h100", "h100-80"},
                            {"a100 pcie", "a100-pcie-80"},
                            {"a100-pcie", "a100-pcie-80"},
                            {"a800", "a800"},
                            {"a100 sxm 40", "a100-40"},
                            {"a100-sxm4-40", "a100-40"},
                            {"a100", "a100-80"},
                            {"v100", "v100-32"},
                            {"mi300x", "mi300x"},
                            {"mi250x", "mi250x"},
                            {"l40s", "l40s"},
                            {"l4", "l4"},
                            {"4090", "rtx4090"},
                            {"3090", "rtx3090"},
                            {"5090", "rtx5090"},
                            {"6000 ada", "rtx-6000-ada"},
                            {"a6000", "rtx-a6000"},
                            {"a5000", "rtx-a5000"},
                            {"a40", "a40"},
                            {"a10g", "a10g"},
                            {"titan rtx", "titan-rtx"},
                            {"t4", "t4"}};

/// The catalogue's GPU, and a doubt where the text names several.
std::string gpu_of(const CollectiveTable& table, std::vector<std::string>& doubts) {
  const auto text = lower_case(table.gpu);
  if (contains(text, " or ")) doubts.push_back("the GPU is given as \"" + table.gpu + "\"");
  const Naming* best = nullptr;
  std::size_t place = std::string::npos;
  for (const auto& naming : kGpus) {
    const auto at = text.find(naming.word);
    if (at == std::string::npos || at >= place) continue;
    best = &naming;
    place = at;
  }
  if (best == nullptr) {
    throw InputError({table.id, "gpu", "\"" + table.gpu + "\" names no GPU of the catalogue",
                      "`foreshard hw` lists all"});
  }
  return best->hardware;
}

/// "@4x100g-efa" from "4x 100 Gb/s EFA per node"; "" if the text names no rate.
std::string network_suffix(const CollectiveTable& table) {
  const auto text = lower_case(table.network.substr(0, 200));  // std::regex recurses with the length
  std::smatch found;
  static const std::regex pattern(R"((?:(\d+) ?x ?)?(\d+) ?(?:gb/s|gbps|gbit|gbe))");
  if (!std::regex_search(text, found, pattern)) return "";
  std::string suffix =
      "@" + (found[1].matched ? found[1].str() : std::string("1")) + "x" + found[2].str() + "g";
  const Naming kinds[] = {{"tcpxo", "tcpxo"},
                          {"tcpx", "tcpx"},
                          {"efa", "efa"},
                          {"roce", "roce"},
                          {"infiniband", "ib"},
                          {"edr", "ib"},
                          {"hdr", "ib"},
                          {"ndr", "ib"},
                          {"xdr", "ib"},
                          {" ib", "ib"},
                          {"slingshot", "slingshot"},
                          {"tcp", "tcp"},
                          {"ethernet", "tcp"},
                          {"gbe", "tcp"}};
  for (const auto& kind : kinds) {
    if (contains(text, kind.word)) return suffix + "-" + kind.hardware;
  }
  return suffix;
}

/// The hardware name that a user would type for this table.
std::string hardware_name(const CollectiveTable& table, std::vector<std::string>& doubts) {
  const auto machine = lower_case(table.machine);
  const auto suffix = table.nodes > 1 ? network_suffix(table) : "";
  for (const auto& naming : kMachines) {
    if (!contains(machine, naming.word)) continue;
    const auto kind =
        suffix.find('-');  // the catalogue knows the provider's network better than the word for it
    return naming.hardware + (kind == std::string::npos ? suffix : suffix.substr(0, kind));
  }
  const auto gpu = gpu_of(table, doubts);
  if (gpu == "rtx4090" && contains(machine + lower_case(table.network), "p2p"))
    return "8x-rtx4090-p2p" + suffix;
  if (table.nodes > 1 && suffix.empty() && !contains(machine, "nvl72")) {
    doubts.push_back("the network is given as \"" + table.network + "\"");
  }
  return gpu + suffix;  // the usual box of that GPU
}

/// Host time that the benchmark spends for one collective and GPU before the next can start, us of
/// the reference CPU: fitted to the floors of seven single-node tables whose process drives all
/// GPUs (18 to 45 us).
constexpr double kLaunchUs = 2.2;
/// More for each send and receive of an all-to-all (two tables).
constexpr double kPeerLaunchUs = 0.2;
/// A call from Python through torch.distributed, synchronised each time (two tables of the same
/// program).
constexpr double kTorchCallUs = 12;

/// Training runs one process per GPU, and so do MPI launches; nccl-tests on one machine are mostly
/// started with -g N.
BenchmarkOverhead overhead_of(const CollectiveTable& table, double cpu_factor) {
  BenchmarkOverhead overhead;
  double call = kLaunchUs;
  if (table.kind == CollectiveKind::kAllToAll) call += kPeerLaunchUs * 2 * table.ranks;
  const auto source = lower_case(table.source);
  const auto machine = lower_case(table.machine);
  int gpus = table.gpus_per_process > 0 ? table.gpus_per_process
             : table.nodes > 1          ? 1
                                        : table.ranks;
  if (contains(source, "ml-engineering")) {  // its all_reduce_bench.py
    overhead.added_us = kTorchCallUs * cpu_factor;
    gpus = 1;
  } else if (contains(machine, "aws")) {  // its guides launch through MPI
    gpus = 1;
  }
  overhead.floor_us = gpus * call * cpu_factor;
  return overhead;
}

}  // namespace

CalibrationInput calibration_input(const CollectiveTable& table, const HardwareProfile& profile) {
  const int per_node = profile.gpus_per_node();
  const int nodes = profile.node.hosts.count() > 1 ? ceil_div(table.ranks, per_node) : table.nodes;
  if (ceil_div(table.ranks, nodes) > per_node) {
    throw InputError({table.id, "ranks",
                      fmt::format("{} ranks on {} nodes do not fit {} GPUs a node of {}",
                                  table.ranks, nodes, per_node, profile.name),
                      "name the machine of the log"});
  }
  CalibrationInput input{profile,
                         place_block(table.ranks, nodes),
                         table.kind,
                         overhead_of(table, profile.node.host_cpu_factor.value),
                         {}};
  for (const auto& row : table.rows) {
    if (row.bytes.value > 0) input.samples.push_back({row.bytes, row.undisturbed_seconds()});
  }
  return input;
}

TableMachine machine_of_table(const CollectiveTable& table) {
  TableMachine result;
  result.hardware = hardware_name(table, result.doubts);
  result.profile = load_hardware(result.hardware);
  int nodes = table.nodes;
  const int per_node = result.profile.gpus_per_node();
  if (result.profile.node.hosts.count() > 1)
    nodes = ceil_div(table.ranks, per_node);  // trays of a rack
  if (!table.quality.empty()) result.doubts.push_back(table.quality);
  result.placement = place_block(table.ranks, nodes);
  result.overhead = overhead_of(table, result.profile.node.host_cpu_factor.value);
  return result;
}

}  // namespace foreshard
