#include "models/op_graph.h"

#include <algorithm>
#include <map>

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/breadth_first_search.hpp>
#include <boost/graph/topological_sort.hpp>

#include "core/error.h"
#include "core/json.h"

namespace foreshard {
namespace {

using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS>;
using Vertex = boost::graph_traits<Graph>::vertex_descriptor;

Graph graph_of(const OpGraph& ops) {
  Graph g(ops.nodes().size());
  for (const OpEdge& e : ops.edges()) boost::add_edge(e.from, e.to, g);
  return g;
}

bool inside(const OpNode& node, std::string_view module) {
  if (node.pass != OpPass::kForward || node.module.rfind(module, 0) != 0) return false;
  return node.module.size() == module.size() || module.empty() || node.module[module.size()] == '.';
}

/// A storage of forward that backward reads.
bool is_saved(const OpGraph& ops, const OpEdge& e) {
  const OpPass from = ops.nodes()[e.from].pass;
  return ops.nodes()[e.to].pass == OpPass::kBackward &&
         (from == OpPass::kForward || from == OpPass::kInput);
}

Bytes sum_of(const std::map<std::uint32_t, Bytes>& storages) {
  Bytes sum;
  for (const auto& [id, bytes] : storages) sum += bytes;
  return sum;
}

/// Marks every vertex that a search passes.
struct Marker : boost::default_bfs_visitor {
  explicit Marker(std::vector<bool>* seen) : seen_(seen) {}
  template <typename V, typename G>
  void discover_vertex(V v, const G&) const {
    (*seen_)[v] = true;
  }
  std::vector<bool>* seen_;
};

/// Nodes of the region from which one of `ends` can be reached within it: a search against the
/// edges.
std::vector<bool> ancestors(const OpGraph& ops, const std::vector<bool>& region,
                            const std::vector<Vertex>& ends) {
  Graph backwards(region.size());
  for (const OpEdge& e : ops.edges()) {
    if (region[e.from] && region[e.to]) boost::add_edge(e.to, e.from, backwards);
  }
  std::vector<bool> seen(region.size(), false);
  std::vector<boost::default_color_type> colors(region.size(), boost::white_color);
  const auto color =
      boost::make_iterator_property_map(colors.begin(), boost::get(boost::vertex_index, backwards));
  boost::queue<Vertex> queue;
  for (const Vertex end : ends) {
    if (!seen[end]) boost::breadth_first_visit(backwards, end, queue, Marker(&seen), color);
  }
  return seen;
}

std::string label_of(const OpNode& n) {
  return fmt::format("{}\\n{}\\n{} [{}]", n.op, n.module, name_of(n.dtype),
                     fmt::join(n.shape, ", "));
}

}  // namespace

std::string_view name_of(OpPass pass) {
  switch (pass) {
    case OpPass::kInput:
      return "input";
    case OpPass::kForward:
      return "forward";
    case OpPass::kLoss:
      return "loss";
    case OpPass::kBackward:
      return "backward";
  }
  return "";
}

std::uint32_t OpGraph::add_node(OpNode node) {
  nodes_.push_back(std::move(node));
  return static_cast<std::uint32_t>(nodes_.size() - 1);
}

std::vector<std::uint32_t> OpGraph::topological_order() const {
  std::vector<std::uint32_t> order;
  order.reserve(nodes_.size());
  const Graph g = graph_of(*this);
  try {
    boost::topological_sort(g, std::back_inserter(order));
  } catch (const boost::not_a_dag&) {
    throw InternalError("the op graph has a circle");
  }
  std::reverse(order.begin(), order.end());
  return order;
}

Bytes OpGraph::saved_by(std::uint32_t node) const {
  std::map<std::uint32_t, Bytes> storages;
  for (const OpEdge& e : edges_) {
    if (e.from == node && is_saved(*this, e)) storages[e.storage] = e.bytes;
  }
  return sum_of(storages);
}

CheckpointFacts OpGraph::checkpoint(std::string_view module) const {
  std::vector<bool> region(nodes_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) region[i] = inside(nodes_[i], module);
  std::map<std::uint32_t, Bytes> saved, kept;
  std::vector<Vertex> makers;
  for (const OpEdge& e : edges_) {
    if (region[e.to] && !region[e.from]) kept[e.storage] = e.bytes;
    if (!region[e.from] || !is_saved(*this, e)) continue;
    saved[e.storage] = e.bytes;
    makers.push_back(e.from);
  }
  CheckpointFacts facts{std::string(module), sum_of(saved), sum_of(kept), {}};
  const std::vector<bool> again = ancestors(*this, region, makers);
  for (std::size_t i = 0; i < again.size(); ++i) {
    if (again[i]) facts.recomputed += nodes_[i].flops;
  }
  return facts;
}

std::string OpGraph::dot() const {
  std::string out = "digraph G {\n";
  for (const std::uint32_t id : topological_order()) {
    const OpNode& n = nodes_[id];
    out += fmt::format("{} [label=\"{}\", shape=box{}];\n", id, label_of(n),
                       n.pass == OpPass::kBackward ? ", style=dashed" : "");
  }
  for (const OpEdge& e : edges_) {
    out += fmt::format("{}->{} [label=\"{}\"{}];\n", e.from, e.to, e.bytes.value,
                       is_saved(*this, e) ? ", style=bold" : "");
  }
  return out + "}\n";
}

Json OpGraph::json() const {
  std::vector<std::map<std::uint32_t, Bytes>> saved(nodes_.size());
  for (const OpEdge& e : edges_) {
    if (is_saved(*this, e)) saved[e.from][e.storage] = e.bytes;
  }
  Json nodes = Json::array(), edges = Json::array();
  for (const std::uint32_t id : topological_order()) {
    const OpNode& n = nodes_[id];
    nodes.push_back({{"id", id},
                     {"op", n.op},
                     {"module", n.module},
                     {"pass", name_of(n.pass)},
                     {"shape", n.shape},
                     {"dtype", name_of(n.dtype)},
                     {"flops", n.flops.value},
                     {"read_bytes", n.read.value},
                     {"written_bytes", n.written.value},
                     {"saved_bytes", sum_of(saved[id]).value}});
  }
  for (const OpEdge& e : edges_) {
    edges.push_back(
        {{"from", e.from}, {"to", e.to}, {"storage", e.storage}, {"bytes", e.bytes.value}});
  }
  return {{"nodes", std::move(nodes)}, {"edges", std::move(edges)}};
}

}  // namespace foreshard
