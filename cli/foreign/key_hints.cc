#include "cli/foreign/deepspeed_keys.h"
#include "cli/foreign/foreign_job.h"

namespace foreshard::cli {

std::string foreign_key_hint(std::string_view name, const std::vector<std::string>& known) {
  return key_hint(name, "deepspeed", deepspeed::key_table(), known);
}

}  // namespace foreshard::cli
