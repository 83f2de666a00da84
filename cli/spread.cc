#include <fmt/format.h>

#include <charconv>
#include <thread>

#include "cli/commands.h"
#include "cli/job_options.h"
#include "cli/output.h"
#include "core/format.h"
#include "core/json.h"
#include "schedules/planner/planner.h"
#include "sim/distribution.h"
#include "sim/hardware_cost.h"

namespace foreshard::cli {
namespace {

constexpr std::int64_t kMostSamples = 10'000;

std::optional<double> number_of(std::string_view text) {
  double x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return x;
}

/// "3:1.2,8-15:1.05" as one factor for each rank; empty if the option is absent.
std::vector<double> factors_of(Arguments& a, const std::string& option, std::int64_t world) {
  std::vector<double> out;
  for (const std::string& item : a.list(option)) {
    const std::size_t colon = item.find(':'), dash = item.find('-');
    const auto factor = colon == std::string::npos ? std::nullopt : number_of(std::string_view(item).substr(colon + 1));
    const bool range = dash != std::string::npos && dash < colon;
    const auto first = number_of(std::string_view(item).substr(0, range ? dash : colon));
    const auto last = range ? number_of(std::string_view(item).substr(dash + 1, colon - dash - 1)) : first;
    if (!factor || !first || !last || *first < 0 || *last < *first || *last >= static_cast<double>(world)) {
      a.report(option, fmt::format("found \"{}\"", item), fmt::format("RANK:FACTOR or FIRST-LAST:FACTOR, ranks 0 to {}", world - 1));
      continue;
    }
    out.resize(static_cast<std::size_t>(world), 1.0);
    for (auto r = static_cast<std::size_t>(*first); r <= static_cast<std::size_t>(*last); ++r) out[r] = *factor;
  }
  return out;
}

int spread(Arguments& a) {
  const Job job = read_job(a);
  SimulationOptions options;
  Variation& v = options.variation;
  v.rank_compute = factors_of(a, "slow-ranks", job.gpus);
  v.rank_link = factors_of(a, "slow-links", job.gpus);
  v.step_sigma = a.number("jitter", 0, 0, 1);
  v.kernel_sigma = a.number("kernel-jitter", 0, 0, 1);
  v.collective_sigma = a.number("link-jitter", 0, 0, 1);
  v.seed = static_cast<std::uint64_t>(a.integer("seed", 1, 0, INT64_MAX));
  const std::int64_t samples = a.integer("samples", 20, 1, kMostSamples);
  const std::int64_t threads = a.integer("threads", std::max(1U, std::thread::hardware_concurrency()), 1, 256);
  a.check();
  if (v.none()) throw InputError(Issue{"spread", "", "nothing varies", "--jitter 0.02, --slow-ranks 3:1.2, --slow-links 8-15:2, ..."});
  PlanOptions plan_options;
  plan_options.executable = false;
  const Schedule schedule = plan(*job.model, job.config, plan_options);
  const auto cost = make_cost_model(make_cluster(job.hardware, static_cast<int>(job.gpus)));
  const StepDistribution d = simulate_distribution(schedule, *cost, options, static_cast<int>(samples), static_cast<int>(threads));
  if (a.flag("json")) {
    Json out = {{"model", job.model->name}, {"gpus", job.gpus}, {"samples", samples}, {"equal_ranks_s", to_seconds(d.without_variation)},
                {"p10_s", to_seconds(d.p10)}, {"median_s", to_seconds(d.median)}, {"p90_s", to_seconds(d.p90)}, {"mean_s", to_seconds(d.mean)},
                {"cost", d.cost}};
    out["steps_s"] = Json::array();
    for (const Time t : d.samples) out["steps_s"].push_back(to_seconds(t));
    return print_json(out), kOk;
  }
  std::string text = fmt::format("{} · {} · {}\n\n", job.model->name, describe_machines(job.hardware, job.gpus), describe_precision(job.config));
  text += fmt::format("  equal ranks  {:>10}\n  p10          {:>10}\n  median       {:>10}\n  p90          {:>10}\n", format_time(d.without_variation),
                      format_time(d.p10), format_time(d.median), format_time(d.p90));
  text += fmt::format("\n  Differences between ranks cost {:.1f} % on average ({} seeds).\n", 100 * d.cost, samples);
  return print(text), kOk;
}

}  // namespace

CommandSpec spread_command() {
  CommandSpec c;
  c.name = "spread";
  c.summary = "What do slow ranks, slow links and jitter cost? Every rank simulated, with several seeds.";
  c.examples = {{"foreshard spread llama3-8b --gpus 16 --on dgx-h100 --slow-ranks 3:1.2", "one GPU 20 % slower"},
                {"foreshard spread llama3-8b --gpus 64 --on dgx-h100 --jitter 0.03 --samples 50", "p10, median and p90 of a step whose ranks vary by 3 %"},
                {"foreshard spread llama3-8b --gpus 64 --on dgx-h100 --slow-links 8-15:2", "the second node's links at half speed"}};
  c.positionals = {model_argument()};
  c.groups = job_options();
  c.groups.push_back({"Differences",
                      {{"slow-ranks", "LIST", "RANK:FACTOR or FIRST-LAST:FACTOR: kernels of these ranks take FACTOR times as long", {}, true},
                       {"slow-links", "LIST", "The same for collectives and copies of these ranks", {}, true},
                       {"jitter", "SD", "Log-normal factor of each rank and step: clocks, uneven batches (default 0)", {}, true},
                       {"kernel-jitter", "SD", "Of each kernel", {}, true},
                       {"link-jitter", "SD", "Of each collective", {}, true},
                       {"samples", "N", "Seeds (default 20)", {}, true},
                       {"seed", "N", "The first (default 1)", {}, true},
                       {"threads", "N", "Worker threads; the answer does not depend on them", {}, true}}});
  c.groups.push_back({"Answer", {{"json", "", "One JSON document instead of text", {}, false}}});
  c.run = spread;
  return c;
}

}  // namespace foreshard::cli
