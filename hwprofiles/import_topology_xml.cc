#include <expat.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>

#include "core/error.h"
#include "hwprofiles/import_links.h"
#include "hwprofiles/import_topology.h"
#include "hwprofiles/nic_search.h"

namespace foreshard {
namespace {

constexpr int kDeepestXml = 200;
constexpr std::size_t kLargestXml = 64u << 20;
constexpr std::string_view kNvSwitchClass = "0x068000";
constexpr double kUnknownNicMbit = 10000;  ///< ncclTopoAddNet, src/graph/topo.cc.

/// A GPU as the file describes it.
struct XmlGpu {
  std::string bus;
  std::string switch_bus;  ///< enclosing PCI switch; empty at the root
  std::string top_switch;  ///< the outermost one
  int cpu = 0;
  struct Link {
    std::string target;
    std::string target_class;
    int count = 0;
  };
  std::vector<Link> links;
};

/// A network device.
struct XmlNic {
  std::string name;
  std::string top_switch;
  double mbit = 0;  ///< Mb/s; 0 where the file does not say
};

double leading_number(std::string_view text) {
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

/// Collects what NCCL's topology XML says; expat's callbacks must not throw, so problems are kept.
class XmlReader {
 public:
  explicit XmlReader(const std::string& file) : file_(file) {}

  ImportedTopology read(std::string_view text) {
    if (text.size() > kLargestXml)
      throw InputError({file_, "", "larger than 64 MiB", "a topology file of NCCL"});
    const auto parser = XML_ParserCreate(nullptr);
    parser_ = parser;
    XML_SetUserData(parser, this);
    XML_SetElementHandler(parser, &XmlReader::on_start, &XmlReader::on_end);
    XML_SetStartDoctypeDeclHandler(parser, &XmlReader::on_doctype);
    const auto status = XML_Parse(parser, text.data(), static_cast<int>(text.size()), 1);
    const auto line = XML_GetCurrentLineNumber(parser);
    const char* const text_of_error = XML_ErrorString(XML_GetErrorCode(parser));
    const std::string error = text_of_error == nullptr ? "not well-formed" : text_of_error;
    XML_ParserFree(parser);
    if (!problem_.empty())
      throw InputError(
          {file_, fmt::format("line {}", problem_line_), problem_, "a topology file of NCCL"});
    if (status != XML_STATUS_OK)
      throw InputError({file_, fmt::format("line {}", line), error, "a topology file of NCCL"});
    return result();
  }

 private:
  using Attributes = std::map<std::string, std::string>;

  static void XMLCALL on_start(void* self, const XML_Char* name, const XML_Char** pairs) {
    Attributes attributes;
    for (; pairs[0] != nullptr; pairs += 2) attributes[pairs[0]] = pairs[1];
    static_cast<XmlReader*>(self)->start(name, attributes);
  }
  static void XMLCALL on_end(void* self, const XML_Char* name) {
    static_cast<XmlReader*>(self)->end(name);
  }
  static void XMLCALL on_doctype(void* self, const XML_Char*, const XML_Char*, const XML_Char*,
                                 int) {
    static_cast<XmlReader*>(self)->stop("a document type is not allowed");
  }

  void stop(std::string problem) {
    if (!problem_.empty()) return;
    problem_ = std::move(problem);
    problem_line_ = XML_GetCurrentLineNumber(parser_);
    XML_StopParser(parser_, XML_FALSE);
  }

  void start(const std::string& name, const Attributes& a) {
    const auto get = [&](const char* key) {
      const auto found = a.find(key);
      return found == a.end() ? std::string() : found->second;
    };
    if (depth_ == 0 && name != "system")
      return stop("the outermost element is <" + name + ">, not <system>");
    if (++depth_ > kDeepestXml) return stop("nested too deeply");
    if (name == "cpu") ++cpus_;
    if (name == "pci") pci_.push_back({get("busid"), get("link_speed"), get("link_width")});
    if (name == "gpu") start_gpu(get("sm"));
    if (name == "nvlink") {
      if (gpus_.empty()) return stop("<nvlink> outside a <gpu>");
      const double count = leading_number(get("count"));
      if (!(count >= 1 && count <= 64)) return stop("<nvlink> with count \"" + get("count") + "\"");
      gpus_.back().links.push_back({get("target"), get("tclass"), static_cast<int>(count)});
    }
    if (name == "net" && get("net") != "0")  // "0": for transfers that GPUs start alone.
      nics_.push_back({get("name"), top_switch(), leading_number(get("speed"))});
  }

  /// The outermost bridge above the device that is read; empty if it hangs on the CPU itself.
  std::string top_switch() const { return pci_.size() > 1 ? pci_.front().bus : std::string(); }

  void start_gpu(const std::string& sm) {
    XmlGpu gpu;
    gpu.cpu = std::max(0, cpus_ - 1);
    if (!pci_.empty()) {
      gpu.bus = pci_.back().bus;
      pcie_rate_ = std::max(pcie_rate_,
                            leading_number(pci_.back().speed) * leading_number(pci_.back().width));
    }
    if (pci_.size() > 1) gpu.switch_bus = pci_[pci_.size() - 2].bus;
    gpu.top_switch = top_switch();
    capability_ = std::max(capability_, leading_number(sm));
    gpus_.push_back(std::move(gpu));
    if (gpus_.size() > 4096) stop("more than 4096 GPUs");
  }

  void end(const std::string& name) {
    --depth_;
    if (name == "pci" && !pci_.empty()) pci_.pop_back();
  }

  ImportedTopology result() const {
    if (gpus_.empty())
      throw InputError({file_, "", "the file describes no GPU", "a topology file of NCCL"});
    ImportedTopology t;
    t.gpus = static_cast<int>(gpus_.size());
    t.sockets = std::max(1, cpus_);
    add_nics(t);
    // GT/s x lanes, 128b/130b coded: bytes per second
    if (pcie_rate_ > 0) t.pcie_rate = pcie_rate_ * 1e9 / 8 * 128 / 130;
    if (capability_ > 0) t.compute_capability = capability_ / 10;
    add_links(t);
    std::map<std::string, int> beside;
    for (const auto& gpu : gpus_) {
      if (!gpu.switch_bus.empty())
        t.gpus_per_pcie_switch = std::max(t.gpus_per_pcie_switch, ++beside[gpu.switch_bus]);
    }
    return t;
  }

  bool near_a_gpu(const XmlNic& nic) const {
    return !nic.top_switch.empty() && std::any_of(gpus_.begin(), gpus_.end(), [&](const XmlGpu& g) {
      return g.top_switch == nic.top_switch;
    });
  }

  /// NICs behind a switch with a GPU if there are any (NCCL takes the near ones first), else all.
  std::vector<XmlNic> nics_of_gpus(ImportedTopology& t) const {
    std::vector<XmlNic> near, far;
    for (const XmlNic& nic : nics_) (near_a_gpu(nic) ? near : far).push_back(nic);
    if (!nics_.empty()) t.nics_on_switches = !near.empty();
    if (near.empty()) return far;
    for (const XmlNic& nic : far)
      t.notes.push_back(nic.name +
                        " shares no switch with a GPU: left out as a card for storage "
                        "or management");
    return near;
  }

  void add_nics(ImportedTopology& t) const {
    std::vector<XmlNic> nics = nics_of_gpus(t);
    t.nics = static_cast<int>(nics.size());
    if (std::all_of(nics.begin(), nics.end(), [](const XmlNic& n) { return n.mbit <= 0; })) return;
    std::vector<double> rates;
    for (XmlNic& nic : nics) {
      if (nic.mbit <= 0) {
        nic.mbit = kUnknownNicMbit;
        t.notes.push_back(nic.name + " states no speed: 10 Gb/s, as NCCL takes it");
      }
      rates.push_back(nic.mbit * 1e6 / 8);
    }
    if (std::equal(rates.begin() + 1, rates.end(), rates.begin()))
      t.nic_rate = rates[0];
    else
      add_unequal_nics(t, nics, rates);
  }

  /// As many NICs as NCCL's search uses, each with its share of what their channels move together.
  void add_unequal_nics(ImportedTopology& t, const std::vector<XmlNic>& nics,
                        const std::vector<double>& rates) const {
    const NicSearch found = search_nics(rates, capability_ / 10);
    std::vector<std::string> used, unused;
    double slowest = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < nics.size(); ++i) {
      const std::string text = fmt::format("{} {:g} Gb/s", nics[i].name, nics[i].mbit / 1000);
      if (found.channels[i] == 0) {
        unused.push_back(text);
        continue;
      }
      used.push_back(fmt::format("{} in {} channel{}", text, found.channels[i],
                                 found.channels[i] == 1 ? "" : "s"));
      slowest = std::min(slowest, rates[i]);
    }
    t.nics = static_cast<int>(used.size());
    t.nic_rate = found.bytes_per_second / t.nics;
    if (!unused.empty())
      t.notes.push_back(
          fmt::format("{}: left out, NCCL's channels have one speed and are faster without",
                      fmt::join(unused, ", ")));
    t.notes.push_back(fmt::format("NICs used: {}; together {:.1f} GB/s", fmt::join(used, ", "),
                                  found.bytes_per_second * 1e-9));
    if (*t.nic_rate > slowest * (1 + 1e-9))
      t.notes.push_back(
          fmt::format("the profile has {} NICs of {:.4g} Gb/s each; a group of one GPU a node "
                      "behind the slowest "
                      "gets {:.4g} Gb/s only",
                      t.nics, *t.nic_rate * 8e-9, slowest * 8e-9));
  }

  void add_links(ImportedTopology& t) const {
    std::map<std::string, int> index;
    for (std::size_t i = 0; i < gpus_.size(); ++i) index[gpus_[i].bus] = static_cast<int>(i);
    bool switched = false;
    std::vector<int> sums;
    for (std::size_t i = 0; i < gpus_.size(); ++i) {
      int sum = 0;
      for (const auto& link : gpus_[i].links) {
        sum += link.count;
        switched = switched || link.target_class == kNvSwitchClass;
        const auto other = index.find(link.target);
        if (other != index.end() && other->second > static_cast<int>(i)) {
          t.mesh.push_back({static_cast<int>(i), other->second, link.count});
        }
      }
      sums.push_back(sum);
    }
    settle_links(sums, switched, t);
  }

  struct Pci {
    std::string bus, speed, width;
  };
  const std::string& file_;
  XML_Parser parser_ = nullptr;
  int depth_ = 0;
  int cpus_ = 0;
  double pcie_rate_ = 0, capability_ = 0;
  std::vector<Pci> pci_;
  std::vector<XmlGpu> gpus_;
  std::vector<XmlNic> nics_;
  std::string problem_;
  XML_Size problem_line_ = 0;
};

}  // namespace

ImportedTopology parse_nccl_topology_xml(std::string_view text, const std::string& file) {
  return XmlReader(file).read(text);
}

}  // namespace foreshard
