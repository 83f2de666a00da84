#include "study/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <tuple>

#include "core/error.h"
#include "core/format.h"
#include "core/parallel.h"
#include "schedules/planner/framework_table.h"
#include "schedules/planner/wrap_policy.h"
#include "study/evaluate.h"
#include "study/headroom.h"
#include "study/job_change.h"

namespace foreshard {
namespace {

/// The smallest K for each distinct number of units, and 0 for the whole model. A unit of one
/// module is a block.
std::vector<std::int64_t> granularities(const Job& job) {
  if (row_of(job.config.framework).units == UnitForm::kModule) return {1, 0};
  std::vector<std::int64_t> out;
  std::size_t last = 0;
  for (std::int64_t k = 1; k <= std::ssize(job.model->roles.blocks); ++k) {
    const std::size_t units = wrapped_groups(*job.model, blocks_together(k)).size();
    if (units != last) out.push_back(k);
    last = units;
  }
  out.push_back(0);
  return out;
}

JobChange change_to(const Job& job, const WrapChoice& c) {
  return change::wrap(blocks_together(c.blocks_per_unit)) + change::root_split(c.root_split) +
         change::resharding(job, c.reshard);
}

WrapChoice candidate(const Job& job, std::int64_t blocks_per_unit, bool reshard, bool root_split) {
  WrapChoice out;
  out.blocks_per_unit = blocks_per_unit;
  out.reshard = reshard;
  out.root_split = root_split;
  out.options = change_to(job, out).options;
  return out;
}

WrapChoice measure(const Job& job, WrapChoice choice) {
  const Evaluation e = evaluate(with_choice(job, choice));
  const SimulationResult& r = e.result;
  choice.units = static_cast<std::int64_t>(e.schedule.programs[0].units.size());
  choice.step = r.step_time;
  choice.exposed_communication = r.breakdown.exposed_communication;
  choice.exposed_host = r.breakdown.exposed_host;
  for (const CommunicationRow& row : r.communication) {
    choice.busy_communication += row.busy;
    choice.exposed_collectives += row.exposed;
    choice.collectives += row.count;
    choice.traffic += row.bytes;
  }
  choice.memory = r.memory.device_peak;
  choice.tokens_per_s_per_gpu = e.tokens_per_second_per_gpu();
  choice.fits = r.memory.fits;
  choice.fits_host = r.memory.fits_host();
  choice.retries = is_borderline(r.memory) ? r.memory.retries_total : 0;
  choice.step_retries = is_borderline(r.memory) ? r.memory.retries : 0;
  choice.allocated = r.memory.allocated_peak;
  return choice;
}

void check_tunable(const Job& job) {
  const FrameworkRow& framework = row_of(job.config.framework);
  if (!framework.forms_units()) {
    std::string others;
    for (const FrameworkRow& row : frameworks())
      if (row.forms_units())
        others += (others.empty() ? "--framework " : " or ") + std::string(row.name);
    throw InputError(
        Issue{"--framework", "",
              fmt::format("{} forms no units: there is no wrapping to choose", framework.name),
              others + "; foreshard simulate tries its other options"});
  }
  if (job.model->roles.blocks.empty())
    throw InputError(Issue{job.model->name, "", "has no blocks to wrap",
                           "tune varies the number of blocks in a unit"});
}

/// Choices that come to the same: with one unit nothing is freed after forward, with a tie
/// embedding and head are one anyway. Sorted by step and memory; the first stays.
void drop_equal(std::vector<WrapChoice>& choices) {
  const auto facts = [](const WrapChoice& c) {
    return std::tie(c.units, c.step, c.memory, c.allocated, c.collectives, c.traffic, c.fits);
  };
  choices.erase(
      std::unique(choices.begin(), choices.end(),
                  [&](const WrapChoice& a, const WrapChoice& b) { return facts(a) == facts(b); }),
      choices.end());
}

void mark_pareto(std::vector<WrapChoice>& choices) {
  for (WrapChoice& a : choices) {
    a.pareto =
        a.fits_well() && std::none_of(choices.begin(), choices.end(), [&a](const WrapChoice& b) {
          const bool no_worse = b.step <= a.step && b.memory <= a.memory;
          const bool better = b.step < a.step || b.memory < a.memory;
          return b.fits_well() && no_worse && better;
        });
  }
}

void choose(TuneResult& r) {
  const Choice choice = choose_row(r.choices, r.capacity);
  r.chosen = choice.chosen;
  if (r.chosen == r.choices.size()) return;
  const WrapChoice& fastest = r.choices[choice.fastest];
  WrapChoice& chosen = r.choices[r.chosen];
  chosen.chosen = true;
  const std::string percent = fmt::format("{:.0f} %", 100 * kHeadroom);
  if (!choice.roomy)
    r.reason = fmt::format(
        "allocates least; no wrapping leaves {} of the device free (foreshard simulate "
        "--explain-memory says what would)",
        percent);
  else if (r.chosen == choice.fastest)
    r.reason = fmt::format("the fastest that leaves {} of the device free", percent);
  else
    r.reason = fmt::format(
        "needs least memory within {:.0f} % of the fastest that leaves {} of the device free: "
        "{:.1f} % slower, {:.1f} GiB less",
        100 * (kCloseEnough - 1), percent, 100 * (chosen.step / fastest.step - 1),
        static_cast<double>((fastest.memory - chosen.memory).value) / (1 << 30));
}

/// Seconds per byte of the largest collectives: what the links do when latency does not matter.
double best_rate(const std::vector<WrapChoice>& choices) {
  double rate = 0;
  for (const WrapChoice& c : choices)
    if (c.busy_communication.value > 0)
      rate =
          std::max(rate, static_cast<double>(c.traffic.value) / to_seconds(c.busy_communication));
  return rate;
}

std::string memory_gap(const WrapChoice& a, const WrapChoice& b) {
  return fmt::format("{:+.1f} GiB", static_cast<double>((a.memory - b.memory).value) / (1 << 30));
}

/// Ways in which two choices differ: 1 to 3.
int differences(const WrapChoice& a, const WrapChoice& b) {
  return (a.blocks_per_unit != b.blocks_per_unit ? 1 : 0) + (a.reshard != b.reshard ? 1 : 0) +
         (a.root_split != b.root_split ? 1 : 0);
}

/// The faster choice that fits and differs least from `c`: what is slower about `c` then has one
/// cause where it can.
const WrapChoice& nearest_faster(const WrapChoice& c, const std::vector<WrapChoice>& choices) {
  const WrapChoice* found = nullptr;
  for (const WrapChoice& other : choices) {
    if (&other == &c) break;  // By step time.
    if (other.fits && (!found || differences(c, other) < differences(c, *found))) found = &other;
  }
  return found ? *found : c;
}

/// What makes `c` slower than `best`: the part of its step that grew most.
std::string why_slower(const WrapChoice& c, const WrapChoice& best, double rate) {
  const Time exposed = c.exposed_communication - best.exposed_communication,
             host = c.exposed_host - best.exposed_host;
  const Time slower = c.step - best.step;
  const bool more = c.collectives > best.collectives;
  const std::string instead =
      fmt::format("{} instead of {} exposed", format_time(c.exposed_communication),
                  format_time(best.exposed_communication));
  if (host > exposed && host.value * 3 > slower.value)
    return fmt::format(
        "host: {}waits {} longer for it",
        more ? fmt::format("{} more collectives to issue, ", c.collectives - best.collectives) : "",
        format_time(host));
  if (exposed.value * 3 < slower.value)
    return fmt::format("slower by {} outside communication", format_time(slower));
  if (differences(c, best) == 1 && c.root_split != best.root_split)
    return (c.root_split ? "embedding and head as units of their own: "
                         : "embedding and head in the root's unit: ") +
           instead;
  const auto latency = [rate](const WrapChoice& x) {
    return to_seconds(x.busy_communication) - static_cast<double>(x.traffic.value) / rate;
  };
  const double latency_grew = latency(c) - latency(best);
  const double traffic_grew = static_cast<double>((c.traffic - best.traffic).value) / rate;
  if (more && latency_grew > traffic_grew)
    return fmt::format("latency: {} collectives instead of {}, {}", c.collectives, best.collectives,
                       instead);
  if (traffic_grew > 0.1 * to_seconds(c.busy_communication))
    return fmt::format("bandwidth: {} instead of {} on the links, {}",
                       format_bytes_decimal(c.traffic), format_bytes_decimal(best.traffic),
                       instead);
  return fmt::format("bandwidth: {} to hide, {}", c.units < best.units ? "larger units" : "harder",
                     instead);
}

void explain(TuneResult& r) {
  const double rate = best_rate(r.choices);
  const auto fastest =
      std::find_if(r.choices.begin(), r.choices.end(), [](const WrapChoice& c) { return c.fits; });
  for (WrapChoice& c : r.choices) {
    if (!c.fits) {
      c.verdict = fmt::format("memory: does not fit ({:.1f} GiB over without a limit)",
                              static_cast<double>((c.memory - r.capacity).value) / (1 << 30));
      if (c.memory <= r.capacity) c.verdict = "memory: does not fit (fragmentation)";
      if (!c.fits_host) c.verdict = "memory: does not fit the host's";
      continue;
    }
    if (c.retries > 0) {
      c.verdict = fmt::format("memory: borderline, {}{}", retries_text(c.step_retries, c.retries),
                              c.chosen ? "; nothing here fits better" : "");
      continue;
    }
    if (c.chosen)
      c.verdict = "<- choose this";
    else if (!leaves_headroom(c.memory, r.capacity))
      c.verdict = fmt::format(
          "memory: {:.0f} % of the device",
          100.0 * static_cast<double>(c.memory.value) / static_cast<double>(r.capacity.value));
    else if (&c == &*fastest)
      c.verdict = "fastest; " + memory_gap(c, r.choices[r.chosen]);
    else if (c.pareto)
      c.verdict = fmt::format("on the front: {} for {:+.1f} %", memory_gap(c, *fastest),
                              100 * (c.step / fastest->step - 1));
    else if (c.step / fastest->step <= 1.005)
      c.verdict = "memory: as fast, " + memory_gap(c, r.choices[r.chosen]);
    else
      c.verdict = why_slower(c, nearest_faster(c, r.choices), rate);
  }
}

}  // namespace

Job with_choice(const Job& job, const WrapChoice& choice) {
  Job out = job;
  change_to(job, choice).apply(out);
  return out;
}

TuneResult tune(const Job& job, const std::function<void(int, int)>& progress,
                const TuneLimits& limits) {
  TuneResult out;
  check_tunable(job);
  out.blocks = std::ssize(job.model->roles.blocks);
  std::vector<std::int64_t> sizes = granularities(job);
  if (limits.blocks_per_unit) sizes = {*limits.blocks_per_unit};
  std::vector<WrapChoice> candidates;
  for (const std::int64_t k : sizes)
    for (const bool reshard : {true, false})
      for (const bool split : {true, false})
        if (const WrapChoice c = candidate(job, k, reshard, split);
            (k != 0 || !split) && limits.allow(c))
          candidates.push_back(c);
  if (candidates.empty())
    throw InputError(Issue{"--wrap", "", "one unit for the whole model has no units of its own",
                           "--root-split no, or leave it out"});
  std::vector<std::optional<WrapChoice>> measured(candidates.size());
  std::vector<std::optional<InputError>> refused(candidates.size());
  Progress report(progress, candidates.size());
  parallel_for(candidates.size(), [&](std::size_t i) {
    try {
      measured[i] = measure(job, candidates[i]);
    } catch (const InputError& e) {
      refused[i] = e;
    }
    report.one_more();
  });
  for (std::optional<WrapChoice>& c : measured)
    if (c) out.choices.push_back(std::move(*c));
  if (out.choices.empty()) throw *refused.back();
  out.capacity = Bytes(static_cast<std::int64_t>(
      job.hardware.gpu.usable_memory.value_or(job.hardware.gpu.memory.value_or(0))));
  std::stable_sort(out.choices.begin(), out.choices.end(),
                   [](const WrapChoice& a, const WrapChoice& b) {
                     return std::tie(a.step, a.memory) < std::tie(b.step, b.memory);
                   });
  drop_equal(out.choices);
  mark_pareto(out.choices);
  choose(out);
  explain(out);
  return out;
}

}  // namespace foreshard
