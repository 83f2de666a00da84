#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <thread>

#include "cli/commands.h"
#include "cli/job_options.h"
#include "cli/output.h"
#include "core/format.h"
#include "core/integers.h"
#include "core/json.h"
#include "core/parse_number.h"
#include "sim/cost/gpu_spread.h"
#include "sim/distribution.h"
#include "sim/mixed_cost.h"
#include "study/evaluate.h"

namespace foreshard::cli {
namespace {

constexpr std::int64_t kMostSamples = 10'000;
constexpr double kSmallestFactor = 1e-3, kLargestFactor = 1e3;

/// "3" or "8-15": first and last rank; nothing if it is neither or outside the world.
std::optional<std::pair<std::size_t, std::size_t>> ranks_of(std::string_view text,
                                                            std::int64_t world) {
  const std::size_t dash = text.find('-');
  const auto first = parse_number<double>(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : parse_number<double>(text.substr(dash + 1));
  if (!first || !last || *first < 0 || *last < *first || *last >= static_cast<double>(world))
    return std::nullopt;
  return std::pair(static_cast<std::size_t>(*first), static_cast<std::size_t>(*last));
}

/// Ranks of an item of a list; false, with a report, where another item has named one of them.
bool take(Arguments& a, const std::string& option, const std::string& item,
          const std::pair<std::size_t, std::size_t>& range, std::vector<bool>& taken) {
  for (std::size_t r = range.first; r <= range.second; ++r) {
    if (taken[r]) {
      a.report(option, fmt::format("\"{}\" names rank {} again", item, r), "each rank once");
      return false;
    }
    taken[r] = true;
  }
  return true;
}

/// "3:1.2,8-15:1.05" as one factor for each rank; empty if the option is absent.
std::vector<double> factors_of(Arguments& a, const std::string& option, std::int64_t world) {
  std::vector<double> out;
  std::vector<bool> taken(static_cast<std::size_t>(world), false);
  for (const std::string& item : a.list(option)) {
    const std::size_t colon = item.find(':');
    const auto factor = colon == std::string::npos
                            ? std::nullopt
                            : parse_number<double>(std::string_view(item).substr(colon + 1));
    const auto range =
        factor ? ranks_of(std::string_view(item).substr(0, colon), world) : std::nullopt;
    if (!range) {
      a.report(option, fmt::format("found \"{}\"", item),
               fmt::format("RANK:FACTOR or FIRST-LAST:FACTOR, ranks 0 to {}", world - 1));
      continue;
    }
    if (!(*factor >= kSmallestFactor && *factor <= kLargestFactor)) {
      a.report(option, fmt::format("found \"{}\"", item),
               fmt::format("a factor of {} to {}", kSmallestFactor, kLargestFactor));
      continue;
    }
    if (!take(a, option, item, *range, taken)) continue;
    out.resize(static_cast<std::size_t>(world), 1.0);
    for (std::size_t r = range->first; r <= range->second; ++r) out[r] = *factor;
  }
  return out;
}

/// Kernels of one rank's last step, added up.
Time kernels_on(const CostModel& cost, const Schedule& schedule) {
  const RankProgram& p = schedule.programs[0];
  Time out{};
  for (std::uint32_t i = p.steps.back().begin; i < p.steps.back().end; ++i) {
    const Instruction& in = p.instructions[i];
    if (in.kind == InstructionKind::kLaunch) out += cost.launch(p, p.launches[in.id]).device;
  }
  return out;
}

std::unique_ptr<CostModel> cost_of(Job job, const HardwareProfile& hardware,
                                   const Schedule& schedule) {
  job.hardware = hardware;
  return cost_model_of(job, schedule);
}

/// Says that a rank does not fit: its times are those of a job that runs.
void note_memory(Arguments& a, Job job, const HardwareProfile& hardware, const Schedule& schedule) {
  job.hardware = hardware;
  const MemoryResult m = settled_memory(job, Simulator(schedule), {}).memory;
  if (!m.fits)
    a.note(fmt::format(
        "a rank does not fit {} ({}); the times are those of a job that runs. foreshard simulate "
        "says what it needs",
        hardware.gpu.title.empty() ? hardware.gpu.name : hardware.gpu.title,
        format_memory(m.capacity)));
}

/// A profile of so many nodes, which stands for `gpus` GPUs of the job alone: as a kind of machine
/// for all `world` of them, so that its collectives can be asked.
HardwareProfile as_kind(HardwareProfile profile, std::int64_t gpus, std::int64_t world) {
  make_cluster(profile, static_cast<int>(gpus));  // Refuses more nodes than there are.
  const std::int64_t nodes = ceil_div(world, std::max<std::int64_t>(1, profile.gpus_per_node()));
  if (profile.nodes > 0) profile.nodes = std::max(profile.nodes, static_cast<int>(nodes));
  return profile;
}

/// Ranks that --other-nodes names, as far as it can be read; mix() reports the rest.
std::int64_t ranks_elsewhere(const Arguments& a, std::int64_t world) {
  std::int64_t count = 0;
  for (const std::string& item : a.list("other-nodes"))
    if (const auto range = ranks_of(std::string_view(item).substr(0, item.find(':')), world))
      count += static_cast<std::int64_t>(range->second - range->first + 1);
  return std::min(count, world);
}

/// Mixed machines: kernels of ranks "8-15:dgx-a100-80" take as long as that machine's, in
/// proportion; the links of each are its own. `spreads`: of the speed of each rank's GPU type.
std::vector<MachineRanks> mix(Arguments& a, const Job& job, const Schedule& schedule,
                              const CostModel& here, Variation& v, std::vector<double>& spreads) {
  std::vector<MachineRanks> others;
  const Time kernels = kernels_on(here, schedule);
  std::vector<bool> taken(static_cast<std::size_t>(job.gpus), false);
  for (const std::string& item : a.list("other-nodes")) {
    const std::size_t colon = item.find(':');
    const auto range = colon == std::string::npos
                           ? std::nullopt
                           : ranks_of(std::string_view(item).substr(0, colon), job.gpus);
    if (!range) {
      a.report("other-nodes", fmt::format("found \"{}\"", item),
               fmt::format("FIRST-LAST:HARDWARE, ranks 0 to {}", job.gpus - 1));
      continue;
    }
    const auto per_node = static_cast<std::size_t>(std::max(1, job.hardware.gpus_per_node()));
    if (range->first % per_node != 0 || (range->second + 1) % per_node != 0) {
      a.report("other-nodes", fmt::format("found \"{}\"", item),
               fmt::format("whole nodes of {} ranks", per_node));
      continue;
    }
    if (!take(a, "other-nodes", item, *range, taken)) continue;
    const auto count = static_cast<std::int64_t>(range->second - range->first + 1);
    const HardwareProfile other = as_kind(load_hardware(item.substr(colon + 1)), count, job.gpus);
    note_memory(a, job, other, schedule);
    MachineRanks machine{static_cast<std::int64_t>(range->first),
                         static_cast<std::int64_t>(range->second), cost_of(job, other, schedule)};
    v.rank_compute.resize(static_cast<std::size_t>(job.gpus), 1.0);
    const double slower = kernels_on(*machine.cost, schedule) / kernels;
    const double spread_there = speed_spread_of(other.gpu, job.cost_parameters());
    for (std::size_t r = range->first; r <= range->second; ++r)
      v.rank_compute[r] *= slower, spreads[r] = spread_there;
    others.push_back(std::move(machine));
  }
  a.check();
  return others;
}

/// Jitter waits for the slowest of what each GPU does in a step, not for the slowest jitter on top
/// of the slowest GPU: every rank, but those of --slow-ranks, gets a speed of its own.
void tell_gpus_apart(const std::vector<double>& spreads, const std::vector<double>& named,
                     Variation& v) {
  const std::size_t world = spreads.size();
  std::map<double, std::vector<double>> typical;
  v.rank_compute.resize(world, 1.0);
  for (std::size_t r = 0; r < world; ++r) {
    std::vector<double>& gpus = typical[spreads[r]];
    if (gpus.empty()) gpus = typical_gpus(spreads[r], static_cast<std::int64_t>(world));
    if (r >= named.size() || named[r] == 1) v.rank_compute[r] *= gpus[r];
  }
}

/// What the times hold of the constant differences between GPUs.
std::string spread_text(const std::vector<double>& spreads, bool jitter) {
  const auto [least, most] = std::minmax_element(spreads.begin(), spreads.end());
  const std::string range = *least == *most
                                ? fmt::format("{:.1f}", 100 * *most)
                                : fmt::format("{:.1f} to {:.1f}", 100 * *least, 100 * *most);
  const auto world = static_cast<std::int64_t>(spreads.size());
  const std::string slowest =
      fmt::format("the slowest of {} GPUs, {:+.1f} % against the slowest of 8", world,
                  100 * (slowest_gpu_factor(*most, world) - 1));
  return fmt::format(
      "  Equal ranks all compute as {} (speed_spread {} %){}\n", slowest, range,
      jitter ? ";\n  with --jitter each rank has a constant speed of its own beside its jitter."
             : ".");
}

Variation variation_of(Arguments& a, std::int64_t gpus) {
  Variation v;
  v.rank_compute = factors_of(a, "slow-ranks", gpus);
  v.rank_link = factors_of(a, "slow-links", gpus);
  v.step_sigma = a.number("jitter", 0, 0, 1);
  v.kernel_sigma = a.number("kernel-jitter", 0, 0, 1);
  v.collective_sigma = a.number("link-jitter", 0, 0, 1);
  v.seed = static_cast<std::uint64_t>(a.integer("seed", 1, 0, INT64_MAX));
  return v;
}

/// Without a random factor every seed gives the same step.
bool is_random(const Variation& v) {
  return v.step_sigma > 0 || v.kernel_sigma > 0 || v.collective_sigma > 0;
}

/// `spreads`: of the speed of each rank's GPU type.
Json json_of(const Job& job, const StepDistribution& d, const std::vector<double>& spreads) {
  Json out = {{"model", job.model->name},
              {"gpus", job.gpus},
              {"samples", d.samples.size()},
              {"speed_spread", *std::max_element(spreads.begin(), spreads.end())},
              {"equal_ranks_s", to_seconds(d.without_variation)},
              {"p10_s", to_seconds(d.p10)},
              {"median_s", to_seconds(d.median)},
              {"p90_s", to_seconds(d.p90)},
              {"mean_s", to_seconds(d.mean)},
              {"cost", d.cost}};
  out["steps_s"] = Json::array();
  for (const Time t : d.samples) out["steps_s"].push_back(to_seconds(t));
  return out;
}

std::string text_of(const Job& job, const StepDistribution& d, bool random) {
  std::string text =
      fmt::format("{} · {} · {}\n\n", job.model->name, describe_machines(job.hardware, job.gpus),
                  describe_precision(job));
  const auto row = [&text](const char* name, Time t) {
    text += fmt::format("  {:<13}{:>10}\n", name, format_time(t));
  };
  row("equal ranks", d.without_variation);
  if (random) {
    row("p10", d.p10);
    row("median", d.median);
    row("p90", d.p90);
    text += fmt::format("\n  Differences between ranks cost {:.1f} % on average ({} seeds).\n",
                        100 * d.cost, d.samples.size());
  } else {
    row("as given", d.median);
    text += fmt::format("\n  Differences between ranks cost {:.1f} % (nothing is random).\n",
                        100 * d.cost);
  }
  return text;
}

int spread(Arguments& a) {
  Job job = read_job(a);
  SimulationOptions options;
  Variation& v = options.variation;
  v = variation_of(a, job.gpus);
  const std::vector<double> slow = v.rank_compute;
  const bool random = is_random(v);
  const std::int64_t samples = random ? a.integer("samples", 20, 1, kMostSamples) : 1;
  const std::int64_t threads =
      a.integer("threads", std::max(1U, std::thread::hardware_concurrency()), 1, 256);
  a.check();
  if (const std::int64_t own = job.gpus - ranks_elsewhere(a, job.gpus); own > 0)
    job.hardware = as_kind(job.hardware, own, job.gpus);
  const Schedule schedule = plan_of(job);
  note_memory(a, job, job.hardware, schedule);
  const std::unique_ptr<CostModel> here = cost_model_of(job, schedule);
  std::vector<double> spreads(static_cast<std::size_t>(job.gpus),
                              speed_spread_of(job.hardware.gpu, job.cost_parameters()));
  std::vector<MachineRanks> others = mix(a, job, schedule, *here, v, spreads);
  if (v.none() && others.empty())
    throw InputError(Issue{"spread", "", "nothing varies",
                           "--jitter 0.02, --slow-ranks 3:1.2, --slow-links 8-15:2, ..."});
  if (v.step_sigma > 0) tell_gpus_apart(spreads, slow, v);
  const auto cost = make_mixed_cost(cost_model_of(job, schedule), std::move(others));
  const StepDistribution d = simulate_distribution(
      schedule, *cost, options, static_cast<int>(samples), static_cast<int>(threads), here.get());
  if (a.flag("json")) {
    print_json(json_of(job, d, spreads));
  } else {
    print(text_of(job, d, random) + spread_text(spreads, v.step_sigma > 0));
  }
  return kOk;
}

}  // namespace

CommandSpec spread_command() {
  CommandSpec c;
  c.name = "spread";
  c.summary =
      "What do slow ranks, slow links and jitter cost? Every rank simulated, with several seeds.";
  c.examples = {
      {"foreshard spread llama3-8b --gpus 16 --on dgx-h100 --slow-ranks 3:1.2",
       "one GPU 20 % slower"},
      {"foreshard spread llama3-8b --gpus 64 --on dgx-h100 --jitter 0.03 --samples 50",
       "p10, median and p90 of a step whose ranks vary by 3 %"},
      {"foreshard spread llama3-8b --gpus 64 --on dgx-h100 --slow-links 8-15:2",
       "the second node's links at half speed"},
      {"foreshard spread llama3-8b --gpus 16 --on dgx-h100 --other-nodes 8-15:dgx-a100-80",
       "one H100 and one A100 node"}};
  c.positionals = {model_argument()};
  c.groups = job_options();
  c.groups.push_back(
      {"Differences",
       {{"slow-ranks",
         "LIST",
         "RANK:FACTOR or FIRST-LAST:FACTOR: kernels of these ranks take FACTOR times as long as "
         "equal ranks'",
         {},
         true},
        {"slow-links", "LIST", "The same for collectives and copies of these ranks", {}, true},
        {"other-nodes",
         "LIST",
         "FIRST-LAST:HARDWARE: these ranks are GPUs of another machine",
         {},
         true},
        {"jitter",
         "SD",
         "Log-normal factor of each rank and step: clocks, uneven batches (default 0); beside the "
         "constant speed of each GPU (speed_spread), which is in every answer",
         {},
         true},
        {"kernel-jitter", "SD", "Of each kernel", {}, true},
        {"link-jitter", "SD", "Of each collective", {}, true},
        {"samples", "N", "Seeds, where a jitter is given (default 20)", {}, true},
        {"seed", "N", "The first (default 1)", {}, true},
        {"threads", "N", "Worker threads; the answer does not depend on them", {}, true}}});
  c.groups.push_back({"Answer", {{"json", "", "One JSON document instead of text", {}, false}}});
  c.run = spread;
  return c;
}

}  // namespace foreshard::cli
