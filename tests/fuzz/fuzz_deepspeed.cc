// A job file of DeepSpeed; what is read can be written as options and as JSON.

#include "cli/foreign/foreign_job.h"
#include "core/json.h"
#include "tests/fuzz/read_or_refuse.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  return fuzz::read_or_refuse(data, size, [&](std::string_view text) {
    const cli::ForeignJob job = cli::import_deepspeed(text, "fuzz.json", 8);
    cli::options_file(job);
    cli::describe(job);
    cli::to_json(job).dump();
  });
}
