// A schedule file; one that can be read is also validated.

#include "schedules/json.h"
#include "schedules/validate.h"
#include "tests/fuzz/read_or_refuse.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  return fuzz::read_or_refuse(
      data, size, [&](std::string_view text) { validate(parse_schedule(text, "fuzz.json")); });
}
