// What the wrap search knows of a job: compute times and bytes of blocks from a plan, times of
// gathers and reductions from the cost model.

#include <algorithm>
#include <map>
#include <memory>

#include "core/error.h"
#include "schedules/planner/framework_table.h"
#include "schedules/planner/frameworks/fsdp2.h"
#include "schedules/planner/planner.h"
#include "sim/hardware_cost.h"
#include "study/wrap_search.h"

namespace foreshard {
namespace {

/// Block that a module belongs to, by name; -1 if to none.
class BlockOf {
 public:
  explicit BlockOf(const Model& model) {
    for (std::size_t i = 0; i < model.roles.blocks.size(); ++i) {
      block_[model.at(model.roles.blocks[i]).name] = static_cast<int>(i);
    }
  }
  int operator()(std::string name) const {
    for (;;) {
      const auto found = block_.find(name);
      if (found != block_.end()) return found->second;
      const std::size_t dot = name.rfind('.');
      if (dot == std::string::npos) return -1;
      name.resize(dot);
    }
  }

 private:
  std::map<std::string, int> block_;
};

bool in_backward(Phase p) { return p == Phase::kBackward || p == Phase::kRecompute; }

/// Sums over the last step of one rank's plan with one block a unit.
class PlanReader {
 public:
  PlanReader(const Model& model, const RankProgram& program, const CostModel& cost)
      : program_(program), cost_(cost), of_(model) {
    const std::size_t n = model.roles.blocks.size();
    out_.forward.assign(n, Time(0));
    out_.backward.assign(n, Time(0));
    out_.gather.assign(n, Bytes(0));
    out_.reduce.assign(n, Bytes(0));
    for (const ShardUnit& u : program.units)
      unit_block_.push_back(u.modules.empty() ? -1 : of_(u.modules[0]));
  }

  WrapCosts read() {
    const Segment step = program_.steps.back();
    for (std::uint32_t i = step.begin; i < step.end; ++i) {
      const Instruction& in = program_.instructions[i];
      if (in.kind == InstructionKind::kLaunch) add(program_.launches[in.id]);
      if (in.kind == InstructionKind::kCollective) add(program_.collectives[in.id]);
    }
    return std::move(out_);
  }
  const Collective* gather = nullptr;
  const Collective* reduce = nullptr;
  const Collective* all_reduce = nullptr;

 private:
  void add(const Launch& l) {
    if (l.stream != 0) return;
    const Time time = cost_.launch(program_, l).device;
    const int block = l.scope.valid() ? of_(program_.scopes[l.scope.value]) : -1;
    if (block >= 0) {
      seen_block_ = true;
      (in_backward(l.phase) ? out_.backward : out_.forward)[static_cast<std::size_t>(block)] +=
          time;
    } else if (l.phase == Phase::kForward && !seen_block_) {
      out_.embedding += time;
    } else if (l.phase == Phase::kForward || l.phase == Phase::kLoss ||
               l.phase == Phase::kBackward) {
      out_.head += time;  // the embedding's backward is small beside the head's
    } else {
      out_.rest += time;
    }
  }

  void add(const Collective& c) {
    const int block = c.unit.valid() ? unit_block_[c.unit.value] : -1;
    if (block < 0) return;
    const auto b = static_cast<std::size_t>(block);
    if (c.kind == CollectiveKind::kAllGather) {
      gather = &c;
      out_.gather[b] = c.bytes;  // each micro-batch and direction gathers the same
    } else if (c.kind == CollectiveKind::kReduceScatter) {
      reduce = &c;
      out_.reduce[b] = c.bytes;
    } else if (c.kind == CollectiveKind::kAllReduce) {
      all_reduce = &c;
    }
  }

  const RankProgram& program_;
  const CostModel& cost_;
  BlockOf of_;
  std::vector<int> unit_block_;
  WrapCosts out_;
  bool seen_block_ = false;
};

std::vector<std::int64_t> members(const Group& group) {
  std::vector<std::int64_t> ranks;
  for (std::int64_t i = 0; i < group.size; ++i) ranks.push_back(i * group.stride);
  return ranks;
}

/// Time of a collective like `like`, of other size.
std::function<Time(Bytes)> time_of(const std::shared_ptr<const CostModel>& cost,
                                   const Schedule& schedule, const Collective* like) {
  if (like == nullptr) return [](Bytes) { return Time(0); };
  return [cost, like = *like, ranks = members(schedule.groups[like->group.value])](Bytes bytes) {
    Collective c = like;
    c.bytes = bytes;
    return cost->collective(c, ranks).device;
  };
}

void check_groupable(const Job& job) {
  if (row_of(job.config.framework).units != UnitForm::kModuleGroup)
    throw InputError(
        Issue{"", "framework", "groups of blocks form no units there", "--framework fsdp2"});
  if (job.model->roles.blocks.empty())
    throw InputError(
        Issue{job.model->name, "", "has no blocks to wrap", "a model with repeated blocks"});
  if (job.config.accumulate != 1)
    throw InputError(Issue{"", "accumulate", "groupings are searched for one micro-batch a step",
                           "--accumulate 1"});
}

}  // namespace

WrapCosts wrap_costs(const Job& job) {
  check_groupable(job);
  Job blocks = job;
  blocks.config.wrap = WrapPolicy{};
  blocks.config.wrap.root_split = job.config.wrap.root_split;
  PlanOptions options;
  options.executable = false;
  options.ranks = {0};
  const Schedule schedule = plan(*job.model, blocks.config, options);
  const std::shared_ptr<const CostModel> cost =
      make_cost_model(make_cluster(job.hardware, static_cast<int>(job.gpus)));
  PlanReader reader(*job.model, schedule.programs[0], *cost);
  WrapCosts out = reader.read();
  out.reshard = job.config.reshard.kind != Reshard::Kind::kNo;
  out.gather_time = time_of(cost, schedule, reader.gather);
  const auto scatter = time_of(cost, schedule, reader.reduce),
             all = time_of(cost, schedule, reader.all_reduce);
  const std::int64_t shard = job.config.shard;
  out.reduce_time = [scatter, all, shard](Bytes bytes) {
    return scatter(bytes) + all(Bytes(bytes.value / shard));
  };
  return out;
}

Job with_grouping(const Job& job, const std::vector<std::int64_t>& sizes) {
  Job out = job;
  const ModelRoles& roles = job.model->roles;
  WrapPolicy one = job.config.wrap;
  one.kind = WrapPolicy::Kind::kBlocks;
  out.config.wrap = one;
  std::vector<WrapCall> calls;
  std::size_t block = 0, group = 0;
  std::int64_t left = 0;
  for (WrapCall& call : fsdp2::wrap_calls(*job.model, out.config)) {
    const bool is_block =
        block < roles.blocks.size() &&
        call.modules == std::vector<std::string>{job.model->at(roles.blocks[block]).name};
    if (!is_block) {
      calls.push_back(std::move(call));
      continue;
    }
    ++block;
    if (left == 0) {
      if (group == sizes.size()) throw InternalError("a grouping with too few blocks");
      left = sizes[group++];
      calls.push_back(std::move(call));
    } else {
      calls.back().modules.push_back(call.modules[0]);
    }
    --left;
  }
  out.config.wrap.kind = WrapPolicy::Kind::kCalls;
  out.config.calls = std::move(calls);
  return out;
}

}  // namespace foreshard
