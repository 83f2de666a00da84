// Any bytes are a model, graph file or Hugging Face config, or refused with an InputError; nothing
// else may happen.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "core/json.h"
#include "models/load_model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    model_from_json(parse_json(text, "fuzz.json"), "fuzz.json");
  } catch (const InputError&) {
  }
  return 0;
}
