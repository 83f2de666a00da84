// A graph file or a Hugging Face configuration.

#include "core/json.h"
#include "models/load_model.h"
#include "tests/fuzz/read_or_refuse.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  return fuzz::read_or_refuse(data, size, [&](std::string_view text) {
    model_from_json(parse_json(text, "fuzz.json"), "fuzz.json");
  });
}
