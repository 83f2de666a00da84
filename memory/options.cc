#include "memory/options.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/integers.h"
#include "core/parse_number.h"

namespace foreshard {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kLargestMegabytes = kNoByteLimit.value / kMiB;
constexpr char kSource[] = "PYTORCH_CUDA_ALLOC_CONF";

enum class Known { kEffective, kIgnored };

struct Key {
  const char* name;
  Known known;
};

// Keys of PyTorch's parsers (c10/core/AllocatorConfig.h, c10/cuda/CUDAAllocatorConfig.h); the
// ignored ones do not change which device memory is taken.
constexpr Key kKeys[] = {
    {"backend", Known::kEffective},
    {"expandable_segments", Known::kEffective},
    {"garbage_collection_threshold", Known::kEffective},
    {"large_segment_size_mb", Known::kEffective},
    {"max_non_split_rounding_mb", Known::kEffective},
    {"max_split_size_mb", Known::kEffective},
    {"per_process_memory_fraction", Known::kEffective},
    {"roundup_power2_divisions", Known::kEffective},
    {"graph_capture_record_stream_reuse", Known::kIgnored},
    {"pinned_num_register_threads", Known::kIgnored},
    {"pinned_reserve_segment_size_mb", Known::kIgnored},
    {"pinned_use_background_threads", Known::kIgnored},
    {"pinned_use_cuda_host_register", Known::kIgnored},
    {"release_lock_on_cudamalloc", Known::kIgnored},
    {"throw_on_cudamalloc_oom", Known::kIgnored},
};

std::string without_spaces(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c != ' ') out += c;
  }
  return out;
}

// Splits at commas outside of brackets.
std::vector<std::string> split_items(const std::string& text) {
  std::vector<std::string> items(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c == ',' && depth == 0) {
      items.emplace_back();
    } else {
      items.back() += c;
    }
  }
  return items;
}

class ConfReader {
 public:
  explicit ConfReader(IssueList& issues) : issues_(issues) {}

  AllocatorOptions read(std::string_view text) {
    const std::string compact = without_spaces(text);
    if (compact.empty()) return options_;
    for (const std::string& item : split_items(compact)) read_item(item);
    return options_;
  }

 private:
  void read_item(const std::string& item) {
    const std::size_t colon = item.find(':');
    if (item.empty() || colon == std::string::npos || colon == 0 || colon + 1 == item.size()) {
      issues_.add(item.empty() ? "(empty item)" : item, "not of the form key:value",
                  "items are separated by commas");
      return;
    }
    const std::string key = item.substr(0, colon);
    const std::string value = item.substr(colon + 1);
    const auto* known = std::find_if(std::begin(kKeys), std::end(kKeys),
                                     [&](const Key& k) { return key == k.name; });
    if (known == std::end(kKeys)) {
      unknown_key(key);
    } else if (known->known == Known::kEffective) {
      read_value(key, value);
    }
  }

  void unknown_key(const std::string& key) {
    std::vector<std::string> names;
    std::string all;
    for (const Key& k : kKeys) {
      names.emplace_back(k.name);
      if (k.known == Known::kEffective) all += (all.empty() ? "" : ", ") + names.back();
    }
    const std::string near = nearest_name(key, names);
    issues_.add(key, "unknown option",
                near.empty() ? "known: " + all : "did you mean " + near + "?");
  }

  void read_value(const std::string& key, const std::string& value) {
    if (key == "max_split_size_mb") {
      read_megabytes(key, value, options_.max_split_size);
    } else if (key == "max_non_split_rounding_mb") {
      read_megabytes(key, value, options_.max_non_split_rounding);
    } else if (key == "large_segment_size_mb") {
      read_megabytes(key, value, options_.large_segment_size);
    } else if (key == "garbage_collection_threshold") {
      if (const auto share = read_share(key, value)) options_.garbage_collection_threshold = *share;
    } else if (key == "per_process_memory_fraction") {
      if (const auto share = read_share(key, value)) options_.memory_fraction = share;
    } else if (key == "expandable_segments") {
      if (value != "True" && value != "False")
        issues_.add(key, "found \"" + value + "\"", "True or False");
      options_.expandable_segments = value == "True";
    } else if (key == "backend") {
      if (value != "native")
        issues_.add(key, "found \"" + value + "\"", "only the native backend is modelled");
    } else if (key == "roundup_power2_divisions") {
      read_divisions(key, value);
    } else {
      throw InternalError("no reader for the allocator setting " + key);
    }
  }

  void read_megabytes(const std::string& key, const std::string& value, Bytes& out) {
    const auto n = parse_number<std::int64_t>(value);
    if (!n || *n <= 0) {
      issues_.add(key, "found \"" + value + "\"", "a whole number of MiB above 0");
      return;
    }
    out = Bytes(std::min(*n, kLargestMegabytes) * kMiB);
  }

  std::optional<double> read_share(const std::string& key, const std::string& value) {
    const auto share = parse_number<double>(value);
    if (!share || !std::isfinite(*share))
      issues_.add(key, "found \"" + value + "\"", "a number between 0 and 1");
    return share;
  }

  std::optional<std::uint32_t> read_division(const std::string& key, const std::string& value) {
    const auto n = parse_number<std::uint32_t>(value);
    if (!n) issues_.add(key, "found \"" + value + "\"", "a power of two, or 0 for no rounding");
    return n;
  }

