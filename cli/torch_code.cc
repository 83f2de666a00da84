#include "cli/torch_code.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/error.h"
#include "schedules/planner/framework_table.h"
#include "schedules/planner/frameworks/fsdp1_wrap.h"
#include "schedules/planner/frameworks/fsdp2.h"

namespace foreshard::cli {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

/// "model.layers.3.mlp" as Python reaches it from `model`: "model.model.layers[3].mlp".
std::string path_of(const std::string& module) {
  std::string out = "model";
  for (std::size_t at = 0; at < module.size();) {
    const std::size_t dot = std::min(module.find('.', at), module.size());
    const std::string part = module.substr(at, dot - at);
    out += is_number(part) ? "[" + part + "]" : "." + part;
    at = dot + 1;
  }
  return out;
}

/// Place of a module in a list of modules.
struct Place {
  std::string list;
  std::int64_t index = 0;
};

std::optional<Place> place_of(const std::string& module) {
  const std::size_t dot = module.rfind('.');
  if (dot == std::string::npos || !is_number(module.substr(dot + 1))) return std::nullopt;
  return Place{module.substr(0, dot), std::stoll(module.substr(dot + 1))};
}

/// A list of modules that is cut into runs of `every` modules, all of it.
struct WholeList {
  std::string list;
  std::size_t every = 1, groups = 0;
};

/// The list that the groups from `first` on walk through from its first module to its last.
std::optional<WholeList> whole_list(const Model& model,
                                    const std::vector<std::vector<std::string>>& groups,
                                    std::size_t first) {
  const std::optional<Place> start = place_of(groups[first][0]);
  if (!start || start->index != 0) return std::nullopt;
  const ModuleId list = model.find_module(start->list);
  if (!list.valid()) return std::nullopt;
  const std::size_t length = model.at(list).children.size(), every = groups[first].size();
  std::size_t seen = 0, at = first;
  for (; at < groups.size() && seen < length; ++at) {
    if (groups[at].size() != std::min(every, length - seen)) return std::nullopt;
    for (const std::string& name : groups[at]) {
      const std::optional<Place> place = place_of(name);
      if (!place || place->list != start->list || place->index != static_cast<std::int64_t>(seen++))
        return std::nullopt;
    }
  }
  if (seen != length) return std::nullopt;
  return WholeList{start->list, every, at - first};
}

std::string torch_dtype(DType t) { return fmt::format("torch.{}", name_of(t)); }

std::string precision_of(const Job& job, const char* policy) {
  const MixedPrecision& p = job.config.precision;
  std::vector<std::string> given;
  if (p.param) given.push_back("param_dtype=" + torch_dtype(*p.param));
  if (p.reduce) given.push_back("reduce_dtype=" + torch_dtype(*p.reduce));
  if (job.config.framework == FrameworkKind::kFsdp1 && job.config.fsdp1.keep_low_precision_grads)
    given.push_back("keep_low_precision_grads=True");
  return fmt::format("{}({})", policy, fmt::join(given, ", "));
}

std::string reshard_text(const Reshard& r) {
  switch (r.kind) {
    case Reshard::Kind::kDefault:
      return "";
    case Reshard::Kind::kNo:
      return ", reshard_after_forward=False";
    case Reshard::Kind::kYes:
      return ", reshard_after_forward=True";
    case Reshard::Kind::kGroup:
      break;
  }
  return fmt::format(", reshard_after_forward={}", r.group);
}

/// What the prediction takes for granted and these calls do not set.
std::string assumptions(const Job& job) {
  return fmt::format("# predicted with: {} · {} · {}\n", describe_precision(job),
                     describe_batch(job), describe_training(job));
}

/// The first module of each unit in forward order, as Python writes the list.
std::string units_in_order(const Model& model, std::vector<std::vector<std::string>> groups) {
  std::erase_if(groups, [](const auto& g) { return g[0].empty(); });
  std::stable_sort(groups.begin(), groups.end(), [&](const auto& a, const auto& b) {
    return model.find_module(a[0]).value < model.find_module(b[0]).value;
  });
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < groups.size();) {
    if (const auto list = whole_list(model, groups, i)) {
      const std::string step = list->every == 1 ? "" : fmt::format("[::{}]", list->every);
      parts.push_back("*" + path_of(list->list) + step);
      i += list->groups;
    } else {
      parts.push_back(path_of(groups[i++][0]));
    }
  }
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

/// Fsdp2::list_prefetches in Python.
std::string prefetch_code(const Job& job, const std::vector<std::vector<std::string>>& groups) {
  const ParallelConfig& c = job.config;
  std::string out;
  if (!c.prefetch_forward && !c.prefetch_backward) return out;
  const std::string units = units_in_order(*job.model, groups);
  if (units == "[]") return out;  // the root alone
  out += fmt::format("units = {}\n", units);
  if (c.prefetch_forward)
    out += fmt::format(
        "for i, unit in enumerate(units):\n"
        "  unit.set_modules_to_forward_prefetch(units[i + 1:i + {}])\n",
        1 + *c.prefetch_forward);
  if (!c.prefetch_backward) return out;
  if (*c.prefetch_backward == 0)
    return out +
           "for unit in [*units, model]:\n"
           "  unit.set_modules_to_backward_prefetch([unit])\n";
  return out + fmt::format(
                   "units.reverse()\n"
                   "for i, unit in enumerate(units):\n"
                   "  unit.set_modules_to_backward_prefetch(units[i + 1:i + {}])\n",
                   1 + *c.prefetch_backward);
}

std::string fsdp2_code(const Job& job) {
  const ParallelConfig& c = job.config;
  const bool offload = c.offload == OffloadKind::kParameters;
  std::string out = fmt::format(
      "import torch\nfrom torch.distributed.fsdp import {}MixedPrecisionPolicy, fully_shard\n",
      offload ? "CPUOffloadPolicy, " : "");
  std::string common = "mp_policy=mp";
  out += fmt::format("mp = {}\n", precision_of(job, "MixedPrecisionPolicy"));
  if (c.replicate > 1) {
    out += fmt::format(
        "mesh = torch.distributed.init_device_mesh(\"cuda\", ({}, {}), "
        "mesh_dim_names=(\"replicate\", \"shard\"))\n",
        c.replicate, c.shard);
    common = "mesh=mesh, " + common;
  }
  if (offload) common += ", offload_policy=CPUOffloadPolicy()";

  const std::vector<WrapCall> calls = fsdp2::wrap_calls(*job.model, c);
  std::vector<std::vector<std::string>> groups;
  for (const WrapCall& call : calls) groups.push_back(call.modules);
  for (std::size_t i = 0; i < calls.size();) {
    const std::string arguments = common + reshard_text(calls[i].reshard);
    if (const auto list = whole_list(*job.model, groups, i)) {
      const std::string blocks = path_of(list->list);
      out +=
          list->every == 1
              ? fmt::format("for block in {}:\n  fully_shard(block, {})\n", blocks, arguments)
              : fmt::format(
                    "for i in range(0, len({0}), {1}):\n  fully_shard(list({0}[i:i + {1}]), "
                    "{2})\n",
                    blocks, list->every, arguments);
      i += list->groups;
      continue;
    }
    std::vector<std::string> paths;
    for (const std::string& m : groups[i]) paths.push_back(path_of(m));
    const std::string modules =
        paths.size() == 1 ? paths[0] : fmt::format("[{}]", fmt::join(paths, ", "));
    out += fmt::format("fully_shard({}, {})\n", modules, arguments);
    ++i;
  }
  return out + prefetch_code(job, groups) + assumptions(job);
}

std::string strategy_constant(Fsdp1Options::Strategy s) {
  switch (s) {
    case Fsdp1Options::Strategy::kFullShard:
      return "FULL_SHARD";
    case Fsdp1Options::Strategy::kShardGradOp:
      return "SHARD_GRAD_OP";
    case Fsdp1Options::Strategy::kNoShard:
      return "NO_SHARD";
    case Fsdp1Options::Strategy::kHybrid:
      return "HYBRID_SHARD";
    case Fsdp1Options::Strategy::kHybridZero2:
      break;
  }
  return "_HYBRID_SHARD_ZERO2";
}

/// "set(model.model.layers) | {model.lm_head}": modules that are units, without the root.
std::string unit_set(const Job& job) {
  std::vector<std::vector<std::string>> units;
  for (const fsdp1::Unit& u : fsdp1::wrap_units(*job.model, job.config))
    if (!u.name.empty()) units.push_back({u.name});
  std::vector<std::string> lists, single;
  for (std::size_t i = 0; i < units.size();) {
    if (const auto list = whole_list(*job.model, units, i)) {
      lists.push_back(fmt::format("set({})", path_of(list->list)));
      i += list->groups;
    } else {
      single.push_back(path_of(units[i++][0]));
    }
  }
  if (!single.empty()) lists.push_back(fmt::format("{{{}}}", fmt::join(single, ", ")));
  return lists.empty() ? "set()" : fmt::format("{}", fmt::join(lists, " | "));
}

/// Arguments of FSDP that are not PyTorch's defaults.
std::string fsdp1_switches(const Fsdp1Options& o) {
  using Prefetch = Fsdp1Options::BackwardPrefetch;
  std::string out;
  if (o.use_orig_params) out += ", use_orig_params=True";
  if (o.forward_prefetch) out += ", forward_prefetch=True";
  if (!o.limit_all_gathers) out += ", limit_all_gathers=False";
  if (o.backward_prefetch == Prefetch::kPost)
    out += ", backward_prefetch=BackwardPrefetch.BACKWARD_POST";
  if (o.backward_prefetch == Prefetch::kNone) out += ", backward_prefetch=None";
  if (!o.ignored_modules.empty()) {
    std::vector<std::string> paths;
    for (const std::string& m : o.ignored_modules) paths.push_back(path_of(m));
    out += fmt::format(", ignored_modules=[{}]", fmt::join(paths, ", "));
  }
  return out;
}

std::string fsdp1_code(const Job& job) {
  const ParallelConfig& c = job.config;
  const bool offload = c.offload == OffloadKind::kParameters;
  const bool prefetches =
      c.fsdp1.backward_prefetch == Fsdp1Options::BackwardPrefetch::kPost;  // Named below.
  std::string out = fmt::format(
      "import functools, torch\n"
      "from torch.distributed.fsdp import {}FullyShardedDataParallel as FSDP, MixedPrecision, "
      "ShardingStrategy\n"
      "from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy\n"
      "units = {}\n",
      std::string(prefetches ? "BackwardPrefetch, " : "") + (offload ? "CPUOffload, " : ""),
      unit_set(job));
  std::string mesh;
  if (c.replicate > 1) {
    mesh = ", device_mesh=mesh";
    out += fmt::format("mesh = torch.distributed.init_device_mesh(\"cuda\", ({}, {}))\n",
                       c.replicate, c.shard);
  }
  return out +
         fmt::format(
             "model = FSDP(model, sharding_strategy=ShardingStrategy.{}{}{}{},\n"
             "             mixed_precision={},\n"
             "             auto_wrap_policy=functools.partial(lambda_auto_wrap_policy, "
             "lambda_fn=lambda m: m in units))\n",
             strategy_constant(c.fsdp1.strategy), mesh, fsdp1_switches(c.fsdp1),
             offload ? ", cpu_offload=CPUOffload(True)" : "", precision_of(job, "MixedPrecision")) +
         assumptions(job);
}

}  // namespace

std::string torch_code(const Job& job) {
  switch (row_of(job.config.framework).units) {
    case UnitForm::kModuleGroup:
      return fsdp2_code(job);
    case UnitForm::kModule:
      return fsdp1_code(job);
    case UnitForm::kNone:
      break;
  }
  throw InternalError("no calls for a framework that forms no units");
}

}  // namespace foreshard::cli
