#include "hwprofiles/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/dijkstra_shortest_paths.hpp>
#include <boost/graph/filtered_graph.hpp>
#include <boost/property_map/function_property_map.hpp>
#include <functional>
#include <iterator>

#include "core/enum_names.h"
#include "core/error.h"

namespace foreshard {
namespace {

using BoostGraph =
    boost::adjacency_list<boost::vecS, boost::vecS, boost::undirectedS, boost::no_property,
                          boost::property<boost::edge_index_t, int>>;
using Edge = boost::graph_traits<BoostGraph>::edge_descriptor;

}  // namespace

struct Topology::Graph {
  BoostGraph boost;
  std::vector<TopologyVertex> vertices;
  std::vector<TopologyLink> links;
  std::vector<std::vector<int>> gpus;  // [node][index] -> vertex

  int add(VertexKind kind, int node, int index) {
    vertices.push_back({kind, node, index});
    boost::add_vertex(boost);
    return static_cast<int>(vertices.size()) - 1;
  }
  void join(int a, int b, LinkKind kind, double capacity) {
    boost::add_edge(static_cast<std::size_t>(a), static_cast<std::size_t>(b),
                    static_cast<int>(links.size()), boost);
    links.push_back({a, b, kind, BytesPerSecond(capacity)});
  }
};

namespace {

/// Builds one node after the other, then the network.
template <typename Graph>
class Builder {
 public:
  Builder(const HardwareProfile& profile, int nodes, Graph& graph)
      : p_(profile), nodes_(nodes), g_(graph) {}

  void build() {
    for (int node = 0; node < nodes_; ++node) {
      add_host_side(node);
      add_gpu_fabric(node);
      add_nics(node);
    }
    add_network();
  }

 private:
  int count(const Fact& fact) const { return static_cast<int>(fact.count()); }

  void add_host_side(int node) {
    const int sockets = std::max(1, count(p_.node.sockets));
    const int gpus = p_.gpus_per_node();
    cpus_.assign(static_cast<std::size_t>(sockets), 0);
    for (int s = 0; s < sockets; ++s) {
      cpus_[s] = g_.add(VertexKind::kCpu, node, s);
      if (s > 0) g_.join(cpus_[s - 1], cpus_[s], LinkKind::kSocket, p_.node.socket_bandwidth.value);
    }
    const int per_switch = std::max(1, count(p_.node.gpus_per_pcie_switch));
    switches_.clear();
    g_.gpus.emplace_back();
    for (int i = 0; i < gpus; ++i) {
      if (per_switch > 1 && i % per_switch == 0) {
        switches_.push_back(g_.add(VertexKind::kPcieSwitch, node, i / per_switch));
        g_.join(switches_.back(), cpu_of(i), LinkKind::kPcie, p_.gpu.pcie_bandwidth.value);
      }
      const int gpu = g_.add(VertexKind::kGpu, node, i);
      g_.gpus.back().push_back(gpu);
      g_.join(gpu, per_switch > 1 ? switches_.back() : cpu_of(i), LinkKind::kPcie,
              p_.gpu.pcie_bandwidth.value);
    }
  }

  int cpu_of(int gpu) const {
    const int sockets = static_cast<int>(cpus_.size());
    return cpus_[static_cast<std::size_t>(
        std::min(sockets - 1, gpu * sockets / p_.gpus_per_node()))];
  }

  void add_gpu_fabric(int node) {
    const auto& gpus = g_.gpus.back();
    const double all_links = p_.gpu.nvlink_bandwidth.value_or(0);
    switch (p_.node.fabric) {
      case FabricKind::kPcie:
        return;
      case FabricKind::kNvSwitch: {
        const int hub = g_.add(VertexKind::kNvSwitch, node, 0);
        for (const int gpu : gpus) g_.join(gpu, hub, LinkKind::kNvLink, all_links);
        return;
      }
      case FabricKind::kNvLinkPairs:
        for (std::size_t i = 0; i + 1 < gpus.size(); i += 2)
          g_.join(gpus[i], gpus[i + 1], LinkKind::kNvLink, all_links);
        return;
      case FabricKind::kNvLinkMesh:
        for (const auto& edge : p_.node.mesh) {
          g_.join(gpus[static_cast<std::size_t>(edge.a)], gpus[static_cast<std::size_t>(edge.b)],
                  LinkKind::kNvLink, all_links / p_.gpu.nvlink_links.value * edge.links);
        }
    }
  }

  void add_nics(int node) {
    if (p_.network.kind == NetworkKind::kNone) return;
    const int nics = count(p_.network.nics);
    const int gpus = p_.gpus_per_node();
    for (int i = 0; i < nics; ++i) {
      const int nic = g_.add(VertexKind::kNic, node, i);
      const int beside = std::min(gpus - 1, i * gpus / nics);
      const int per_switch = std::max(1, count(p_.node.gpus_per_pcie_switch));
      const bool on_switch = per_switch > 1 && p_.network.nics_on_switches.value_or(1) != 0;
      const int at =
          on_switch ? switches_[static_cast<std::size_t>(beside / per_switch)] : cpu_of(beside);
      g_.join(nic, at, LinkKind::kPcie,
              std::max(p_.network.nic_rate.value, p_.gpu.pcie_bandwidth.value));
      nics_.push_back(nic);
    }
  }

