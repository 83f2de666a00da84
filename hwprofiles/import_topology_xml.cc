#include <expat.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "core/error.h"
#include "hwprofiles/import_topology.h"

namespace foreshard {
namespace {

constexpr int kDeepestXml = 200;
constexpr std::size_t kLargestXml = 64u << 20;
constexpr std::string_view kNvSwitchClass = "0x068000";

/// A GPU as the file describes it.
struct XmlGpu {
  std::string bus;
  std::string switch_bus;  ///< enclosing PCI switch; empty at the root
  int cpu = 0;
  struct Link {
    std::string target;
    std::string target_class;
    int count = 0;
  };
  std::vector<Link> links;
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
    if (name == "net") {
      ++nics_;
      nic_mbit_ = std::max(nic_mbit_, leading_number(get("speed")));
    }
  }

  void start_gpu(const std::string& sm) {
    XmlGpu gpu;
    gpu.cpu = std::max(0, cpus_ - 1);
    if (!pci_.empty()) {
      gpu.bus = pci_.back().bus;
      pcie_rate_ = std::max(pcie_rate_,
                            leading_number(pci_.back().speed) * leading_number(pci_.back().width));
    }
    if (pci_.size() > 1) gpu.switch_bus = pci_[pci_.size() - 2].bus;
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
    t.nics = nics_;
    if (nic_mbit_ > 0) t.nic_rate = nic_mbit_ * 1e6 / 8;
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

  void add_links(ImportedTopology& t) const {
    std::map<std::string, int> index;
    for (std::size_t i = 0; i < gpus_.size(); ++i) index[gpus_[i].bus] = static_cast<int>(i);
    bool switched = false;
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
      t.links_per_gpu = std::max(t.links_per_gpu, sum);
    }
    if (t.links_per_gpu == 0) return;
    const bool pairs = std::all_of(t.mesh.begin(), t.mesh.end(), [](const MeshEdge& e) {
      return e.a % 2 == 0 && e.b == e.a + 1;
    });
    t.fabric = switched ? FabricKind::kNvSwitch
               : pairs  ? FabricKind::kNvLinkPairs
                        : FabricKind::kNvLinkMesh;
    if (t.fabric != FabricKind::kNvLinkMesh) t.mesh.clear();
  }

  struct Pci {
    std::string bus, speed, width;
  };
  const std::string& file_;
  XML_Parser parser_ = nullptr;
  int depth_ = 0;
  int cpus_ = 0;
  int nics_ = 0;
  double nic_mbit_ = 0, pcie_rate_ = 0, capability_ = 0;
  std::vector<Pci> pci_;
  std::vector<XmlGpu> gpus_;
  std::string problem_;
  XML_Size problem_line_ = 0;
};

}  // namespace

ImportedTopology parse_nccl_topology_xml(std::string_view text, const std::string& file) {
  return XmlReader(file).read(text);
}

}  // namespace foreshard
