#pragma once

// Which parameters end up in which unit when modules are wrapped bottom-up: what nested fully_shard
// or FSDP calls amount to.

#include <cstdint>
#include <string>
#include <vector>

#include "models/module_tree.h"

namespace foreshard {

/// A wrap spec as on the command line: blocks | every:K | root | size:N | modules:a,b,c.
struct UnitSpec {
  enum class Kind : std::uint8_t { kBlocks, kEveryK, kRoot, kSize, kModules } kind = Kind::kBlocks;
  std::int64_t every = 1;                   ///< kEveryK: consecutive blocks of one list together.
  std::int64_t min_elements = 100'000'000;  ///< kSize: FSDP1's size-based policy (F1-G-4).
  std::vector<std::string> modules;         ///< kModules: full names or class names.
  /// Embedding a unit of its own, and [final norm, head] another; tied: [final norm, embedding,
  /// head] (F2-G-5).
  bool root_split = false;
};
/// InputError with the allowed forms.
UnitSpec parse_unit_spec(const std::string& text);

struct UnitFact {
  std::string name;  ///< Module name, names joined by " + ", or "root".
  Elements numel;    ///< A tensor tied within the unit counts once.
};

/// Root first, then units in registration order, then embedding and tail. Each parameter belongs to
/// the first claim, inner modules claim first; a tied tensor whose other owner stays outside is
/// taken by the root a second time. InputError for a module name that does not exist.
std::vector<UnitFact> model_units(const Model& model, const UnitSpec& spec);

/// The rule by which accelerate and torchtitan find the final norm differs for nested text models:
/// accelerate looks only among the direct children of the base model. The tail unit's modules under
/// each rule.
enum class TailRule : std::uint8_t { kOwnNorm, kBaseModelNorm };
std::vector<UnitFact> split_units(const Model& model, TailRule rule);

}  // namespace foreshard
