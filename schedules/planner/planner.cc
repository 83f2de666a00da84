#include "schedules/planner/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "models/adapter_targets.h"
#include "models/ops/op_flops.h"
#include "schedules/planner/carries.h"
#include "schedules/planner/compile_pass.h"
#include "schedules/planner/compiled_equal.h"
#include "schedules/planner/compiled_saves.h"
#include "schedules/planner/framework_table.h"
#include "schedules/planner/host/block_template.h"
#include "schedules/planner/host/host_impl.h"
#include "schedules/planner/training_run.h"
#include "schedules/planner/untrained.h"

namespace foreshard {
namespace {

/// Executable programs of small jobs are written for every rank: initial values and shards differ
/// by rank.
constexpr std::int64_t kMostOwnPrograms = 64;
/// Of a micro-batch: tensors of any model stay countable.
constexpr std::int64_t kMostTokensAtOnce = std::int64_t{1} << 32;

void check(const Model& model, const ParallelConfig& c) {
  IssueList issues("configuration");
  const auto positive = [&](const char* name, std::int64_t v) {
    if (v < 1) issues.add(name, "is " + std::to_string(v), "a whole number from 1");
  };
  positive("shard", c.shard);
  positive("replicate", c.replicate);
  positive("micro_batch", c.micro_batch);
  positive("sequence", c.sequence);
  positive("accumulate", c.accumulate);
  if (c.checkpoint == CheckpointKind::kEveryK) positive("checkpoint", c.checkpoint_every);
  if (model.longest_sequence > 0 && c.sequence > model.longest_sequence) {
    issues.add("sequence",
               "is " + std::to_string(c.sequence) + ", but the model has learned positions for " +
                   std::to_string(model.longest_sequence),
               "at most " + std::to_string(model.longest_sequence));
  }
  if (c.sequence < model.shortest_sequence) {
    issues.add("sequence",
               fmt::format("is {}, but the images of a sample take {} of its tokens", c.sequence,
                           model.shortest_sequence),
               fmt::format("at least {}", model.shortest_sequence));
  }
  issues.throw_if_any();
  if (c.sequence > kMostTokensAtOnce / c.micro_batch)
    throw InputError(Issue{"--micro-batch", "",
                           fmt::format("{} x --seq {} are too many tokens for one micro-batch",
                                       c.micro_batch, c.sequence),
                           fmt::format("at most {} together", kMostTokensAtOnce)});
}

std::vector<std::string> block_names(const Model& model) {
  std::vector<std::string> names;
  for (const ModuleId m : model.roles.blocks) names.push_back(model.at(m).name);
  return names;
}

RankProgram run_steps(const Model& model, const ParallelConfig& config, const HostOptions& host,
                      const PlanOptions& options, Schedule& schedule) {
  TrainingRun run(model, config, host);
  run.host().impl().idle_experts = options.idle_experts;
  run.initialize();
  for (std::int64_t s = 0; s < options.steps; ++s) run.step();
  if (const auto& templates = run.host().impl().block_templates) templates->finish();
  schedule.groups = run.host().groups();
  schedule.remarks = run.host().remarks();
  if (options.steps > 0) {
    if (std::string text = remark_on_untrained(run.host()); !text.empty())
      schedule.remarks.push_back(std::move(text));
  }
  return run.take();
}

RankProgram plan_rank(const Model& model, const ParallelConfig& config, const PlanOptions& options,
                      std::int64_t rank, Schedule& schedule) {
  HostOptions h;
  h.executable = options.executable || config.compile;  // Fusion reads operands.
  h.share_blocks = options.share_blocks;
  h.rank = rank;
  RankProgram program;
  try {
    program = run_steps(model, config, h, options, schedule);
  } catch (const BlocksDiffer&) {
    h.share_blocks = false;
    program = run_steps(model, config, h, options, schedule);
  }
  find_carries(program);
  if (config.compile) {
    merge_equal_kernels(program, block_names(model));
    keep_compiled_saves(program, block_names(model));
    fuse_compiled_blocks(program, block_names(model));
  }
  return program;
}

std::int64_t ranks_of(const ParallelConfig& c) {
  return row_of(c.framework).ranks == RankLayout::kOneDevice ? 1 : c.world();
}

std::int64_t tokens_of(const Model& model, const ParallelConfig& c) {
  if (!model.takes_sequences()) return 0;
  return c.micro_batch * c.sequence * c.accumulate * ranks_of(c);
}

/// What the model asks of a launch, whatever kernel computes it: of attention what the mask lets
/// through; not the scores that a fused attention backward computes again (one product of its
/// five), which is recomputation as much as a checkpoint's.
double asked_flops(const Launch& l) {
  if (const Flops seen = flops_behind_mask(l.op, l.dims); seen.value > 0)
    return static_cast<double>(seen.value);
  const bool repeats_scores =
      l.op == OpKind::kFlashAttentionBackward || l.op == OpKind::kEfficientAttentionBackward;
  const auto done = static_cast<double>(l.flops.value);
  return repeats_scores ? done / 5 * 4 : done;
}

/// Scopes of modules whose own parameters are all frozen.
std::vector<bool> frozen_scopes(const Model& model, const RankProgram& p) {
  std::set<std::string_view> frozen;
  for (const Module& m : model.modules) {
    const auto rests = [&](const OwnedParameter& o) { return !model.at(o.id).trainable; };
    if (!m.parameters.empty() && std::all_of(m.parameters.begin(), m.parameters.end(), rests))
      frozen.insert(m.name);
  }
  std::vector<bool> out;
  for (const std::string& scope : p.scopes) out.push_back(frozen.contains(scope));
  return out;
}

/// FSDP1's flat parameters let autograd compute gradients of frozen weights, too; nobody asked.
bool is_unasked(const Launch& l, const std::vector<bool>& frozen) {
  return (l.op == OpKind::kMatmul || l.op == OpKind::kMatmulBias) &&
         l.dims[4] == kWeightGradientProduct && l.scope.valid() && frozen[l.scope.value];
}

/// FLOPs of the first step's launches without recomputation (optimizer and clipping have none).
double model_flops(const Model& model, const RankProgram& p) {
  if (p.steps.empty()) return 0;
  const std::vector<bool> frozen = frozen_scopes(model, p);
  double n = 0;
  for (std::uint32_t i = p.steps[0].begin; i < p.steps[0].end; ++i) {
    if (p.instructions[i].kind != InstructionKind::kLaunch) continue;
    const Launch& l = p.launches[p.instructions[i].id];
    if (l.phase != Phase::kRecompute && !is_unasked(l, frozen)) n += asked_flops(l);
  }
  return n;
}

/// A model with adapters is loaded in 16 bits, whatever it computes in.
bool widens_frozen_weights(const Model& model, const ParallelConfig& c) {
  const bool frozen = std::any_of(model.parameters.begin(), model.parameters.end(),
                                  [](const ParameterDef& p) { return !p.trainable; });
  return frozen && c.precision.param && size_of(c.model_dtype) < size_of(*c.precision.param);
}

std::vector<std::string> not_modelled(const Model& model, const ParallelConfig& config) {
  std::vector<std::string> out = model.not_modelled;
  if (config.float8_all_gather &&
      (config.framework != FrameworkKind::kFsdp2 || config.float8 != Float8Kind::kTensorwise)) {
    out.push_back(
        "8-bit all-gathers other than FSDP2's of weights with one scale a tensor: the weights are "
        "gathered in 16 bits");
  }
  const bool computes_in_fp16 =
      config.precision.param.value_or(config.model_dtype) == DType::kFloat16;
  if (computes_in_fp16 && !row_of(config.framework).deepspeed)
    out.push_back(
        "the gradient scaler that fp16 needs: its pass over the gradients, the all-reduce of "
        "found_inf "
        "and the host's read of it");
  if (config.compile) {
    out.emplace_back(
        "torch.compile's buffers that take the place of dead ones within a block (memory errs to "
        "the high side) and its graph breaks, as in routed experts (to the low side)");
  }
  return out;
}

std::vector<std::string> remarks(const Model& model, const ParallelConfig& config) {
  std::vector<std::string> out;
  if (widens_frozen_weights(model, config)) {
    out.push_back(fmt::format(
        "frozen weights are kept in {} and widened to {} when they are gathered: an option for "
        "compute changes no weights; --model-dtype fp32 keeps them whole",
        name_of(config.model_dtype), name_of(*config.precision.param)));
  }
  if (std::string remark = unpacked_experts(model); !remark.empty())
    out.push_back(std::move(remark));
  return out;
}

}  // namespace

std::int64_t steady_steps(const ParallelConfig& config) {
  return row_of(config.framework).steady_steps(config);
}

Schedule plan(const Model& model, const ParallelConfig& config, const PlanOptions& options) {
  check(model, config);
  Schedule s;
  s.model = model.name;
  s.world = ranks_of(config);
  s.not_modelled = not_modelled(model, config);
  const std::unique_ptr<Framework> framework = make_framework(config);
  for (std::string& text : framework->not_modelled(model))
    s.not_modelled.push_back(std::move(text));
  std::vector<std::int64_t> ranks = options.ranks;
  const bool own = options.executable && s.world <= kMostOwnPrograms;
  std::map<std::uint64_t, std::uint32_t> program_of_class;
  const auto class_of = [&](std::int64_t rank) {
    return own ? static_cast<std::uint64_t>(rank) : framework->rank_class(model, config, rank);
  };
  const auto program_for = [&](std::int64_t rank) {
    const auto [it, fresh] =
        program_of_class.emplace(class_of(rank), static_cast<std::uint32_t>(s.programs.size()));
    if (fresh) s.programs.push_back(plan_rank(model, config, options, rank, s));
    return it->second;
  };
  if (!ranks.empty()) {
    for (const std::int64_t r : ranks) {
      if (r < 0 || r >= s.world) {
        throw InputError(Issue{"", "rank", std::to_string(r) + " is not a rank of this job",
                               "0 to " + std::to_string(s.world - 1)});
      }
      s.program_of_rank.push_back(program_for(r));
    }
    if (ranks.size() == 1) s.program_of_rank.resize(1);
  } else {
    for (std::int64_t r = 0; r < s.world; ++r) s.program_of_rank.push_back(program_for(r));
    if (s.programs.size() == 1) s.program_of_rank.resize(1);
  }
  for (std::string& remark : remarks(model, config)) s.remarks.push_back(std::move(remark));
  s.tokens_per_step = tokens_of(model, config);
  s.model_flops_per_step = model_flops(model, s.programs[0]) * static_cast<double>(s.world);
  return s;
}

}  // namespace foreshard
