// A series of published ratios.

#include "cli/ratio_cases.h"
#include "tests/fuzz/read_or_refuse.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  return fuzz::read_or_refuse(data, size, [&](std::string_view text) {
    cli::read_ratio_cases(fuzz::ScratchFile(text, ".yaml").path());
  });
}
