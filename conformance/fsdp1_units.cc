#include "conformance/fsdp1_units.h"

#include <algorithm>
#include <string>

#include "core/enum_names.h"
#include "core/json.h"

namespace foreshard {
namespace {

const char* strategy_text(fsdp1::Strategy s) {
  constexpr const char* names[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                                   "_HYBRID_SHARD_ZERO2"};
  static_assert(std::size(names) == kEnumerators<fsdp1::Strategy>);
  return names[static_cast<int>(s)];
}

/// Real elements of each rank's shard: what torch.chunk gives it, without the padding at the end.
Json rank_numel(const fsdp1::FlatLayout& flat) {
  Json list = Json::array();
  for (std::int64_t r = 0; r < flat.ranks; ++r) {
    list.push_back(std::clamp<std::int64_t>(flat.numel - r * flat.shard, 0, flat.shard));
  }
  return list;
}

/// One entry of `also`: the name of the shared place and of the one that stores the parameter.
Json shared_place(const Model& model, const fsdp1::FlatEntry& e, std::size_t place) {
  const auto& [owner, name] = e.places[place];
  const std::string& path = model.at(owner).name;
  return {path.empty() ? name : path + "." + name, e.name};
}

void describe_flat(const Model& model, const fsdp1::Unit& u, Json& row) {
  const fsdp1::FlatLayout& flat = *u.flat;
  Json also = Json::array();
  row["params"] = Json::array();
  for (const fsdp1::FlatEntry& e : flat.entries) {
    if (e.is_padding()) {
      row["params"].push_back({{"padding", e.numel}, {"offset", e.offset}});
      continue;
    }
    row["params"].push_back(
        {{"fqn", e.name}, {"shape", e.shape}, {"numel", e.numel}, {"offset", e.offset}});
    for (std::size_t k = 1; k < e.places.size(); ++k) also.push_back(shared_place(model, e, k));
  }
  if (!also.empty()) row["also"] = std::move(also);
  row["trainable"] = flat.trainable;
  row["N"] = flat.numel;
  row["Np"] = flat.padded;
  row["S"] = flat.shard;
  row["shard_size"] = flat.ranks;
  row["dtype"] = std::string(name_of(flat.dtype));
  row["gather_dtype"] = std::string(name_of(flat.forward_dtype));
  row["reduce_dtype"] = std::string(name_of(flat.reduce_dtype));
  row["predivide"] = u.predivide;
  row["postdivide"] = u.postdivide;
  if (u.sharded()) row["rank_numel"] = rank_numel(flat);
}

}  // namespace

Json describe_fsdp1_units(const Model& model, const std::vector<fsdp1::Unit>& units) {
  Json rows = Json::array();
  for (const fsdp1::Unit& u : units) {
    Json row;
    row["unit"] = u.name;
    row["class"] = model.at(u.module).class_name;
    row["strategy"] = strategy_text(u.strategy);
    row["params"] = Json::array();
    if (u.flat) describe_flat(model, u, row);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace foreshard
