#include "study/score_ratios.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <iterator>

#include "core/enum_names.h"
#include "study/evaluate.h"

namespace foreshard {
namespace {

/// Ends of the forward and the backward part of the last step on the rank of the trace, from the
/// step's start.
struct PhaseEnds {
  Time forward, backward;
};

Phase phase_of(const RankProgram& program, const Instruction& in) {
  if (in.kind == InstructionKind::kLaunch) return program.launches[in.id].phase;
  if (in.kind == InstructionKind::kCollective) return program.collectives[in.id].phase;
  return Phase::kOther;
}

PhaseEnds phase_ends(const Schedule& schedule, const SimulationResult& result) {
  PhaseEnds ends;
  const auto rank = static_cast<std::int32_t>(result.explained_rank);
  const RankProgram& program = schedule.program_for(rank);
  std::int32_t last = 0;
  for (const Span& span : result.trace->spans) last = std::max(last, span.step);
  for (const Span& span : result.trace->spans) {
    if (span.rank != rank || span.step != last || span.lane != Lane::kStream) continue;
    const Instruction& in = program.instructions[span.instruction];
    const Time end = span.end - result.step_start;
    const Phase phase = phase_of(program, in);
    if (phase == Phase::kForward && in.kind == InstructionKind::kLaunch)
      ends.forward = std::max(ends.forward, end);
    if (phase == Phase::kBackward || phase == Phase::kRecompute)
      ends.backward = std::max(ends.backward, end);
  }
  return ends;
}

struct SideAnswer {
  double value = 0;
  Time step, exposed;
};

SideAnswer predict(const RatioSide& side) {
  SimulationOptions options;
  using M = RatioMeasure;
  const bool phases = side.measure == M::kForwardRate || side.measure == M::kForwardTime ||
                      side.measure == M::kBackwardTime;
  if (phases) options.detail = Detail::kTrace;
  const Evaluation e = evaluate(side.job, options);
  SideAnswer out{0, e.result.step_time, e.result.breakdown.exposed_communication};
  switch (side.measure) {
    case RatioMeasure::kTokensPerGpu:
      out.value = e.tokens_per_second_per_gpu();
      break;
    case RatioMeasure::kTokens:
      out.value = e.tokens_per_second_per_gpu() * static_cast<double>(side.job.gpus);
      break;
    case RatioMeasure::kStepTime:
      out.value = to_seconds(out.step);
      break;
    case RatioMeasure::kForwardRate:
      out.value = 1 / to_seconds(phase_ends(e.schedule, e.result).forward);
      break;
    case RatioMeasure::kForwardTime:
      out.value = to_seconds(phase_ends(e.schedule, e.result).forward);
      break;
    case RatioMeasure::kBackwardTime: {
      const PhaseEnds ends = phase_ends(e.schedule, e.result);
      out.value = to_seconds(ends.backward - ends.forward);
      break;
    }
    case RatioMeasure::kPeakMemory:
      out.value = static_cast<double>(e.result.memory.allocated_peak.value);
      break;
    case RatioMeasure::kPeakReserved:
      out.value = static_cast<double>(e.result.memory.reserved_peak.value);
      break;
  }
  return out;
}

RatioScore score(const RatioCase& c) {
  RatioScore out;
  out.of = &c;
  out.skipped = c.refusal;
  if (!out.skipped.empty()) return out;
  try {
    const SideAnswer a = predict(c.a), b = predict(c.b);
    out.step_a = a.step;
    out.step_b = b.step;
    out.exposed_a = a.exposed;
    out.exposed_b = b.exposed;
    if (b.value <= 0) {
      out.skipped = "side b has nothing to measure";
      return out;
    }
    out.predicted = a.value / b.value;
    out.error = *out.predicted / c.ratio - 1;
    out.sign_right = (*out.predicted - 1) * (c.ratio - 1) > 0;
  } catch (const std::exception& error) {
    out.skipped = error.what();
  }
  return out;
}

void add(RatioSummary& s, const RatioScore& row) {
  ++s.cases;
  if (!row.error) return;
  const double error = std::fabs(*row.error);
  ++s.scored;
  s.signs_right += row.sign_right ? 1 : 0;
  s.within_10 += error <= 0.10 ? 1 : 0;
  s.within_20 += error <= 0.20 ? 1 : 0;
  s.mean_error += (error - s.mean_error) / static_cast<double>(s.scored);
  s.worst_error = std::max(s.worst_error, error);
}

}  // namespace

RatioScores score_ratios(const std::vector<RatioCase>& cases) {
  RatioScores out;
  for (const RatioCase& c : cases) {
    out.rows.push_back(score(c));
    add(c.completeness == Completeness::kPartial ? out.partial : out.stated, out.rows.back());
  }
  return out;
}

std::string_view name_of(RatioMeasure measure) {
  static constexpr std::array<std::string_view, 8> kNames = {
      "tokens/s per GPU", "tokens/s",      "step time",   "forward passes/s",
      "forward time",     "backward time", "peak memory", "peak reserved memory"};
  static_assert(std::size(kNames) == kEnumerators<RatioMeasure>);
  return kNames[static_cast<std::size_t>(measure)];
}

std::string_view name_of(Completeness completeness) {
  static constexpr std::array<std::string_view, 3> kNames = {"complete", "no link rate", "partial"};
  static_assert(std::size(kNames) == kEnumerators<Completeness>);
  return kNames[static_cast<std::size_t>(completeness)];
}

}  // namespace foreshard
