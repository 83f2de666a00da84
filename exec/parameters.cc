#include "exec/parameters.h"

#include <algorithm>
#include <limits>
#include <numbers>

#include <cmath>

#include "exec/kernels/rows.h"

namespace foreshard {
namespace {

std::int64_t product(const std::vector<std::int64_t>& v, std::size_t from) {
  std::int64_t n = 1;
  for (std::size_t d = from; d < v.size(); ++d) n *= v[d];
  return n;
}

}  // namespace

LocalElements::LocalElements(const RankContext& context, const ParameterView& p)
    : count_(p.elements) {
  first_ = p.first_element;
  if (p.first_element_per_rank != 0) {
    first_ += p.first_element_per_rank *
              context.schedule->groups.at(p.group.value).index_of(context.rank);
  }
  if (p.shard_dim <= 0 || static_cast<std::size_t>(p.shard_dim) >= p.shape.size()) return;
  const auto dim = static_cast<std::size_t>(p.shard_dim);
  whole_row_ = product(p.shape, dim);
  const std::int64_t rows = product(p.shape, 0) / std::max<std::int64_t>(whole_row_, 1);
  row_ = rows > 0 ? count_ / rows : 0;
}

std::int64_t LocalElements::global_index(std::int64_t i) const {
  if (row_ == 0) return first_ + i;
  return first_ + i / row_ * whole_row_ + i % row_;
}

void add_local_parameters(const RankContext& context, const RankMemory& memory,
                          std::map<std::string, FinalParameter>& into) {
  for (const ParameterView& p : context.program->parameters) {
    FinalParameter& whole = into[p.name];
    const std::int64_t numel = product(p.shape, 0);
    if (whole.values.empty()) {
      whole.shape = p.shape;
      whole.values.assign(static_cast<std::size_t>(numel),
                          std::numeric_limits<double>::quiet_NaN());
    }
    if (!p.local.valid() || p.elements == 0) continue;
    const std::vector<float> values = to_floats(memory.view(p.local));
    const LocalElements elements(context, p);
    const std::int64_t n =
        std::min<std::int64_t>(elements.count(), static_cast<std::int64_t>(values.size()));
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t g = elements.global_index(i);
      if (g < numel)
        whole.values[static_cast<std::size_t>(g)] =
            static_cast<double>(values[static_cast<std::size_t>(i)]);
    }
  }
}

}  // namespace foreshard
