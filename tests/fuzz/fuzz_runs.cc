// A table of measured runs.

#include "study/runs_table.h"
#include "tests/fuzz/read_or_refuse.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  return fuzz::read_or_refuse(data, size, [&](std::string_view text) {
    read_runs_table(fuzz::ScratchFile(text, ".csv").path());
  });
}
