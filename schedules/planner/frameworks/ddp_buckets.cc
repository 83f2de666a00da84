#include "schedules/planner/frameworks/ddp_buckets.h"

#include <algorithm>
#include <utility>

namespace foreshard::ddp {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kFirstBucketBytes = kMiB;  // dist._DEFAULT_FIRST_BUCKET_BYTES
constexpr double kDefaultCapMib = 25;

std::int64_t bytes_of(double mib) {
  return static_cast<std::int64_t>(mib * static_cast<double>(kMiB));
}

std::vector<std::int64_t> listed_limits(const DdpOptions& options) {
  std::vector<std::int64_t> limits;
  for (const double mib : options.bucket_cap_mib_list) limits.push_back(bytes_of(mib));
  return limits;
}

void sort_by_smallest_index(Assignment& a) {
  std::vector<std::pair<std::size_t, std::size_t>> order;  // Smallest index, bucket.
  order.reserve(a.buckets.size());
  for (std::size_t b = 0; b < a.buckets.size(); ++b)
    order.emplace_back(*std::min_element(a.buckets[b].begin(), a.buckets[b].end()), b);
  std::sort(order.begin(), order.end());
  Assignment sorted;
  sorted.buckets.reserve(order.size());
  sorted.limits.reserve(order.size());
  for (const auto& [smallest, b] : order) {
    sorted.buckets.push_back(std::move(a.buckets[b]));
    sorted.limits.push_back(a.limits[b]);
  }
  a = std::move(sorted);
}

}  // namespace

Assignment assign_buckets(const std::vector<SymTensor>& tensors,
                          const std::vector<std::int64_t>& limits, const Indices* order) {
  struct Open {
    DType dtype;
    Indices indices;
    std::int64_t bytes = 0;
    std::size_t limit = 0, last_limit = 0;
  };
  std::vector<Open> open;
  Assignment result;
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    const std::size_t i = order != nullptr ? (*order)[k] : k;
    const DType dtype = tensors[i]->dtype;
    auto o =
        std::find_if(open.begin(), open.end(), [dtype](const Open& x) { return x.dtype == dtype; });
    if (o == open.end()) o = open.insert(open.end(), Open{dtype, {}, 0, 0, 0});
    o->indices.push_back(i);
    o->bytes += tensors[i]->bytes();
    o->last_limit = o->limit;
    if (o->bytes < limits[o->limit]) continue;
    result.buckets.push_back(std::exchange(o->indices, {}));
    result.limits.push_back(limits[o->limit]);
    o->bytes = 0;
    o->limit = std::min(o->limit + 1, limits.size() - 1);
  }
  for (auto o = open.rbegin(); o != open.rend(); ++o) {
    if (o->indices.empty()) continue;
    result.buckets.push_back(std::move(o->indices));
    result.limits.push_back(limits[o->last_limit]);
  }
  if (order == nullptr) sort_by_smallest_index(result);
  return result;
}

std::int64_t bucket_cap_bytes(const DdpOptions& options) {
  const std::vector<double>& list = options.bucket_cap_mib_list;
  if (!list.empty()) return bytes_of(*std::max_element(list.begin(), list.end()));
  return bytes_of(options.bucket_cap_mib.value_or(kDefaultCapMib));
}

std::vector<std::int64_t> rebuild_limits(const DdpOptions& options) {
  if (!options.bucket_cap_mib_list.empty()) return listed_limits(options);
  const std::int64_t cap = bucket_cap_bytes(options);
  return options.bucket_cap_mib ? std::vector<std::int64_t>{cap}
                                : std::vector<std::int64_t>{kFirstBucketBytes, cap};
}

std::vector<std::int64_t> first_limits(const DdpOptions& options) {
  const bool one_bucket = options.static_graph || !options.find_unused_parameters;
  if (one_bucket && options.bucket_cap_mib_list.empty()) return {INT64_MAX};
  return rebuild_limits(options);
}

}  // namespace foreshard::ddp
