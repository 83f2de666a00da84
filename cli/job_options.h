#pragma once

// The options that describe a training job; shared by simulate, plan, tune, size and run.

#include "cli/command.h"
#include "core/enum_names.h"
#include "schedules/structure.h"
#include "study/job.h"

namespace foreshard::cli {

/// Option groups "Job", "Sharding", "Training", and one for the knobs of each framework.
std::vector<OptionGroup> job_options();
/// LoRA and QLoRA on the model; and the model's request with what was given of them
/// ("NAME?lora_rank=16&..."); options without a rank are reported.
OptionGroup adapter_options();
std::string with_adapters(std::string model, Arguments& arguments);
/// --wrap and --root-split, as every command that forms units takes them.
std::vector<OptionSpec> wrap_options();
/// The positional argument MODEL.
PositionalSpec model_argument();

inline constexpr std::int64_t kMostGpus = kLargestWorld;
inline constexpr double kThousandTokens = 1024;  ///< The k of "--seq 8k".
/// A floating-point dtype; nullopt if the option is absent or (reported) none.
std::optional<DType> read_dtype(Arguments& arguments, const std::string& option);
/// Reads --wrap and --root-split; what is wrong is reported.
void read_wrap(Arguments& arguments, FrameworkKind framework, WrapPolicy& wrap);

/// Which parts of a job a command needs.
struct JobNeeds {
  enum class Hardware : std::uint8_t { kRequired, kOptional, kLeftToCaller };
  Hardware hardware = Hardware::kRequired;  ///< --on.
  bool gpus = true;                         ///< The same for --gpus.
};
/// Reads the job. Problems are reported to `arguments` (which the caller checks); the job is then
/// incomplete.
Job read_job(Arguments& arguments, const JobNeeds& needs = {});

}  // namespace foreshard::cli
