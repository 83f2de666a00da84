// NCCL's topology file.

#include "hwprofiles/import_topology.h"
#include "tests/fuzz/read_or_refuse.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  return fuzz::read_or_refuse(
      data, size, [&](std::string_view text) { parse_nccl_topology_xml(text, "fuzz.xml"); });
}
