// A hardware profile.

#include "hwprofiles/profile.h"
#include "tests/fuzz/read_or_refuse.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  return fuzz::read_or_refuse(data, size, [&](std::string_view text) {
    parse_hardware(text, size % 2 == 0 ? "fuzz.json" : "fuzz.yaml");
  });
}
