#include "sim/cost/collective_calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"
#include "core/format.h"
#include "sim/cost/collective_lines.h"

namespace foreshard {
namespace {

/// A fitted scale: where it lives and how far it may stray (standard deviation of its logarithm).
struct Parameter {
  const char* key;
  double CollectiveTuning::*member;
  double spread;
};
constexpr Parameter kParameters[] = {
    {"latency_scale", &CollectiveTuning::latency, 0.4},
    {"small_message_rate_scale", &CollectiveTuning::small_rate, 0.4},
    {"simple_latency_scale", &CollectiveTuning::simple_latency, 0.4},
    {"link_rate_scale", &CollectiveTuning::link_rate, 0.14},
    {"nvls_rate_scale", &CollectiveTuning::nvls_rate, 0.14},
    {"network_latency_scale", &CollectiveTuning::network_latency, 0.4},
    {"network_rate_scale", &CollectiveTuning::network_rate, 0.22},
};
constexpr std::size_t kScales = std::size(kParameters);
/// The last entry scales the benchmark's overhead.
using Point = std::array<double, kScales + 1>;
constexpr double kOverheadSpread = 0.4;
constexpr double kHuber = 0.08;

/// Below this share of its catalogue rate a link class is reported.
constexpr double kSlowLink = 0.75;
/// Above this error a size is reported.
constexpr double kLargeError = 0.25;

double with_overhead(double us, const BenchmarkOverhead& overhead) {
  return std::max(us + overhead.added_us, overhead.floor_us);
}

CollectiveTuning tuning_at(const Point& logs) {
  CollectiveTuning tuning;
  for (std::size_t i = 0; i < kScales; ++i) tuning.*kParameters[i].member = std::exp(logs[i]);
  return tuning;
}

BenchmarkOverhead overhead_at(const Point& logs, const BenchmarkOverhead& expected) {
  const double scale = std::exp(logs.back());
  return {expected.floor_us * scale, expected.added_us * scale};
}

/// The penalised misfit of a point: tables weigh alike, the prior weighs as much as one table's
/// misfit.
class Objective {
 public:
  explicit Objective(std::span<const CalibrationInput> inputs) : inputs_(inputs) {
    for (const auto& input : inputs)
      settings_.push_back(collective_setting(input.profile, input.placement, {}));
    for (const auto& input : inputs) most_samples_ = std::max(most_samples_, input.samples.size());
  }

  double operator()(const Point& logs) const {
    double sum = prior(logs);
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const double weight =
          static_cast<double>(most_samples_) / static_cast<double>(inputs_[i].samples.size());
      sum += weight * misfit(inputs_[i], settings_[i], logs);
    }
    return sum;
  }

