#pragma once

// Short names of machines: a multiplier, a catalogue name and a network, as "2x-a100-80-200g" or
// "dgx-h100@4x100g-roce".

#include <optional>
#include <string>
#include <vector>

namespace foreshard {

/// What a short name such as "2x-a100-80-200g" or "dgx-h100@4x100g-roce" says beyond its catalogue
/// name.
struct ShortName {
  int multiplier = 0;          ///< "2x-"
  std::string base;            ///< catalogue name of a GPU or a machine
  std::optional<double> rate;  ///< Gb/s of each NIC
  int nics = 0;                ///< 0: as the base has
  std::string network_kind;    ///< "" as the base has
  bool rate_by_dash = false;   ///< "-200g" rather than "@200g"
};

/// InputError where the network is impossible; the base is not looked up. `networks`: names of the
/// kinds of networks, for messages.
ShortName parse_short_name(const std::string& typed, const std::vector<std::string>& networks);
/// The InputError of a name that was typed.
[[noreturn]] void bad_machine_name(const std::string& typed, std::string message, std::string hint);

}  // namespace foreshard