  void add_network() {
    if (nics_.empty()) return;
    const int nics = count(p_.network.nics);
    const int rails = std::clamp(count(p_.network.rails), 1, nics);
    std::vector<int> leaves;
    for (int r = 0; r < rails; ++r) leaves.push_back(g_.add(VertexKind::kLeaf, -1, r));
    for (std::size_t i = 0; i < nics_.size(); ++i) {
      const int leaf = leaves[static_cast<std::size_t>(static_cast<int>(i) % nics % rails)];
      g_.join(nics_[i], leaf, LinkKind::kNetwork, p_.network.nic_rate.value);
    }
    if (rails == 1) return;
    const int spine = g_.add(VertexKind::kSpine, -1, 0);
    const double up =
        p_.network.nic_rate.value * nodes_ * nics / rails / p_.network.oversubscription.value_or(1);
    for (const int leaf : leaves) g_.join(leaf, spine, LinkKind::kNetwork, up);
  }

  const HardwareProfile& p_;
  int nodes_;
  Graph& g_;
  std::vector<int> cpus_, switches_, nics_;
};

std::string link_text(const TopologyLink& link, const TopologyVertex& other) {
  return fmt::format("{} ({} {:.4g} GB/s)", name_of(other), name_of(link.kind),
                     link.capacity.per_second * 1e-9);
}

}  // namespace

std::string_view name_of(LinkKind kind) {
  constexpr std::string_view names[] = {"NVLink", "PCIe", "socket", "network"};
  static_assert(std::size(names) == kEnumerators<LinkKind>);
  return names[static_cast<int>(kind)];
}

std::string name_of(const TopologyVertex& vertex) {
  constexpr std::string_view names[] = {"gpu", "nvswitch", "pcie", "cpu", "nic", "leaf", "spine"};
  static_assert(std::size(names) == kEnumerators<VertexKind>);
  const auto plain = fmt::format("{}{}", names[static_cast<int>(vertex.kind)], vertex.index);
  return vertex.node > 0 ? fmt::format("n{}.{}", vertex.node, plain) : plain;
}

Topology::Topology(const HardwareProfile& profile, int nodes) : graph_(std::make_unique<Graph>()) {
  if (nodes < 1)
    throw InputError({"", "", fmt::format("a topology of {} nodes", nodes), "one or more"});
  Builder(profile, nodes, *graph_).build();
}
Topology::~Topology() = default;
Topology::Topology(Topology&&) noexcept = default;
Topology& Topology::operator=(Topology&&) noexcept = default;

std::span<const TopologyVertex> Topology::vertices() const { return graph_->vertices; }
std::span<const TopologyLink> Topology::links() const { return graph_->links; }

int Topology::gpu(int node, int index) const {
  if (node < 0 || node >= static_cast<int>(graph_->gpus.size()) || index < 0 ||
      index >= static_cast<int>(graph_->gpus[static_cast<std::size_t>(node)].size())) {
    throw InternalError(fmt::format("no GPU {} on node {}", index, node));
  }
  return graph_->gpus[static_cast<std::size_t>(node)][static_cast<std::size_t>(index)];
}

Route Topology::route(int from, int to) const {
  const auto& g = *graph_;
  // GPUs do not forward: only edges that touch no third GPU remain.
  const auto usable = [&g, from, to](const Edge& e) {
    const auto passes = [&](std::size_t v) {
      return g.vertices[v].kind != VertexKind::kGpu || static_cast<int>(v) == from ||
             static_cast<int>(v) == to;
    };
    return passes(boost::source(e, g.boost)) && passes(boost::target(e, g.boost));
  };
  const boost::filtered_graph<BoostGraph, std::function<bool(const Edge&)>> view(g.boost, usable);
  const auto edge_index = boost::get(boost::edge_index, g.boost);
  const auto weight = boost::make_function_property_map<Edge>([&](const Edge& e) {
    return 1.0 / g.links[static_cast<std::size_t>(boost::get(edge_index, e))].capacity.per_second;
  });
  const std::size_t n = g.vertices.size();
  std::vector<std::size_t> before(n);
  std::vector<double> distance(n);
  boost::dijkstra_shortest_paths(
      view, static_cast<std::size_t>(from),
      boost::predecessor_map(before.data()).distance_map(distance.data()).weight_map(weight));
  Route route;
  route.capacity = BytesPerSecond(from == to ? 0 : 1e300);
  for (auto v = static_cast<std::size_t>(to); v != static_cast<std::size_t>(from); v = before[v]) {
    if (before[v] == v) throw InternalError(fmt::format("no way from {} to {}", from, to));
    int best = -1;
    for (const auto& e : boost::make_iterator_range(boost::out_edges(v, g.boost))) {
      const int link = boost::get(edge_index, e);
      const bool joins = boost::target(e, g.boost) == before[v];
      if (joins && (best < 0 || g.links[static_cast<std::size_t>(link)].capacity >
                                    g.links[static_cast<std::size_t>(best)].capacity))
        best = link;
    }
    route.links.push_back(best);
    const auto& link = g.links[static_cast<std::size_t>(best)];
    if (link.capacity < route.capacity) {
      route.capacity = link.capacity;
      route.narrowest = link.kind;
    }
  }
  std::reverse(route.links.begin(), route.links.end());
  return route;
}

std::string Topology::draw() const {
  std::string text;
  for (std::size_t v = 0; v < graph_->vertices.size(); ++v) {
    if (graph_->vertices[v].node > 0) continue;
    std::vector<std::string> ends;
    for (const auto& link : graph_->links) {
      const bool from_here = link.a == static_cast<int>(v);
      if (!from_here && link.b != static_cast<int>(v)) continue;
      const auto& other = graph_->vertices[static_cast<std::size_t>(from_here ? link.b : link.a)];
      if (other.node <= 0) ends.push_back(link_text(link, other));
    }
    text += fmt::format("{:<10} {}\n", name_of(graph_->vertices[v]), fmt::join(ends, ", "));
  }
  return text;
}

}  // namespace foreshard