 private:
  static double misfit(const CalibrationInput& input, const CollectiveSetting& setting,
                       const Point& logs) {
    const auto lines = collective_lines(input.kind, with_tuning(setting, tuning_at(logs)));
    const auto overhead = overhead_at(logs, input.overhead);
    double loss = 0;
    for (const auto& sample : input.samples) {
      const double us =
          with_overhead(fastest_us(lines, static_cast<double>(sample.bytes.value)), overhead);
      const double error = std::abs(std::log(us * 1e-6 / sample.seconds));
      loss += error < kHuber ? error * error : kHuber * (2 * error - kHuber);
    }
    return loss / (kHuber * kHuber);
  }
  static double prior(const Point& logs) {
    double sum = 0;
    for (std::size_t i = 0; i < logs.size(); ++i) {
      const double spread = i < kScales ? kParameters[i].spread : kOverheadSpread;
      sum += logs[i] * logs[i] / (spread * spread);
    }
    return sum;
  }
  std::span<const CalibrationInput> inputs_;
  std::vector<CollectiveSetting> settings_;
  std::size_t most_samples_ = 1;
};

/// Pattern search: tries each coordinate both ways, keeps what helps, halves the step where nothing
/// does.
Point minimise(const Objective& objective) {
  Point point{};
  double best = objective(point);
  for (double step = 0.3; step > 0.002;) {
    bool moved = false;
    for (std::size_t i = 0; i < point.size(); ++i) {
      for (const double change : {step, -step}) {
        Point trial = point;
        trial[i] += change;
        const double value = objective(trial);
        if (value >= best - 1e-9) continue;
        best = value;
        point = trial;
        moved = true;
      }
    }
    if (!moved) step /= 2;
  }
  return point;
}

void check_samples(const CalibrationInput& input) {
  IssueList issues("calibration");
  if (input.samples.empty()) issues.add("", "no measured sizes", "a table of sizes and times");
  for (const auto& sample : input.samples) {
    if (!(sample.seconds > 0) || sample.bytes.value < 0) {
      issues.add("", fmt::format("{} bytes in {} s is no measurement", sample.bytes.value,
                                 sample.seconds));
    }
  }
  issues.throw_if_any();
}

void add_link_warning(CollectiveCalibration& result, double scale, const std::string& what,
                      double rate_gb) {
  if (scale >= kSlowLink) return;
  result.warnings.push_back(
      fmt::format("{} reaches {:.0f} % of what its kind gives ({:.1f} of {:.1f} GB/s): look for a "
                  "disabled link, a wrong setting or "
                  "a lower class of hardware",
                  what, 100 * scale, scale * rate_gb, rate_gb));
}

void add_warnings(CollectiveCalibration& result) {
  const auto setting = collective_setting(result.input.profile, result.input.placement, {});
  if (std::isfinite(setting.ring)) {
    add_link_warning(result, result.tuning.link_rate, setting.over_nvlink ? "NVLink" : "PCIe",
                     setting.ring);
    add_link_warning(result, result.tuning.nvls_rate, "NVLS", setting.constants.nvls.rate);
  }
  if (setting.nodes > 1)
    add_link_warning(result, result.tuning.network_rate, "the network", setting.network);
  int large = 0;
  for (const auto& residual : result.residuals)
    large += std::abs(residual.error()) > kLargeError ? 1 : 0;
  if (large > 0) {
    result.warnings.push_back(
        fmt::format("{} of {} sizes lie more than {:.0f} % from the fitted model", large,
                    result.residuals.size(), 100 * kLargeError));
  }
}

CollectiveCalibration result_at(const Point& point, const CalibrationInput& input) {
  CollectiveCalibration result;
  result.input = input;
  result.tuning = tuning_at(point);
  result.overhead = overhead_at(point, input.overhead);
  const CollectiveModel model(input.profile, input.placement, result.tuning);
  for (const auto& sample : input.samples) {
    result.residuals.push_back(
        {sample.bytes, sample.seconds,
         benchmark_seconds(model, input.kind, sample.bytes, result.overhead)});
    const double error = std::abs(result.residuals.back().error());
    result.mean_error += error / static_cast<double>(input.samples.size());
    result.worst_error = std::max(result.worst_error, error);
  }
  add_warnings(result);
  return result;
}

}  // namespace

double benchmark_seconds(const CollectiveModel& model, CollectiveKind kind, Bytes bytes,
                         const BenchmarkOverhead& overhead) {
  return with_overhead(to_seconds(model.cost(kind, bytes).time) * 1e6, overhead) * 1e-6;
}

double CollectiveCalibration::predict(Bytes bytes) const {
  const CollectiveModel model(input.profile, input.placement, tuning);
  const double plain = benchmark_seconds(model, input.kind, bytes, overhead);
  const auto above = std::find_if(residuals.begin(), residuals.end(),
                                  [&](const auto& r) { return r.bytes >= bytes; });
  if (above == residuals.end()) return plain * std::exp(residuals.back().correction());
  if (above == residuals.begin()) return plain * std::exp(above->correction());
  const auto below = above - 1;
  const auto log_of = [](Bytes b) {
    return std::log(static_cast<double>(std::max<std::int64_t>(b.value, 1)));
  };
  const double width = log_of(above->bytes) - log_of(below->bytes);
  const double share = width > 0 ? (log_of(bytes) - log_of(below->bytes)) / width : 1;
  return plain * std::exp(below->correction() * (1 - share) + above->correction() * share);
}

CollectiveCalibration calibrate_collectives(const CalibrationInput& input) {
  return calibrate_jointly(std::span(&input, 1)).front();
}

std::vector<CollectiveCalibration> calibrate_jointly(std::span<const CalibrationInput> inputs) {
  if (inputs.empty()) throw InputError({"calibration", "", "no tables", "one or more"});
  for (const auto& input : inputs) check_samples(input);
  const Point point = minimise(Objective(inputs));
  std::vector<CollectiveCalibration> results;
  for (const auto& input : inputs) results.push_back(result_at(point, input));
  return results;
}

HardwareProfile with_calibration(HardwareProfile profile, const CollectiveCalibration& calibration,
                                 const std::string& source) {
  for (const auto& parameter : kParameters) {
    const double scale = calibration.tuning.*parameter.member;
    if (std::abs(std::log(scale)) < 1e-3) continue;  // the table does not depend on it
    profile.collectives[parameter.key] =
        Fact{scale, Dimension::kCount, FactKind::kCalibrated, source};
  }
  return profile;
}

}  // namespace foreshard
