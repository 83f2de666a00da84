// How an imported job is written: as a file of options, for people, as JSON.

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "cli/foreign/foreign_job.h"
#include "core/json.h"
#include "core/text.h"

namespace foreshard::cli {
namespace {

constexpr std::size_t kValueColumn = 44;

/// A value as YAML has it: quoted where it could be something else than a word or a number.
std::string yaml_value(const std::string& value) {
  constexpr std::string_view kPlain = "_.,:/+-";
  const bool plain = !value.empty() && value.front() != '-' && value.back() != ':' &&
                     std::all_of(value.begin(), value.end(), [&](char c) {
                       return std::isalnum(static_cast<unsigned char>(c)) ||
                              kPlain.find(c) != std::string_view::npos;
                     });
  return plain ? value : Json(value).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string line(const std::string& option, const std::string& value, const std::string& comment) {
  return fmt::format("{:<{}}  # {}\n", option + ": " + yaml_value(value), kValueColumn, comment);
}

std::string_view title_of(Becomes becomes) {
  switch (becomes) {
    case Becomes::kOption:
      return "taken";
    case Becomes::kSamePlan:
      return "same plan";
    case Becomes::kNotModelled:
      return "not modelled";
  }
  throw InternalError("what becomes of a key");
}

/// Lines of the options file with the key or default behind each.
std::string settings_of(const ForeignJob& job) {
  std::string out;
  for (const JobSetting& s : job.settings)
    out += fmt::format("  {:<{}}  <-  {}\n", s.option + ": " + s.value, kValueColumn, s.from);
  return out;
}

std::string keys_that(const ForeignJob& job, Becomes becomes, const std::string& indent) {
  std::string out;
  for (const ForeignKey& k : job.keys) {
    if (k.becomes != becomes) continue;
    out +=
        fmt::format("{}{}{}  ({})\n", indent, k.key, k.value.empty() ? "" : ": " + k.value, k.says);
  }
  return out;
}

std::string section(const ForeignJob& job, Becomes becomes, const std::string& title,
                    const std::string& indent) {
  const std::string lines = keys_that(job, becomes, indent);
  return lines.empty() ? "" : title + lines;
}

bool starts_a_table(std::string_view text, std::string_view header) {
  const std::size_t at = text.find(header);
  return at != std::string_view::npos && (at == 0 || text[at - 1] == '\n');
}

}  // namespace

std::string options_file(const ForeignJob& job) {
  std::string out = fmt::format(
      "# {}, as {} reads it; for foreshard simulate MODEL --gpus N --on HARDWARE --config FILE\n",
      Json(job.file).dump(-1, ' ', false, Json::error_handler_t::replace), job.program);
  for (const JobSetting& s : job.settings) out += line(s.option, s.value, s.from);
  if (!job.open.empty())
    out += "\n# Open: the file does not say it. Take the # away to say it here.\n";
  for (const OpenSetting& o : job.open) out += "# " + line(o.option, o.taken, o.says);
  out += section(job, Becomes::kNotModelled, "\n# Not modelled: the plan is that without it.\n",
                 "#   ");
  return out + section(job, Becomes::kSamePlan, "\n# Same plan with and without it.\n", "#   ");
}

std::string describe(const ForeignJob& job) {
  std::string out =
      fmt::format("{}: {} keys, read as {} reads them\n", job.file, job.keys.size(), job.program);
  out += "taken\n" + settings_of(job);
  out += section(job, Becomes::kNotModelled, "not modelled: the plan is that without it\n", "  ");
  out += section(job, Becomes::kSamePlan, "same plan\n", "  ");
  if (!job.open.empty()) out += "open: the file does not say it\n";
  for (const OpenSetting& o : job.open)
    out += fmt::format("  --{} ({}){}\n", o.option, o.says,
                       o.taken.empty() ? "" : ", otherwise " + o.taken);
  return out;
}

Json to_json(const ForeignJob& job) {
  Json out;
  out["program"] = job.program;
  out["file"] = job.file;
  out["options"] = Json::object();
  for (const JobSetting& s : job.settings) out["options"][s.option] = s.value;
  out["open"] = Json::array();
  for (const OpenSetting& o : job.open)
    out["open"].push_back({{"option", o.option}, {"otherwise", o.taken}, {"says", o.says}});
  out["keys"] = Json::array();
  for (const ForeignKey& k : job.keys)
    out["keys"].push_back({{"key", k.key},
                           {"value", k.value},
                           {"becomes", std::string(title_of(k.becomes))},
                           {"says", k.says}});
  return out;
}

std::string_view foreign_job_kind(const std::vector<std::string>& top_keys) {
  const auto any = [&](std::initializer_list<std::string_view> names) {
    return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
      return std::find(top_keys.begin(), top_keys.end(), name) != top_keys.end();
    });
  };
  if (any({"distributed_type", "fsdp_config", "deepspeed_config", "compute_environment"}))
    return "accelerate";
  return any({"zero_optimization", "train_micro_batch_size_per_gpu"}) ? "deepspeed" : "";
}

std::string_view foreign_job_kind_of_text(std::string_view text) {
  for (const char* table : {"[parallelism]", "[training]", "[activation_checkpoint]", "[job]"})
    if (starts_a_table(text, table)) return "torchtitan";
  return "";
}

}  // namespace foreshard::cli
