#pragma once

// Reading and writing facts: units and the two forms that a profile file may use.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json_fwd.h"
#include "hwprofiles/fact.h"

namespace foreshard {

class ObjectReader;

/// Source and kind that numbers in short form inherit from the object around them.
struct FactDefaults {
  std::string source;
  std::optional<FactKind> kind;
};

/// Units accepted for a dimension, base unit first ("B/s", "kB/s", ..., "Gb/s").
std::vector<std::string> units_of(Dimension dimension);
/// How many base units one `unit` holds; nothing if it is no unit of that dimension.
std::optional<double> unit_factor(Dimension dimension, std::string_view unit);

/// Reads `key` of `object` into `fact` if present: {"value", "unit", "kind", "source"} or the short
/// forms "50 GB/s" and 8 (counts only), which need defaults. Problems go to the reader's issue
/// list.
void read_fact(ObjectReader& object, std::string_view key, Dimension dimension,
               const FactDefaults& defaults, Fact& fact);
/// The long form in base units.
Json fact_to_json(const Fact& fact);
/// "3.35 TB/s", "80 GB", "1.4 us", "132": value with a unit for people.
std::string format_fact(const Fact& fact);

std::optional<FactKind> parse_fact_kind(std::string_view text);
/// All names, for readers and messages.
std::vector<std::string> fact_kind_names();

}  // namespace foreshard
