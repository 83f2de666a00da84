#pragma once

// A number of a hardware profile together with where it comes from.

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

namespace foreshard {

/// How a number came about; printed with every answer that rests on it.
enum class FactKind : std::uint8_t {
  kDatasheet,
  kRecalled,  ///< Of a data sheet or a manual by memory: nobody has looked it up.
  kMeasured,
  kAssumed,
  kCalibrated,
};
std::string_view name_of(FactKind kind);

/// What a number counts. Facts are stored in the base unit named here, whatever unit the file used.
enum class Dimension : std::uint8_t {
  kCount,           ///< "" (also fractions and factors)
  kBytes,           ///< "B"
  kBytesPerSecond,  ///< "B/s"
  kFlopsPerSecond,  ///< "FLOP/s", a multiply-add counts two
  kSeconds,         ///< "s"
  kWatts,           ///< "W"
  kMoney,           ///< "USD/h" or "USD"
};
std::string_view base_unit(Dimension dimension);

/// One number with provenance. Unknown facts hold NaN and no source; `known()` tells.
struct Fact {
  double value = std::nan("");
  Dimension dimension = Dimension::kCount;
  FactKind kind = FactKind::kAssumed;
  std::string source;
  /// Standard deviation relative to the value; NaN where nobody says.
  double uncertainty = std::nan("");
  /// Of a calibrated number: its value before any training run was looked at; NaN for all others.
  double prior = std::nan("");

  bool known() const { return !std::isnan(value); }
  double value_or(double fallback) const { return known() ? value : fallback; }
  std::int64_t count() const { return known() ? std::llround(value) : 0; }
};

}  // namespace foreshard
