#pragma once

// The fields of each profile part in file order: one table serves the reader, the writer and
// `all_facts`.

#include <span>
#include <string_view>

#include "hwprofiles/profile.h"

namespace foreshard {

/// A fact of struct T: its key in files, its member, its dimension, and whether a profile is
/// useless without it.
template <typename T>
struct Field {
  std::string_view key;
  Fact T::*member;
  Dimension dimension;
  enum class Need : std::uint8_t { kRequired, kPositive, kOptional } need;
};

std::span<const Field<GpuProfile>> gpu_fields();
std::span<const Field<NodeProfile>> node_fields();
std::span<const Field<NetworkProfile>> network_fields();

/// A named efficiency of a GPU and its dimension.
struct EfficiencyName {
  std::string_view key;
  Dimension dimension;
};
/// All names that `efficiency` may hold (docs/formats/hardware.md says what each means).
std::span<const EfficiencyName> efficiency_names();
/// All names that `collectives` may hold.
std::span<const EfficiencyName> collective_parameter_names();

}  // namespace foreshard
