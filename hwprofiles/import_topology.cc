#include "hwprofiles/import_topology.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "core/error.h"
#include "hwprofiles/import_links.h"

namespace foreshard {
namespace {

/// No GPU has more NVLinks; larger sums over peers mean a switch.
constexpr int kMostLinks = 18;
/// Largest matrix that is read.
constexpr std::size_t kMostDevices = 1024;

std::string without_colours(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b' && i + 1 < text.size() && text[i + 1] == '[') {
      while (i < text.size() && text[i] != 'm') ++i;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : line) {
    if (c == ' ' || c == '\t' || c == '\r') {
      if (!word.empty()) words.push_back(std::move(word));
      word.clear();
    } else {
      word += c;
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

bool is_gpu(const std::string& word) {
  return word.size() > 3 && word.starts_with("GPU") &&
         std::isdigit(static_cast<unsigned char>(word[3]));
}
bool is_nic(const std::string& word) {
  return (word.starts_with("NIC") && word.size() > 3) || word.starts_with("mlx") ||
         word.starts_with("bnxt") || word.starts_with("rdma") || word.starts_with("efa") ||
         word.starts_with("irdma");
}

/// How two devices are joined: NVLinks, or a class of PCIe path.
struct Cell {
  int links = 0;
  enum class Path { kSelf, kNvLink, kSwitch, kSocket, kSystem } path = Path::kSelf;
  bool operator==(const Cell&) const = default;
};

std::optional<Cell> parse_cell(const std::string& word) {
  if (word == "X") return Cell{};
  if (word == "PIX" || word == "PXB") return Cell{0, Cell::Path::kSwitch};
  if (word == "PHB" || word == "NODE") return Cell{0, Cell::Path::kSocket};
  if (word == "SYS" || word == "SOC") return Cell{0, Cell::Path::kSystem};
  if (word.starts_with("NV")) {
    int links = 0;
    const auto r = std::from_chars(word.data() + 2, word.data() + word.size(), links);
    if (r.ec == std::errc() && r.ptr == word.data() + word.size() && links >= 1 && links <= 64) {
      return Cell{links, Cell::Path::kNvLink};
    }
  }
  return std::nullopt;
}

class MatrixReader {
 public:
  explicit MatrixReader(std::string file) : issues_(std::move(file)) {}

  ImportedTopology read(std::string_view text) {
    const auto plain = without_colours(text);
    int number = 0;
    for (std::size_t at = 0; at <= plain.size();) {
      const auto end = std::min(plain.find('\n', at), plain.size());
      read_line(words_of(std::string_view(plain).substr(at, end - at)), ++number);
      at = end + 1;
    }
    if (gpus_ == 0)
      issues_.add("", "no matrix of nvidia-smi topo -m found",
                  "a header line \"GPU0 GPU1 ...\" and its rows");
    issues_.throw_if_any();
    check();
    issues_.throw_if_any();
    return classify();
  }

 private:
  void read_line(const std::vector<std::string>& words, int number) {
    if (words.empty()) return;
    if (devices_.empty()) {
      if (is_gpu(words[0]) &&
          (words.size() == 1 || is_gpu(words[1]) || is_nic(words[1]) || words[1] == "CPU")) {
        read_header(words);
      }
      return;
    }
    if (rows_.size() == devices_.size() || words[0] != devices_[rows_.size()]) return;
    std::vector<Cell> row;
    for (std::size_t i = 1; i < words.size() && row.size() < devices_.size(); ++i) {
      const auto cell = parse_cell(words[i]);
      if (!cell) break;
      row.push_back(*cell);
    }
    if (row.size() < devices_.size()) {
      issues_.add(
          fmt::format("line {}", number),
          fmt::format("{} cells where the header names {} devices", row.size(), devices_.size()),
          "X, NV1 to NV18, PIX, PXB, PHB, NODE, SYS");
    }
    if (row.size() == devices_.size() && words.size() > devices_.size() + 1 &&
        parse_cell(words[devices_.size() + 1]))
      issues_.add(fmt::format("line {}", number),
                  fmt::format("more cells than the {} devices of the header", devices_.size()),
                  "the header may be damaged");
    // After the cells: CPU affinity, NUMA affinity.
    if (is_gpu(words[0])) {
      const bool said = has_numa_ && words.size() >= devices_.size() + 3;
      numa_.push_back(said ? words[devices_.size() + 2] : std::string());
    }
    row.resize(devices_.size());
    rows_.push_back(std::move(row));
  }

  void read_header(const std::vector<std::string>& words) {
    for (const auto& word : words) {
      if (!is_gpu(word) && !is_nic(word)) break;
      devices_.push_back(word);
      if (is_gpu(word)) ++gpus_;
    }
    for (std::size_t i = devices_.size(); i < words.size(); ++i)
      if (is_gpu(words[i]) || is_nic(words[i]))
        issues_.add("header",
                    fmt::format("\"{}\" stands between {} and {}", words[devices_.size()],
                                devices_.back(), words[i]),
                    "device names, then CPU Affinity and NUMA Affinity");
    has_numa_ = std::find(words.begin(), words.end(), "NUMA") != words.end();
    if (devices_.size() > kMostDevices)
      issues_.add("", fmt::format("{} devices", devices_.size()), "at most 1024");
    issues_.throw_if_any();
  }

  void check() {
    // Some versions print no rows for NICs; rows of GPUs must all be there.
    if (static_cast<int>(rows_.size()) < gpus_) {
      issues_.add("", fmt::format("{} rows for {} GPUs", rows_.size(), gpus_),
                  "the text may be cut off");
      return;
    }
    for (int a = 0; a < gpus_; ++a) {
      for (int b = 0; b < gpus_; ++b) {
        if (at(a, b) == at(b, a) && (a == b) == (at(a, b).path == Cell::Path::kSelf)) continue;
        issues_.add(fmt::format("GPU{}, GPU{}", a, b), "the matrix contradicts itself",
                    "the same cell in both directions");
        return;
      }
    }
  }

  const Cell& at(int a, int b) const {
    return rows_[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)];
  }

  ImportedTopology classify() const {
    ImportedTopology t;
    t.gpus = gpus_;
    std::vector<int> sums, singles;  // Of each GPU: links to all others, to one.
    for (int a = 0; a < gpus_; ++a) {
      int sum = 0, single = 0;
      for (int b = 0; b < gpus_; ++b) {
        sum += at(a, b).links;
        single = std::max(single, at(a, b).links);
        if (a < b && at(a, b).links > 0) t.mesh.push_back({a, b, at(a, b).links});
      }
      sums.push_back(sum);
      singles.push_back(single);
    }
    // Through a switch a cell counts all links of the GPUs, so that the sum is more than one has.
    const bool switched = *std::max_element(sums.begin(), sums.end()) > kMostLinks;
    settle_links(switched ? singles : sums, switched, t);
    t.gpus_per_pcie_switch = largest_switch();
    find_sockets(t);
    find_nics(t);
    return t;
  }

  /// A card's cell in a GPU's row.
  bool shares_switch(int gpu, int card) const { return at(gpu, card).path == Cell::Path::kSwitch; }
  bool near_a_gpu(int card) const {
    for (int g = 0; g < gpus_; ++g)
      if (shares_switch(g, card)) return true;
    return false;
  }

  /// Cards for collectives: where some share a switch with a GPU, the others are for storage and
  /// management (NCCL takes the near ones).
  void find_nics(ImportedTopology& t) const {
    std::vector<std::string> far;
    for (int card = gpus_; card < static_cast<int>(devices_.size()); ++card) {
      if (near_a_gpu(card))
        ++t.nics;
      else
        far.push_back(devices_[static_cast<std::size_t>(card)]);
    }
    t.nics_on_switches = t.nics > 0;
    if (t.nics == 0)
      t.nics = static_cast<int>(far.size());
    else if (!far.empty())
      t.notes.push_back(
          fmt::format("{} {} no switch with a GPU: left out as {} for storage or management",
                      fmt::join(far, ", "), far.size() == 1 ? "shares" : "share",
                      far.size() == 1 ? "a card" : "cards"));
    if (t.nics == 0) t.notes.push_back("the matrix lists no NIC");
  }

  /// On one PCIe switch: by their own path, or, where NVLink hides it, by a card that both share a
  /// switch with.
  bool on_one_switch(int a, int b) const {
    if (at(a, b).path == Cell::Path::kSwitch) return true;
    if (at(a, b).path != Cell::Path::kNvLink) return false;
    for (int card = gpus_; card < static_cast<int>(devices_.size()); ++card)
      if (shares_switch(a, card) && shares_switch(b, card)) return true;
    return false;
  }

  int largest_switch() const {
    int largest = 1;
    for (int a = 0; a < gpus_; ++a) {
      int size = 1;
      for (int b = 0; b < gpus_; ++b) size += b != a && on_one_switch(a, b) ? 1 : 0;
      largest = std::max(largest, size);
    }
    return largest;
  }

  /// Surely on one socket: a path that stays on it, or the same NUMA node.
  bool on_one_socket(int a, int b) const {
    if (at(a, b).path == Cell::Path::kSocket || on_one_switch(a, b)) return true;
    const std::string &na = numa_[static_cast<std::size_t>(a)],
                      &nb = numa_[static_cast<std::size_t>(b)];
    return is_number(na) && na == nb;
  }

  static bool is_number(const std::string& text) {
    return !text.empty() && std::all_of(text.begin(), text.end(),
                                        [](unsigned char c) { return std::isdigit(c) != 0; });
  }

  /// Number of each GPU's group, where `joined` GPUs are of one group, and how many there are.
  template <typename Joined>
  std::pair<std::vector<int>, int> groups(const Joined& joined) const {
    std::vector<int> group(static_cast<std::size_t>(gpus_), -1);
    int count = 0;
    for (int a = 0; a < gpus_; ++a) {
      if (group[static_cast<std::size_t>(a)] >= 0) continue;
      std::vector<int> open{a};
      group[static_cast<std::size_t>(a)] = count;
      while (!open.empty()) {
        const int x = open.back();
        open.pop_back();
        for (int b = 0; b < gpus_; ++b) {
          if (group[static_cast<std::size_t>(b)] >= 0 || !joined(x, b)) continue;
          group[static_cast<std::size_t>(b)] = count;
          open.push_back(b);
        }
      }
      ++count;
    }
    return {group, count};
  }

  /// Groups of GPUs that are surely together, of which SYS paths join some. Two sockets where they
  /// can be laid on two so that each SYS path runs between them (what NVLink hides then follows),
  /// else one for each group.
  void find_sockets(ImportedTopology& t) const {
    const auto [group, count] = groups([&](int a, int b) { return on_one_socket(a, b); });
    std::vector<std::vector<bool>> apart(static_cast<std::size_t>(count),
                                         std::vector<bool>(static_cast<std::size_t>(count)));
    bool any = false;
    for (int a = 0; a < gpus_; ++a) {
      for (int b = 0; b < gpus_; ++b) {
        if (at(a, b).path != Cell::Path::kSystem) continue;
        const auto x = static_cast<std::size_t>(group[static_cast<std::size_t>(a)]),
                   y = static_cast<std::size_t>(group[static_cast<std::size_t>(b)]);
        if (x != y) apart[x][y] = any = true;
      }
    }
    const std::set<std::string> numa(numa_.begin(), numa_.end());
    if (!any) {
      t.sockets = 1;
      if (t.links_per_gpu > 0 && numa.size() > 1) {
        t.sockets = 2;  // hosts of GPUs have at most two; a socket may be several NUMA nodes
        t.notes.push_back(
            fmt::format("NVLink hides the sockets; {} NUMA nodes are taken as two", numa.size()));
      }
      return;
    }
    t.sockets = lies_on_two(apart) ? 2 : count;
  }

  static bool lies_on_two(const std::vector<std::vector<bool>>& apart) {
    std::vector<int> side(apart.size(), 0);
    for (std::size_t start = 0; start < apart.size(); ++start) {
      if (side[start] != 0) continue;
      side[start] = 1;
      std::vector<std::size_t> open{start};
      while (!open.empty()) {
        const std::size_t x = open.back();
        open.pop_back();
        for (std::size_t y = 0; y < apart.size(); ++y) {
          if (!apart[x][y]) continue;
          if (side[y] == side[x]) return false;
          if (side[y] != 0) continue;
          side[y] = -side[x];
          open.push_back(y);
        }
      }
    }
    return true;
  }

  IssueList issues_;
  std::vector<std::string> devices_;
  int gpus_ = 0;
  bool has_numa_ = false;
  std::vector<std::string> numa_;  ///< NUMA node that each GPU is near to; empty: not said.
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace

ImportedTopology parse_smi_topology(std::string_view text, const std::string& file) {
  if (text.find('\0') != std::string_view::npos) {
    throw InputError({file, "", "this is a binary file", "the text of nvidia-smi topo -m"});
  }
  return MatrixReader(file).read(text);
}

namespace {

/// What the file says of the GPUs must be possible for those of the base.
void check_gpu(const GpuProfile& gpu, const std::string& base, const ImportedTopology& t,
               const std::string& source) {
  IssueList issues(source);
  if (const double most = gpu.nvlink_links.value_or(0); most > 0 && t.links_per_gpu > most)
    issues.add("NVLink",
               fmt::format("{} links a GPU, where the {} of {} has {:.0f}", t.links_per_gpu,
                           gpu.title, base, most),
               "--on a machine with the GPUs of this file");
  if (t.compute_capability && gpu.compute_capability.known() &&
      *t.compute_capability != gpu.compute_capability.value)
    issues.add("compute capability",
               fmt::format("{:.1f}, where the {} of {} has {:.1f}", *t.compute_capability,
                           gpu.title, base, gpu.compute_capability.value),
               "--on a machine with the GPUs of this file");
  issues.throw_if_any();
}

/// "topo" of "/data/topo.txt".
std::string stem_of(const std::string& file) {
  const std::string name = file.substr(file.rfind('/') + 1);
  const std::string stem = name.substr(0, name.find('.'));
  return stem.empty() ? "imported" : stem;
}

}  // namespace

HardwareProfile with_topology(HardwareProfile base, const ImportedTopology& t,
                              const std::string& source) {
  check_gpu(base.gpu, base.name, t, source);
  base.name = stem_of(source);
  base.title = fmt::format("{} x {}, {} (imported)", t.gpus, base.gpu.title, name_of(t.fabric));
  const auto count = [&](int value) {
    return Fact{static_cast<double>(value), Dimension::kCount, FactKind::kMeasured, source};
  };
  base.node.gpus = count(t.gpus);
  base.node.fabric = t.fabric;
  base.node.mesh = t.mesh;
  base.node.gpus_per_pcie_switch = count(t.gpus_per_pcie_switch);
  base.node.sockets = count(t.sockets);
  if (t.links_per_gpu > 0 && base.gpu.nvlink_links.value_or(0) > 0 &&
      base.gpu.nvlink_bandwidth.known()) {
    const double link = base.gpu.nvlink_bandwidth.value / base.gpu.nvlink_links.value;
    base.gpu.nvlink_bandwidth =
        Fact{link * t.links_per_gpu, Dimension::kBytesPerSecond, FactKind::kMeasured,
             fmt::format("{} links of {:.4g} GB/s, {}", t.links_per_gpu, link * 1e-9, source)};
    base.gpu.nvlink_links = count(t.links_per_gpu);
  }
  if (t.nics > 0 && base.network.kind != NetworkKind::kNone) {
    base.network.nics = count(t.nics);
    if (base.network.rails.value_or(0) > t.nics) base.network.rails = count(t.nics);
    if (t.nics_on_switches) base.network.nics_on_switches = count(*t.nics_on_switches ? 1 : 0);
  }
  const auto rate = [&](double value) {
    return Fact{value, Dimension::kBytesPerSecond, FactKind::kMeasured, source};
  };
  if (t.nic_rate && base.network.kind != NetworkKind::kNone)
    base.network.nic_rate = rate(*t.nic_rate);
  if (t.pcie_rate) base.gpu.pcie_bandwidth = rate(*t.pcie_rate);
  return base;
}

}  // namespace foreshard
