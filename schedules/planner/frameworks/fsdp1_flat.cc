// Layout of flat parameters (F1-P-1, F1-P-2): FlatParamHandle._init_flat_param_and_metadata,
// _get_shard and _get_shard_metadata.

#include <algorithm>
#include <map>

#include "core/integers.h"
#include "schedules/planner/frameworks/fsdp1_wrap.h"

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

FlatLayout lay_out(const Model& model, const std::vector<FlatSource>& occurrences,
                   std::int64_t align, std::int64_t ranks, bool sharded) {
  FlatLayout layout;
  layout.ranks = ranks;
  std::map<ParameterId, std::size_t> seen;
  for (const FlatSource& s : occurrences) {
    if (const auto it = seen.find(s.id); it != seen.end()) {
      layout.entries[it->second].places.emplace_back(s.owner, s.name);
      continue;
    }
    if (align > 0) pad(layout, gap(layout.numel, align));
    const ParameterDef& def = model.at(s.id);
    const std::string name = s.owner_name.empty() ? s.name : s.owner_name + "." + s.name;
    seen[s.id] = layout.entries.size();
    layout.entries.push_back(
        {s.id, name, def.shape, def.numel(), layout.numel, def.trainable, {{s.owner, s.name}}});
    layout.numel += def.numel();
  }
  if (align > 0) pad(layout, gap(layout.numel, ranks));
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
