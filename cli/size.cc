#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "cli/commands.h"
#include "cli/job_options.h"
#include "cli/output.h"
#include "cli/quantity.h"
#include "core/format.h"
#include "core/json.h"
#include "core/parse_number.h"
#include "hwprofiles/spelling.h"
#include "study/size.h"

namespace foreshard::cli {
namespace {

/// Tokens: "1.5T", "300B", "1,000,000,000".
double tokens_of(Arguments& a) {
  const std::string text = a.text("tokens");
  const std::optional<double> x = parse_count(text, 1000);
  if (x && *x > 0 && *x <= 1e18) return *x;
  const std::string near = nearest_count(text);
  a.report(
      "tokens",
      fmt::format("found \"{}\"{}", text, x || near.empty() ? "" : ", nearest is \"" + near + "\""),
      "allowed: a positive number with K, M, B or T, e.g. 1T");
  return 0;
}

std::optional<double> days_of(Arguments& a) {
  if (!a.has("deadline")) return std::nullopt;
  std::string text = a.text("deadline");
  double unit = 1;
  if (!text.empty() && (text.back() == 'd' || text.back() == 'h')) {
    unit = text.back() == 'h' ? 1.0 / 24 : 1;
    text.pop_back();
  }
  const auto x = parse_number<double>(text);
  if (x && *x > 0 && std::isfinite(*x)) return *x * unit;
  a.report("deadline", fmt::format("found \"{}\"", a.text("deadline")),
           "allowed: days or hours, e.g. 45d, 36h");
  return std::nullopt;
}

std::map<std::string, double> prices_of(Arguments& a) {
  std::map<std::string, double> out;
  for (const std::string& item : a.list("price")) {
    const std::size_t equals = item.find('=');
    std::string number = equals == std::string::npos ? "" : item.substr(equals + 1);
    if (number.size() > 2 && number.substr(number.size() - 2) == "/h")
      number.resize(number.size() - 2);
    if (!number.empty() && number[0] == '$') number.erase(0, 1);
    const auto x = parse_number<double>(number);
    if (!x || !(*x >= 0) || !std::isfinite(*x))
      a.report("price", fmt::format("found \"{}\"", item),
               "allowed: NAME=USD per GPU and hour, e.g. h100=2.10/h,b200=4");
    else if (!out.emplace(item.substr(0, equals), *x).second)
      a.report("price", fmt::format("names {} twice", item.substr(0, equals)));
  }
  return out;
}

std::vector<std::int64_t> integers_of(Arguments& a, const std::string& option, std::int64_t most) {
  std::vector<std::int64_t> out;
  for (const std::string& item : a.list(option)) {
    const auto n = parse_number<std::int64_t>(item);
    if (!n || *n < 1 || *n > most)
      a.report(option, fmt::format("found \"{}\"", item),
               fmt::format("allowed: numbers from 1 to {}, separated by commas", most));
    else if (std::find(out.begin(), out.end(), *n) != out.end())
      a.report(option, fmt::format("names {} twice", *n));
    else
      out.push_back(*n);
  }
  return out;
}

/// What a price of these machines may be given under.
std::string priced_names(const std::vector<HardwareProfile>& hardware) {
  std::string out;
  for (const HardwareProfile& h : hardware)
    out += fmt::format("{}{} or {}", out.empty() ? "" : ", ", h.name, h.gpu.name);
  return out;
}

Json row_json(const SizeRow& r) {
  Json out;
  out["hardware"] = r.hardware;
  out["gpus"] = r.gpus;
  out["billed_gpus"] = r.billed_gpus;
  out["micro_batch"] = r.micro_batch;
  out["accumulate"] = r.accumulate;
  out["global_batch"] = r.global_batch;
  out["checkpoint"] = r.checkpoint;
  out["shard"] = r.shard;
  out["replicate"] = r.replicate;
  out["fits"] = r.fits;
  out["step_time_s"] = to_seconds(r.step);
  out["step_p10_s"] = r.p90.value > 0 ? Json(to_seconds(r.p10)) : Json(nullptr);
  out["step_p90_s"] = r.p90.value > 0 ? Json(to_seconds(r.p90)) : Json(nullptr);
  out["outside_calibration"] = r.outside;
  out["tokens_per_s_per_gpu"] = r.tokens_per_s_per_gpu;
  out["samples_per_s_per_gpu"] = r.samples_per_s_per_gpu;
  out["allocator_retries_total"] = r.retries;
  out["tight"] = r.tight;
  out["tokens_per_s"] = r.tokens_per_s_per_gpu * static_cast<double>(r.gpus);
  out["mfu"] = r.mfu;
  out["device_peak_bytes"] = r.memory.value;
  out["days"] = r.days;
  out["gpu_hours"] = r.gpu_hours;
  out["price_usd"] = r.price ? Json(*r.price) : Json(nullptr);
  out["meets_deadline"] = r.meets_deadline;
  out["limited_by"] = r.limited_by;
  out["note"] = r.note;
  return out;
}

Json json_of(const SizeQuestion& q, const SizeResult& r) {
  Json out;
  out["model"] = q.job.model->name;
  out["tokens"] = q.tokens;
  out["deadline_days"] = q.deadline_days ? Json(*q.deadline_days) : Json(nullptr);
  out["rows"] = Json::array();
  for (const SizeRow& row : r.rows) out["rows"].push_back(row_json(row));
  const auto index = [](const std::optional<std::size_t>& i) {
    return i ? Json(*i) : Json(nullptr);
  };
  out["smallest"] = index(r.smallest);
  out["cheapest"] = index(r.cheapest);
  out["fastest"] = index(r.fastest);
  return out;
}

std::string name_of_row(const SizeRow& r) {
  return fmt::format("{} GPUs ({} x {}; micro-batch {}{}, checkpointing {}{})", r.gpus, r.nodes,
                     r.hardware, r.micro_batch,
                     r.accumulate > 1 ? fmt::format(" x {}", r.accumulate) : "", r.checkpoint,
                     r.replicate > 1 ? fmt::format(", {} copies", r.replicate) : "");
}

/// The range of a named row's step.
std::string range_of(const SizeRow& r) {
  return r.p90.value == 0
             ? ""
             : fmt::format(", step {} to {} (80 % range)", format_time(r.p10), format_time(r.p90));
}

/// What the rows have outside of what was calibrated, each once, with the rows that have it.
std::string outside_text(const SizeResult& r) {
  std::vector<std::string> seen;
  for (const SizeRow& row : r.rows)
    for (const std::string& why : row.outside)
      if (std::find(seen.begin(), seen.end(), why) == seen.end()) seen.push_back(why);
  return seen.empty()
             ? ""
             : fmt::format("  outside what was calibrated (ranges may be too narrow): {}\n",
                           fmt::join(seen, "; "));
}

std::string header_of(const SizeQuestion& q) {
  const bool tokens = q.job.has_tokens();
  const ParallelConfig& c = q.job.config;
  const bool one_kind = q.checkpoints.empty();  // else each row names its own
  std::string out = fmt::format("{} · {}", q.job.model->name, describe_precision(q.job, one_kind));
  if (tokens) out += fmt::format(" · {} tokens of sequence", c.sequence);
  if (q.global_batch) out += fmt::format(" · {} sequences a step", *q.global_batch);
  out += fmt::format("\n\n  {:<18} {:>5} {:>7} {:>9} {:>9} {:>9} {:>9} {:>6} {:>6}", "hardware",
                     "GPUs", "batch", "ckpt", tokens ? "tok/step" : "img/step", "step",
                     tokens ? "tok/s/GPU" : "samples/s", "MFU", "GiB");
  if (q.tokens > 0) out += fmt::format(" {:>8} {:>10} {:>12}", "days", "GPU-hours", "price");
  return out + "  limited by\n";
}

std::string remarks_on(const SizeQuestion& q, const SizeRow& row) {
  std::string out;
  if (row.billed_gpus > row.gpus) out += fmt::format("  ({} GPUs billed)", row.billed_gpus);
  if (row.retries > 0)
    out += fmt::format("  (borderline: {})", retries_text(row.step_retries, row.retries));
  else if (row.tight)
    out += "  (tight: less than 5 % free)";
  if (row.replicate > 1 && !q.shard && !q.replicate)
    out += fmt::format("  (--replicate {})", row.replicate);
  if (q.deadline_days && !row.meets_deadline) out += "  (too slow)";
  return out;
}

std::string line_of(const SizeQuestion& q, const SizeRow& row) {
  const bool tokens = q.job.has_tokens();
  const std::string batch = row.accumulate > 1
                                ? fmt::format("{}x{}", row.micro_batch, row.accumulate)
                                : std::to_string(row.micro_batch);
  std::string out = fmt::format("  {:<18} {:>5} ", row.hardware, row.gpus);
  if (row.refused) return out + row.note + "\n";
  out += fmt::format("{:>7} {:>9} ", batch, row.checkpoint);
  if (!row.fits) return out + "does not fit: " + row.note + "\n";
  const double samples = static_cast<double>(row.global_batch);
  out += fmt::format(
      "{:>9} {:>9} {:>9.0f} {:>4.0f} % {:>6.1f}",
      format_count(tokens ? samples * static_cast<double>(q.job.config.sequence) : samples),
      format_time(row.step), tokens ? row.tokens_per_s_per_gpu : row.samples_per_s_per_gpu,
      100 * row.mfu, static_cast<double>(row.memory.value) / (1 << 30));
  if (q.tokens > 0)
    out += fmt::format(" {:>8.1f} {:>10} {:>12}", row.days,
                       with_thousands(std::llround(row.gpu_hours)),
                       row.price ? "$" + with_thousands(std::llround(*row.price)) : "-");
  return out + "  " + row.limited_by + remarks_on(q, row) + "\n";
}

std::string text_of(const SizeQuestion& q, const SizeResult& r) {
  std::string out = header_of(q);
  for (const SizeRow& row : r.rows) out += line_of(q, row);
  out += "\n";
  if (q.deadline_days)
    out += r.smallest ? fmt::format("  smallest that meets {:.1f} days: {}{}\n", *q.deadline_days,
                                    name_of_row(r.rows[*r.smallest]), range_of(r.rows[*r.smallest]))
                      : fmt::format("  nothing here meets {:.1f} days\n", *q.deadline_days);
  if (r.cheapest)
    out += fmt::format("  cheapest: {}, ${}{}\n", name_of_row(r.rows[*r.cheapest]),
                       with_thousands(std::llround(*r.rows[*r.cheapest].price)),
                       range_of(r.rows[*r.cheapest]));
  if (r.fastest)
    out += fmt::format("  fastest: {}{}\n", name_of_row(r.rows[*r.fastest]),
                       range_of(r.rows[*r.fastest]));
  const bool asked =
      std::any_of(r.rows.begin(), r.rows.end(), [](auto& row) { return !row.refused; });
  if (!asked)
    out += "  no row can be planned as asked\n";
  else if (!r.fastest)
    out += "  nothing fits without allocator retries: " + r.ways_to_fit + "\n";
  out += outside_text(r);
  if (!q.global_batch)
    out +=
        "  the batch of a step differs between rows: --global-batch N keeps it fixed, by "
        "accumulation\n";
  return out +
         "  not modelled: loss of time to failures, restarts, evaluation and checkpoint saving\n";
}

/// Nothing fits or meets the deadline: a target missed. No row that can be planned: the options are
/// wrong for each.
int exit_code_of(const SizeQuestion& q, const SizeResult& r) {
  if (std::all_of(r.rows.begin(), r.rows.end(), [](const SizeRow& row) { return row.refused; }))
    return kWrongInput;
  return !r.fastest || (q.deadline_days && !r.smallest) ? kTargetMissed : kOk;
}

int run_size(Arguments& a) {
  SizeQuestion q;
  q.job = read_job(a, {.hardware = JobNeeds::Hardware::kLeftToCaller, .gpus = false});
  q.gpus = integers_of(a, "gpus", 1 << 20);
  q.micro_batches = integers_of(a, "micro-batches", 1 << 20);
  if (a.has("micro-batch") && q.micro_batches.empty()) q.micro_batches = {q.job.config.micro_batch};
  if (!a.has("checkpoint")) q.checkpoints = {CheckpointKind::kNone, CheckpointKind::kFull};
  if (a.has("shard")) q.shard = q.job.config.shard;
  if (a.has("replicate")) q.replicate = q.job.config.replicate;
  if (a.has("global-batch")) {
    q.global_batch = a.integer("global-batch", 1, 1, 1 << 26);
    if (a.has("accumulate"))
      a.report("accumulate", "follows from --global-batch on each number of GPUs", "one of them");
  }
  if (a.has("tokens")) q.tokens = tokens_of(a);
  q.deadline_days = days_of(a);
  if (q.deadline_days && q.tokens <= 0)
    a.report("tokens", "is missing", "a deadline needs a token budget, e.g. --tokens 1T");
  if (q.tokens > 0 && q.job.model && !q.job.has_tokens())
    a.report("tokens", fmt::format("{} takes no tokens", q.job.model->name),
             "leave it out: rows say samples per second");
  q.prices = prices_of(a);
  if (!a.has("on")) a.report("on", "is missing", "which machines? e.g. --on dgx-h100,dgx-h200");
  for (const std::string& name : a.list("on")) {
    try {
      HardwareProfile machine = load_hardware(name);
      if (std::any_of(q.hardware.begin(), q.hardware.end(),
                      [&](const auto& h) { return h.name == machine.name; }))
        a.report("on", fmt::format("names {} twice", machine.name));
      q.hardware.push_back(std::move(machine));
      if (const std::string taken = size_taken(name); !taken.empty()) a.note("--on " + taken);
    } catch (const InputError& e) {
      a.report(e);
    }
  }
  for (const auto& priced : q.prices) {
    const std::string& name = priced.first;
    const bool used = std::any_of(q.hardware.begin(), q.hardware.end(),
                                  [&](const auto& h) { return prices_machine(name, h); });
    if (!used && q.hardware.size() == a.list("on").size())
      a.report("price", fmt::format("\"{}\" is no machine or GPU of --on", name),
               "allowed: " + priced_names(q.hardware));
  }
  a.check();
  const SizeResult r = size(q, progress("machines"));
  if (a.flag("json"))
    print_json(json_of(q, r));
  else
    print(text_of(q, r));
  return exit_code_of(q, r);
}

/// Options of a job that vary here.
void respell(OptionSpec& o) {
  if (o.name == "gpus") {
    o.help =
        "Numbers of GPUs, separated by commas (default: one node, doubled up to 512; with a "
        "deadline also whole nodes between the doublings)";
    o.value = "N,N,...";
  } else if (o.name == "on") {
    o.help = "Machines, separated by commas";
    o.value = "HARDWARE,...";
  } else if (o.name == "replicate") {
    o.help = "Copies of the parameters (HSDP; default: the number that pays, of 1, 2, 4 and so on)";
  } else if (o.name == "checkpoint") {
    o.help = "none | full | every:K | selective (default: none or full, which is faster)";
  }
}

}  // namespace

CommandSpec size_command() {
  CommandSpec c;
  c.name = "size";
  c.summary =
      "What should we buy? Sweeps machines, GPU counts, micro-batches and checkpointing for a "
      "token budget.";
  c.examples = {{"foreshard size llama3-70b --tokens 1T --deadline 45d --on dgx-h100,dgx-h200 "
                 "--price h100=2.10/h,h200=2.60/h --checkpoint full",
                 "days, GPU-hours and price of each machine, and which meets the deadline (exit "
                 "code 4 if none does)"},
                {"foreshard size llama3-8b --gpus 8,16,32 --micro-batches 1,2,4 --on 8x-l40s",
                 "what fits and how fast"}};
  c.positionals = {model_argument()};
  c.groups = job_options();
  for (OptionGroup& g : c.groups)
    for (OptionSpec& o : g.options) respell(o);
  c.groups.push_back(
      {"Budget",
       {{"tokens", "N", "Tokens to train on, e.g. 1T, 300B", {}, true},
        {"deadline", "DAYS", "e.g. 45d", {}, true},
        {"price",
         "NAME=USD,...",
         "Price of a GPU-hour by machine or GPU, e.g. h100=2.10/h",
         {},
         true},
        {"micro-batches",
         "B,B,...",
         "Micro-batches to try (default 1,2,4,... while a doubling fits and is worth 2 %, then the "
         "largest that leaves room; with --global-batch divisors of a GPU's share)",
         {},
         true},
        {"global-batch",
         "N",
         "Sequences of one optimizer step on any number of GPUs: sets --accumulate "
         "in each row",
         {},
         true}}});
  c.groups.push_back({"Answer", {{"json", "", "One JSON document instead of text", {}, false}}});
  c.run = run_size;
  return c;
}

}  // namespace foreshard::cli
