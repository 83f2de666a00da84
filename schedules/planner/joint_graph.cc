#include "schedules/planner/joint_graph.h"

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/push_relabel_max_flow.hpp>
#include <cmath>
#include <queue>
#include <set>
#include <utility>

namespace foreshard {
namespace {

constexpr std::int64_t kNoBackward = 1'000'000'000;

bool fused(const JointValue& made, const JointValue& reader) {
  return reader.concatenation || (made.generated && reader.generated);
}

/// dist_from_bw: kernels from a value to the nearest one of backward.
std::vector<std::int64_t> distances(const JointGraph& graph) {
  std::vector<std::int64_t> distance(graph.size(), kNoBackward);
  for (std::size_t v = graph.size(); v-- > 0;) {
    if (graph[v].read_backward) distance[v] = 1;
    for (const std::uint32_t r : graph[v].readers)
      distance[v] = std::min(distance[v], distance[r] + 1);
  }
  return distance;
}

/// get_node_weight: bytes, more for values far from backward, twice for those that would not be
/// written to memory otherwise.
std::int64_t weight(const JointGraph& graph, const JointValue& value, std::int64_t distance) {
  if (value.free_to_save) return 0;
  const auto steps = static_cast<double>(std::clamp<std::int64_t>(distance, 1, 100));
  const auto weighted =
      static_cast<std::int64_t>(static_cast<double>(value.bytes) * std::pow(1.1, steps));
  bool written = value.argument || value.output || value.read_whole;
  for (const std::uint32_t r : value.readers) written = written || !fused(value, graph[r]);
  return written ? weighted : 2 * weighted;
}

/// find_first_unfusible: the first value after `readers` along fused chains that ends one, at most
/// `last`.
std::uint32_t first_not_fused(const JointGraph& graph, const std::vector<std::uint32_t>& readers,
                              std::uint32_t last) {
  std::set<std::pair<std::uint32_t, bool>> ahead;
  for (const std::uint32_t r : readers) ahead.insert({r, true});
  while (!ahead.empty()) {
    const auto [value, is_fused] = *ahead.begin();
    ahead.erase(ahead.begin());
    if (!is_fused) return value;
    for (const std::uint32_t r : graph[value].readers)
      if (r <= last) ahead.insert({r, fused(graph[value], graph[r])});
  }
  return last;
}

/// Values that are not made again: by kind, because backward needs them in memory, because they are
/// small results of large tensors, and those that are fused with a value used long before.
std::vector<bool> not_made_again(const JointGraph& graph) {
  std::vector<bool> banned(graph.size());
  for (std::size_t v = 0; v < graph.size(); ++v) {
    const JointValue& value = graph[v];
    banned[v] = value.argument || !value.may_run_again || value.read_whole ||
                value.bytes * 4 < value.read_bytes;
  }
  for (const JointValue& value : graph) {
    if (value.readers.empty()) continue;
    const std::uint32_t last = *std::max_element(value.readers.begin(), value.readers.end());
    const std::uint32_t end = first_not_fused(graph, value.readers, last);
    for (const std::uint32_t r : value.readers)
      if (r > end && fused(value, graph[r])) banned[r] = true;
  }
  return banned;
}

using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
using FlowGraph = boost::adjacency_list<
    boost::vecS, boost::vecS, boost::directedS, boost::no_property,
    boost::property<
        boost::edge_capacity_t, std::int64_t,
        boost::property<boost::edge_residual_capacity_t, std::int64_t,
                        boost::property<boost::edge_reverse_t, Traits::edge_descriptor>>>>;

/// Flow from what is not made again to what backward reads; a value is an edge of its weight.
class Flow {
 public:
  explicit Flow(std::size_t values)
      : source_(2 * values), sink_(2 * values + 1), graph_(sink_ + 1) {}

  static std::size_t in(std::size_t value) { return 2 * value; }
  static std::size_t out(std::size_t value) { return 2 * value + 1; }
  std::size_t source() const { return source_; }
  std::size_t sink() const { return sink_; }

  void add(std::size_t from, std::size_t to, std::int64_t capacity) {
    const auto forth = boost::add_edge(from, to, graph_).first;
    const auto back = boost::add_edge(to, from, graph_).first;
    boost::put(boost::edge_capacity, graph_, forth, capacity);
    boost::put(boost::edge_capacity, graph_, back, 0);
    boost::put(boost::edge_reverse, graph_, forth, back);
    boost::put(boost::edge_reverse, graph_, back, forth);
  }

  /// Vertices on the sink's side of the minimal cut that lies nearest to it (networkx's
  /// minimum_cut, which the partitioner calls).
  std::vector<bool> side_of_sink() {
    boost::push_relabel_max_flow(graph_, source_, sink_);
    std::vector<bool> reaches(boost::num_vertices(graph_));
    std::queue<std::size_t> next;
    reaches[sink_] = true;
    next.push(sink_);
    while (!next.empty()) {
      const std::size_t to = next.front();
      next.pop();
      for (const auto& e : boost::make_iterator_range(boost::out_edges(to, graph_))) {
        const auto back = boost::get(boost::edge_reverse, graph_, e);
        const std::size_t from = boost::target(e, graph_);
        if (reaches[from] || boost::get(boost::edge_residual_capacity, graph_, back) == 0) continue;
        reaches[from] = true;
        next.push(from);
      }
    }
    return reaches;
  }

 private:
  std::size_t source_, sink_;
  FlowGraph graph_;
};

}  // namespace

std::vector<bool> saved_values(const JointGraph& graph) {
  const std::vector<std::int64_t> distance = distances(graph);
  const std::vector<bool> banned = not_made_again(graph);
  std::vector<std::int64_t> weights;
  std::int64_t unlimited = 1;  // More than any cut.
  for (std::size_t v = 0; v < graph.size(); ++v) {
    weights.push_back(weight(graph, graph[v], distance[v]));
    unlimited += weights.back();
  }
  Flow flow(graph.size());
  for (std::size_t v = 0; v < graph.size(); ++v) {
    flow.add(Flow::in(v), Flow::out(v), weights[v]);
    if (banned[v]) flow.add(flow.source(), Flow::in(v), unlimited);
    if (graph[v].read_backward) flow.add(Flow::out(v), flow.sink(), unlimited);
    for (const std::uint32_t r : graph[v].readers) flow.add(Flow::out(v), Flow::in(r), unlimited);
  }
  const std::vector<bool> sinks = flow.side_of_sink();
  std::vector<bool> saved(graph.size());
  for (std::size_t v = 0; v < graph.size(); ++v)
    saved[v] = !sinks[Flow::in(v)] && sinks[Flow::out(v)];
  return saved;
}

}  // namespace foreshard
