// Layout of flat parameters (F1-P-1, F1-P-2): FlatParamHandle._init_flat_param_and_metadata,
// _get_shard and _get_shard_metadata.

#include <algorithm>
#include <utility>

#include "core/integers.h"
#include "schedules/planner/frameworks/fsdp1_wrap.h"
#include "schedules/planner/id_set.h"

namespace foreshard::fsdp1 {
namespace {

/// Elements missing to the next multiple of `step`.
std::int64_t gap(std::int64_t numel, std::int64_t step) { return (step - numel % step) % step; }

void pad(FlatLayout& layout, std::int64_t numel) {
  if (numel == 0) return;
  FlatEntry entry;
  entry.numel = numel;
  entry.offset = layout.numel;
  entry.trainable = false;
  layout.numel += numel;
  layout.entries.push_back(std::move(entry));
}

}  // namespace

FlatLayout lay_out(const Model& model, std::vector<FlatSource> occurrences, std::int64_t align,
                   std::int64_t ranks, bool sharded) {
  FlatLayout layout;
  layout.ranks = ranks;
  layout.entries.reserve(align > 0 ? 2 * occurrences.size() + 1 : occurrences.size());
  IdSet<ParameterId> seen;
  for (FlatSource& s : occurrences) {
    if (!seen.insert(s.id)) {
      const auto same = [&](const FlatEntry& e) { return e.id == s.id; };
      std::find_if(layout.entries.begin(), layout.entries.end(), same)
          ->places.emplace_back(s.owner, std::move(s.name));
      continue;
    }
    if (align > 0) pad(layout, gap(layout.numel, align));
    const ParameterDef& def = model.at(s.id);
    FlatEntry& e = layout.entries.emplace_back();
    e.id = s.id;
    e.name = std::move(s.full_name);
    e.shape = def.shape;
    e.numel = def.numel();
    e.offset = layout.numel;
    e.trainable = def.trainable;
    e.places.emplace_back(s.owner, std::move(s.name));
    layout.numel += def.numel();
  }
  if (align > 0) pad(layout, gap(layout.numel, ranks));
  layout.sizes.reserve(layout.entries.size());
  for (const FlatEntry& e : layout.entries) layout.sizes.push_back(e.numel);
  layout.shard = sharded ? ceil_div(layout.numel, ranks) : layout.numel;
  layout.padded = sharded ? layout.shard * ranks : layout.numel;
  return layout;
}

FlatLayout::Part FlatLayout::part_of(const FlatEntry& e, std::int64_t rank) const {
  const std::int64_t start = padded == shard ? 0 : rank * shard;
  const std::int64_t first = std::max(e.offset, start);
  const std::int64_t end = std::min(e.offset + e.numel, start + shard);
  if (first >= end) return {};
  return {first - e.offset, first - start, end - first};
}

}  // namespace foreshard::fsdp1
