#include "cli/numerics.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/rounding.h"

namespace foreshard::cli {
namespace {

constexpr double kSumsInAnotherOrder = 1e-5;

double coarsest_unit(const Schedule& s) {
  double u = 0;
  for (const RankProgram& p : s.programs) {
    for (const Launch& l : p.launches) u = std::max(u, rounding_unit(l.dtype));
    for (const Collective& c : p.collectives) u = std::max(u, rounding_unit(c.dtype));
  }
  return u;
}

double launches_of_a_step(const Schedule& s) {
  const RankProgram& p = s.programs.front();
  if (p.steps.empty()) return 0;
  const auto begin = p.instructions.begin() + p.steps.back().begin,
             end = p.instructions.begin() + p.steps.back().end;
  return static_cast<double>(std::count_if(
      begin, end, [](const Instruction& i) { return i.kind == InstructionKind::kLaunch; }));
}

/// -1 to 1, the same in every run.
double noise(const std::string& name, std::int64_t index) {
  std::uint64_t h = std::hash<std::string>{}(name) + static_cast<std::uint64_t>(index);
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ULL;  // splitmix64
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebULL;
  h ^= h >> 31;
  return static_cast<double>(h >> 11) * 0x1p-52 - 1;
}

Trace run_moved(const Schedule& reference, RunOptions options, double unit) {
  const Initializer plain = options.initialize ? options.initialize : default_initial_value;
  options.initialize = [plain, unit](const std::string& name,
                                     const std::vector<std::int64_t>& shape, std::int64_t index) {
    return plain(name, shape, index) * (1 + unit * noise(name, index));
  };
  return run(reference, options).trace;
}

double relative(double a, double b) { return std::abs(a - b) / std::max(1e-12, std::abs(b)); }

}  // namespace

Numerics compare_to_reference(const Schedule& sharded, const Trace& found,
                              const Schedule& reference, const RunOptions& options) {
  const double unit = std::max(coarsest_unit(sharded), coarsest_unit(reference));
  const double roundings = std::sqrt(launches_of_a_step(reference));
  const Trace expected = run(reference, options).trace, moved = run_moved(reference, options, unit);
  Numerics out;
  double worst = -1;
  const auto compare = [&](const std::vector<double>& a, const std::vector<double>& b,
                           const std::vector<double>& m) {
    double sensitivity = 0;
    for (std::size_t i = 0; i < std::min({a.size(), b.size(), m.size()}); ++i) {
      sensitivity = std::max(sensitivity, relative(m[i], b[i]));
      const double allowed = std::max(kSumsInAnotherOrder, unit) + roundings * sensitivity;
      const double difference = std::isfinite(a[i]) == std::isfinite(b[i])
                                    ? (std::isfinite(a[i]) ? relative(a[i], b[i]) : 0)
                                    : HUGE_VAL;
      out.max_relative_difference = std::max(out.max_relative_difference, difference);
      if (difference / allowed <= worst) continue;
      worst = difference / allowed;
      out.difference = difference;
      out.allowed = allowed;
    }
  };
  compare(found.losses, expected.losses, moved.losses);
  compare(found.gradient_norms, expected.gradient_norms, moved.gradient_norms);
  return out;
}

}  // namespace foreshard::cli
