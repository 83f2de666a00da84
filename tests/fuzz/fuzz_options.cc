// A --config file of options.

#include "cli/commands.h"
#include "cli/parse.h"
#include "tests/fuzz/read_or_refuse.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  return fuzz::read_or_refuse(data, size, [&](std::string_view text) {
    static const cli::CommandSpec command = cli::simulate_command();
    cli::Arguments arguments;
    cli::read_config_file(command, fuzz::ScratchFile(text, ".yaml").path(), arguments);
    arguments.check();
  });
}
