#include "cli/foreign/accelerate_keys.h"
#include "cli/foreign/deepspeed_keys.h"
#include "cli/foreign/foreign_job.h"
#include "cli/foreign/torchtitan_keys.h"

namespace foreshard::cli {

std::string foreign_key_hint(std::string_view name, const std::vector<std::string>& known) {
  std::string hint = key_hint(name, "deepspeed", deepspeed::key_table(), known);
  if (hint.empty()) hint = key_hint(name, "accelerate", accelerate::key_table(), known);
  return hint.empty() ? key_hint(name, "torchtitan", torchtitan::key_table(), known) : hint;
}

}  // namespace foreshard::cli