  // One number for all sizes, or [64:8,256:4,>:1]: the divisions for requests from that many MiB
  // on. Below the first size its divisions hold; a size between two named ones keeps 0; ">" fills
  // what lies above the last named size.
  void read_divisions(const std::string& key, const std::string& value) {
    auto& divisions = options_.roundup_power2_divisions;
    if (value.front() != '[') {
      if (const auto n = read_division(key, value)) divisions.fill(*n);
      return;
    }
    if (value.back() != ']' || value.size() < 3) {
      issues_.add(key, "found \"" + value + "\"", "[size:divisions,...] with sizes in MiB");
      return;
    }
    bool first = true;
    std::size_t last = 0;
    for (const std::string& item : split_items(value.substr(1, value.size() - 2))) {
      const std::size_t colon = item.find(':');
      const auto n =
          colon == std::string::npos ? std::nullopt : read_division(key, item.substr(colon + 1));
      if (colon == std::string::npos)
        issues_.add(key, "found \"" + item + "\"", "size:divisions with the size in MiB");
      if (!n) continue;
      const std::string size = item.substr(0, colon);
      if (size == ">") {
        std::fill(divisions.begin() + static_cast<std::ptrdiff_t>(last + 1), divisions.end(), *n);
        continue;
      }
      const auto megabytes = parse_number<std::uint64_t>(size);
      if (!megabytes || !std::has_single_bit(*megabytes)) {
        issues_.add(key, "size \"" + size + "\"", "a power of two in MiB, or >");
        continue;
      }
      last = std::min<std::size_t>(static_cast<std::size_t>(std::countr_zero(*megabytes)),
                                   divisions.size() - 1);
      if (first) std::fill_n(divisions.begin(), last, *n);
      first = false;
      divisions[last] = *n;
    }
  }

  IssueList& issues_;
  AllocatorOptions options_;
};

void check(const AllocatorOptions& o, IssueList& issues) {
  const auto mib = [](Bytes b) { return std::to_string(b.value / kMiB) + " MiB"; };
  if (o.large_segment_size < kMinLargeSegmentRequest ||
      o.large_segment_size.value % kSmallSegmentBytes.value != 0) {
    issues.add("large_segment_size_mb", "found " + mib(o.large_segment_size),
               "an even number of at least 10, since requests up to 10 MiB share such segments");
  }
  if (o.max_split_size < o.large_segment_size || o.max_split_size > kNoByteLimit) {
    issues.add("max_split_size_mb", "found " + mib(o.max_split_size),
               "at least the large segment size, " + mib(o.large_segment_size));
  }
  if (o.max_non_split_rounding < o.large_segment_size || o.max_non_split_rounding > kNoByteLimit) {
    issues.add("max_non_split_rounding_mb", "found " + mib(o.max_non_split_rounding),
               "at least the large segment size, " + mib(o.large_segment_size));
  }
  const double threshold = o.garbage_collection_threshold;
  if (!(threshold >= 0 && threshold < 1)) {
    issues.add("garbage_collection_threshold", "found " + std::to_string(threshold),
               "in (0, 1), or unset");
  }
  if (o.memory_fraction && !(*o.memory_fraction >= 0 && *o.memory_fraction <= 1)) {
    issues.add("per_process_memory_fraction", "found " + std::to_string(*o.memory_fraction),
               "in [0, 1]");
  }
  for (const std::uint32_t n : o.roundup_power2_divisions) {
    if (n == 0 || std::has_single_bit(n)) continue;
    issues.add("roundup_power2_divisions", "found " + std::to_string(n),
               "a power of two, or 0 for no rounding");
    break;
  }
}

}  // namespace

void AllocatorOptions::validate(std::string_view origin) const {
  IssueList issues{std::string(origin)};
  check(*this, issues);
  issues.throw_if_any();
}

AllocatorOptions parse_alloc_conf(std::string_view text) {
  IssueList issues{kSource};
  const AllocatorOptions options = ConfReader(issues).read(text);
  check(options, issues);
  issues.throw_if_any();
  return options;
}

Bytes round_request(Bytes request, const AllocatorOptions& options) {
  if (request >= kNoByteLimit) return kNoByteLimit;
  if (request < kMinBlockBytes) return kMinBlockBytes;
  const auto size = static_cast<std::uint64_t>(request.value);
  const int log2 = std::bit_width(size) - 1;
  const auto bucket = static_cast<std::size_t>(std::clamp(log2 - 20, 0, 15));
  const std::int64_t divisions = options.roundup_power2_divisions[bucket];
  if (divisions > 1 && request > kMinBlockBytes * divisions) {
    const std::int64_t step =
        (std::int64_t{1} << log2) >> (std::bit_width(static_cast<std::uint64_t>(divisions)) - 1);
    return Bytes((request.value + step - 1) & ~(step - 1));
  }
  return Bytes(round_to_block(request.value));
}

Bytes segment_bytes_for(Bytes rounded, const AllocatorOptions& options) {
  if (rounded <= kSmallRequestBytes) return kSmallSegmentBytes;
  if (rounded < kMinLargeSegmentRequest) return options.large_segment_size;
  const std::int64_t unit = kLargeSegmentRounding.value;
  return Bytes(round_up(rounded.value, unit));
}

}  // namespace foreshard
