#include "conformance/fsdp2_units.h"

#include <algorithm>
#include <functional>

#include "core/json.h"

namespace foreshard {
namespace {

Json reshard_json(const fsdp2::ParamGroup& group) {
  if (group.post_forward_mesh == nullptr) return false;
  if (group.post_forward_mesh == group.mesh) return true;
  return group.post_forward_mesh->shard;
}

Json shape_json(const Shape& s) {
  return std::vector<std::int64_t>(s.dim.begin(), s.dim.begin() + s.rank);
}

Json optimizer_state(const fsdp2::ShardedParameter& p, const std::string& optimizer) {
  Json one;
  one["local_shape"] = shape_json(p.local_shape);
  one["storage_bytes"] = p.local_numel() * size_of(p.original);
  one["dtype"] = std::string(name_of(p.original));
  Json all;
  if (optimizer == "sgd") {
    all["momentum_buffer"] = std::move(one);
  } else {
    all["exp_avg"] = one;
    all["exp_avg_sq"] = std::move(one);
  }
  return all;
}

Json describe_parameter(const fsdp2::ShardedParameter& p, std::int64_t offset,
                        const UnitFacts& facts) {
  Json entry;
  entry["fqn"] = p.name;
  entry["shape"] = shape_json(p.shape);
  entry["numel"] = p.numel();
  entry["shard_dim"] = p.shard_dim;
  entry["padded_size_on_shard_dim"] = p.padded_shape[p.shard_dim] * p.mesh->shard;
  entry["local_shape"] = shape_json(p.local_shape);
  entry["local_padded_numel"] = p.padded_local_numel();
  entry["dtype"] = std::string(name_of(p.original));
  entry["trainable"] = p.trainable;
  if (p.gather) entry["gather_dtype"] = std::string(name_of(*p.gather));
  if (!p.also.empty()) entry["also"] = p.also;
  if (facts.optimized.count(p.id) != 0)
    entry["optimizer_state"] = optimizer_state(p, facts.optimizer);
  entry["ag_offset"] = offset;
  return entry;
}

}  // namespace

void UnitFacts::capture_reshard(const fsdp2::Fsdp2& framework) {
  reshard_captured = true;
  for (const fsdp2::ParamGroup* group : framework.wrapping().groups())
    reshard.push_back(reshard_json(*group));
}

Json describe_units(const fsdp2::Fsdp2& framework, const Model& model, const UnitFacts& facts) {
  Json units = Json::array();
  for (const fsdp2::ParamGroup* group : framework.wrapping().groups()) {
    Json unit;
    unit["unit"] = unit_name(model, *group);
    unit["modules"] = Json::array();
    for (const ModuleId m : group->modules) unit["modules"].push_back(model.at(m).name);
    unit["shard_size"] = group->mesh->shard;
    unit["shard_rank"] = group->mesh->shard_rank;
    unit["replicate_size"] = group->mesh->replicate;
    unit["reshard_after_forward"] =
        facts.reshard_captured ? facts.reshard[group->wrap_index] : reshard_json(*group);
    std::int64_t numel = 0, offset = 0;
    Json parameters = Json::array();
    for (const fsdp2::ShardedParameter& p : group->parameters) {
      parameters.push_back(describe_parameter(p, offset, facts));
      numel += p.numel();
      offset += p.padded_local_numel();
    }
    unit["N"] = numel;
    unit["S"] = offset;
    unit["Np"] = offset * group->mesh->shard;
    unit["params"] = std::move(parameters);
    if (group->initialised) {
      unit["reduce_dtype"] =
          group->reduce_dtype ? Json(std::string(name_of(*group->reduce_dtype))) : Json();
    }
    units.push_back(std::move(unit));
  }
  return units;
}

Json describe_buffers(const Model& model, const std::vector<std::string>& checkpointed) {
  Json buffers = Json::array();
  const std::function<void(ModuleId, std::string)> visit = [&](ModuleId m, std::string prefix) {
    const Module& module = model.at(m);
    if (std::find(checkpointed.begin(), checkpointed.end(), module.name) != checkpointed.end()) {
      prefix += "_checkpoint_wrapped_module.";
    }
    for (const BufferDef& b : module.buffers) {
      Json entry;
      entry["fqn"] = prefix + b.name;
      entry["shape"] = b.shape;
      entry["dtype"] = std::string(name_of(b.dtype));
      buffers.push_back(std::move(entry));
    }
    for (const ChildModule& c : module.children) visit(c.id, prefix + c.name + ".");
  };
  visit(ModuleId(0), "");
  return buffers;
}

}  // namespace foreshard
