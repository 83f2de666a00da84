#pragma once

// Names of hardware as people and drivers write them.

#include <optional>
#include <string>
#include <vector>

namespace foreshard {

/// A catalogue name that a text may mean.
struct Spelling {
  std::string name;                 ///< "8x-a100-80"
  std::optional<double> memory_gb;  ///< The text also says the memory; the name does not.
};

/// What `typed` (lower case) may mean, best first: blanks and underscores are dashes, "8xA100" is
/// 8x-a100, "80GB" is 80, makers and memory kinds say nothing ("NVIDIA H100 80GB HBM3"), SXM is
/// what a name without a form means, "PCIe" stands behind the chip ("A100 40GB PCIe").
std::vector<Spelling> spellings_of(const std::string& typed);

/// For a name of several sizes that is taken as the larger one ("a100" is a100-80): what was taken,
/// and what else there is; "" for all other names.
std::string size_taken(const std::string& typed);

}  // namespace foreshard
