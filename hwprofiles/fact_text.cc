#include "hwprofiles/fact_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

#include "core/enum_names.h"
#include "core/json.h"

namespace foreshard {
namespace {

constexpr EnumName<FactKind> kKinds[] = {
    {FactKind::kDatasheet, "datasheet"},   {FactKind::kRecalled, "recalled"},
    {FactKind::kMeasured, "measured"},     {FactKind::kAssumed, "assumed"},
    {FactKind::kCalibrated, "calibrated"},
};
static_assert(names_each(kKinds));

struct Unit {
  std::string_view name;
  double factor;
};

/// Units of a dimension; the first is the base unit. Memory as sold is decimal (GB), as installed
/// binary (GiB).
std::vector<Unit> unit_table(Dimension dimension) {
  switch (dimension) {
    case Dimension::kCount:
      return {{"", 1}};
    case Dimension::kBytes:
      return {{"B", 1},           {"kB", 1e3},           {"MB", 1e6},
              {"GB", 1e9},        {"TB", 1e12},          {"KiB", 1024.0},
              {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
    case Dimension::kBytesPerSecond:
      return {{"B/s", 1},        {"MB/s", 1e6},     {"GB/s", 1e9},     {"TB/s", 1e12},
              {"Mb/s", 1e6 / 8}, {"Gb/s", 1e9 / 8}, {"Tb/s", 1e12 / 8}};
    case Dimension::kFlopsPerSecond:
      return {{"FLOP/s", 1}, {"GFLOP/s", 1e9}, {"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}};
    case Dimension::kSeconds:
      return {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
    case Dimension::kWatts:
      return {{"W", 1}, {"kW", 1e3}};
    case Dimension::kMoney:
      return {{"USD/h", 1}};
  }
  return {};
}

std::string allowed_units(Dimension dimension) {
  return fmt::format("allowed: {}", fmt::join(units_of(dimension), ", "));
}

/// Splits "50 GB/s" into number and unit; nothing if it does not start with a number.
std::optional<std::pair<double, std::string_view>> split_quantity(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  auto unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  while (!unit.empty() && unit.back() == ' ') unit.remove_suffix(1);
  return std::pair{value, unit};
}

struct Reading {
  ObjectReader& object;
  std::string_view key;
  Dimension dimension;

  void store(double value, std::string_view unit, FactKind kind, std::string source,
             Fact& fact) const {
    const auto factor = unit_factor(dimension, unit);
    if (!factor) {
      const auto found = unit.empty() ? std::string("no unit") : fmt::format("unit \"{}\"", unit);
      object.report(key, found + " does not fit here", allowed_units(dimension));
      return;
    }
    const double base = value * *factor;
    if (!(base >= 0 && base < 1e30)) {
      object.report(key, fmt::format("{} is out of range", value), "a number from 0 up");
      return;
    }
    fact = Fact{base, dimension, kind, std::move(source)};
  }

  void short_form(double value, std::string_view unit, const FactDefaults& defaults,
                  Fact& fact) const {
    if (defaults.source.empty() || !defaults.kind) {
      object.report(
          key, "this number has no source",
          "write {value, unit, kind, source}, or \"source\" and \"kind\" once for the whole file");
      return;
    }
    store(value, unit, *defaults.kind, defaults.source, fact);
  }

  void long_form(const Json& value, const FactDefaults& defaults, Fact& fact) const {
    ObjectReader reader(value, object.path_of(key), object.issues());
    const double number = reader.number("value", std::nan(""), 0, 1e30);
    const auto unit = reader.string("unit", "");
    const auto kind = reader.choice(
        "kind", defaults.kind ? std::string(name_of(*defaults.kind)) : "", fact_kind_names());
    const auto source = reader.string("source", defaults.source);
    const double uncertainty = reader.number("uncertainty", std::nan(""), 0, 10);
    const double prior = reader.number("prior", std::nan(""), 0, 1e30);
    if (!reader.has("value")) reader.report("value", "missing", "a number");
    if (kind.empty())
      reader.report("kind", "missing", fmt::format("{}", fmt::join(fact_kind_names(), ", ")));
    if (source.empty())
      reader.report("source", "missing", "where the number comes from, in a few words");
    reader.finish();
    if (std::isnan(number) || source.empty()) return;
    const auto parsed = parse_fact_kind(kind);
    if (!parsed) return;
    store(number, unit, *parsed, source, fact);
    fact.uncertainty = uncertainty;
    fact.prior = prior * unit_factor(dimension, unit).value_or(1);
  }
};

/// Scales to the largest unit of a list that keeps the number at or above one.
std::string scaled(double value, std::initializer_list<Unit> units) {
  for (const auto& unit : units) {
    if (value >= unit.factor) return fmt::format("{:.4g} {}", value / unit.factor, unit.name);
  }
  const auto& last = *(units.end() - 1);
  return fmt::format("{:.4g} {}", value / last.factor, last.name);
}

}  // namespace

std::string_view name_of(FactKind kind) { return name_in(kKinds, kind); }

std::optional<FactKind> parse_fact_kind(std::string_view text) {
  for (const auto& row : kKinds)
    if (text == row.name) return row.value;
  return std::nullopt;
}

std::vector<std::string> fact_kind_names() {
  std::vector<std::string> names;
  for (const auto& row : kKinds) names.emplace_back(row.name);
  return names;
}

std::string_view base_unit(Dimension dimension) {
  constexpr std::string_view names[] = {"", "B", "B/s", "FLOP/s", "s", "W", "USD/h"};
  static_assert(std::size(names) == kEnumerators<Dimension>);
  return names[static_cast<int>(dimension)];
}

std::vector<std::string> units_of(Dimension dimension) {
  std::vector<std::string> names;
  for (const auto& unit : unit_table(dimension))
    names.emplace_back(unit.name.empty() ? "none" : unit.name);
  return names;
}

std::optional<double> unit_factor(Dimension dimension, std::string_view unit) {
  for (const auto& candidate : unit_table(dimension)) {
    if (candidate.name == unit) return candidate.factor;
  }
  return std::nullopt;
}

void read_fact(ObjectReader& object, std::string_view key, Dimension dimension,
               const FactDefaults& defaults, Fact& fact) {
  const Json* value = object.get(key);
  if (value == nullptr || value->is_null()) return;
  const Reading reading{object, key, dimension};
  if (value->is_object()) {
    reading.long_form(*value, defaults, fact);
  } else if (value->is_number()) {
    reading.short_form(value->get<double>(), "", defaults, fact);
  } else if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    const auto parts = split_quantity(text);
    if (!parts) {
      object.report(key, describe_json(*value) + " is not a number with a unit",
                    "such as \"50 GB/s\"");
    } else {
      reading.short_form(parts->first, parts->second, defaults, fact);
    }
  } else {
    object.report(key, describe_json(*value) + " is not a number with provenance",
                  "{value, unit, kind, source} or \"50 GB/s\"");
  }
}

Json fact_to_json(const Fact& fact) {
  Json json = Json::object();
  if (fact.value == std::floor(fact.value) && std::abs(fact.value) < 9e15) {
    json["value"] = static_cast<std::int64_t>(fact.value);
  } else {
    json["value"] = fact.value;
  }
  if (fact.dimension != Dimension::kCount) json["unit"] = base_unit(fact.dimension);
  json["kind"] = name_of(fact.kind);
  json["source"] = fact.source;
  if (!std::isnan(fact.uncertainty)) json["uncertainty"] = fact.uncertainty;
  if (!std::isnan(fact.prior)) json["prior"] = fact.prior;
  return json;
}

std::string format_fact(const Fact& fact) {
  if (!fact.known()) return "unknown";
  switch (fact.dimension) {
    case Dimension::kCount:
      return fmt::format("{:.6g}", fact.value);
    case Dimension::kBytes: {
      const double gib = fact.value / (1 << 30);
      if (gib >= 1 && std::fmod(fact.value, 1e9) != 0) return fmt::format("{:.4g} GiB", gib);
      return scaled(fact.value, {{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1}});
    }
    case Dimension::kBytesPerSecond:
      return scaled(fact.value, {{"TB/s", 1e12}, {"GB/s", 1e9}, {"MB/s", 1e6}, {"B/s", 1}});
    case Dimension::kFlopsPerSecond:
      return scaled(fact.value,
                    {{"PFLOP/s", 1e15}, {"TFLOP/s", 1e12}, {"GFLOP/s", 1e9}, {"FLOP/s", 1}});
    case Dimension::kSeconds:
      return scaled(fact.value, {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}});
    case Dimension::kWatts:
      return fmt::format("{:.4g} W", fact.value);
    case Dimension::kMoney:
      return fmt::format("{:.2f} USD/h", fact.value);
  }
  return {};
}

}  // namespace foreshard
