#pragma once

// Job files of other programs (DeepSpeed, Accelerate, torchtitan) as options of ours: what becomes
// of each key, and the options file that asks for the same job.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/json_fwd.h"

namespace foreshard::cli {

enum class Becomes : std::uint8_t {
  kOption,      ///< An option of ours says the same.
  kSamePlan,    ///< Changes nothing that a plan says.
  kNotModelled  ///< The plan is that without it.
};

/// What became of one key of the file.
struct ForeignKey {
  std::string key;    ///< Path with dots.
  std::string value;  ///< As JSON; "" where the file does not have it.
  Becomes becomes = Becomes::kSamePlan;
  std::string says;  ///< Which option, why nothing changes, what the plan lacks.
};

/// A line of the options file.
struct JobSetting {
  std::string option, value;
  std::string from;  ///< The key behind it, or the rule where the file says nothing.
};

/// What neither the file nor a default of its program says.
struct OpenSetting {
  std::string option;
  std::string taken;  ///< What our commands take where the option is not given; "" if they ask.
  std::string says;   ///< Who knows it.
};

struct ForeignJob {
  std::string program;  ///< "DeepSpeed 0.19.8"
  std::string file;
  std::vector<ForeignKey> keys;
  std::vector<JobSetting> settings;
  std::vector<OpenSetting> open;
};

/// The kinds that `import` takes.
inline constexpr std::string_view kForeignJobKinds[] = {"deepspeed", "accelerate", "torchtitan"};

/// Reads one file of such a kind. `gpus` 0: not said. InputError with everything that is wrong or
/// cannot be planned.
ForeignJob import_deepspeed(std::string_view text, const std::string& file, std::int64_t gpus);
ForeignJob import_accelerate(std::string_view text, const std::string& file, std::int64_t gpus);
ForeignJob import_torchtitan(std::string_view text, const std::string& file, std::int64_t gpus);

/// What to say of an option that bears the name of a key of one of these programs; "" if none does.
std::string foreign_key_hint(std::string_view name, const std::vector<std::string>& known);

/// The kind whose keys these are ("deepspeed"), for a file that was taken for one of options; "" if
/// none.
std::string_view foreign_job_kind(const std::vector<std::string>& top_keys);
/// The same for a file in TOML, which is no YAML.
std::string_view foreign_job_kind_of_text(std::string_view text);

/// The options file (YAML), each line with the key behind it, and below it what else became of the
/// file's keys.
std::string options_file(const ForeignJob& job);
/// What became of each key, for people.
std::string describe(const ForeignJob& job);
Json to_json(const ForeignJob& job);

}  // namespace foreshard::cli
