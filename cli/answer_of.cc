#include "cli/answer_of.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/format.h"

namespace foreshard::cli {
namespace {

std::string place_text(const Place& p) {
  if (p.step < 0) return "initialisation";
  std::string out(name_of(p.phase));
  if (!p.module.empty()) out += " of " + p.module;
  else if (!p.unit.empty()) out += " of unit " + p.unit;
  return out;
}

AnswerMemory memory_answer(const MemoryResult& m) {
  AnswerMemory out;
  out.allocated_peak = m.allocated_peak;
  out.reserved_peak = m.reserved_peak;
  out.device_peak = m.device_peak;
  out.capacity = m.capacity;
  out.context = m.context;
  out.communicators = m.communicators;
  out.host_peak = m.host_peak;
  out.retries = m.retries;
  out.fits = m.fits;
  out.peak_at = place_text(m.peak_at);
  if (m.out_of_memory) {
    const OutOfMemoryReport& o = *m.out_of_memory;
    out.out_of_memory = fmt::format("first failure: {} for {} in {} (allocated {}, reserved {})", format_memory(o.requested),
                                    name_of(o.category), place_text(o.at), format_memory(o.allocated), format_memory(o.reserved));
  }
  for (const Owner& o : m.owners) out.owners.push_back({std::string(name_of(o.category)), o.unit, o.bytes});
  return out;
}

std::string fact_text(const Fact& f) {
  if (!f.known()) return "unknown";
  switch (f.dimension) {
    case Dimension::kBytes: return format_memory(Bytes(std::llround(f.value)));
    case Dimension::kBytesPerSecond: return format_rate(BytesPerSecond(f.value));
    case Dimension::kFlopsPerSecond: return format_count(f.value) + "FLOP/s";
    case Dimension::kSeconds: return format_time(from_seconds(f.value));
    default: return fmt::format("{:.4g} {}", f.value, base_unit(f.dimension));
  }
}

/// The facts that decide an answer: everything the profile says of the GPU and node, and of the network if it is used.
std::vector<AnswerProvenance> provenance_of(const Job& job) {
  std::vector<AnswerProvenance> out;
  const bool network = job.gpus > job.hardware.gpus_per_node();
  for (const NamedFact& f : all_facts(job.hardware)) {
    if (!f.fact->known() || (!network && f.path.rfind("network.", 0) == 0)) continue;
    out.push_back({f.path, fact_text(*f.fact), f.fact->source, std::string(name_of(f.fact->kind))});
  }
  return out;
}

std::string framework_text(const Job& job, const Schedule& s) {
  std::string out = title_of(job.config.framework);
  const std::size_t units = s.programs[0].units.size();
  if (units > 0) out += fmt::format(", {} unit{}", units, units == 1 ? "" : "s");
  if (job.config.replicate > 1 && job.config.shard > 1) out += fmt::format(", {} copies of {} shards", job.config.replicate, job.config.shard);
  return out;
}

}  // namespace

StepAnswer answer_of(const Job& job, const Evaluation& e, const std::vector<Suggestion>& suggestions) {
  const SimulationResult& r = e.result;
  StepAnswer a;
  a.model = job.model->name;
  a.model_size = format_count(static_cast<double>(job.model->parameter_count().value)) + " parameters";
  a.framework = framework_text(job, e.schedule);
  a.machines = describe_machines(job.hardware, job.gpus);
  a.precision = describe_precision(job.config);
  a.wrapping = describe_wrapping(job.config);
  a.gpus = job.gpus;
  a.step_time = r.step_time;
  a.tokens_per_s_per_gpu = e.tokens_per_second_per_gpu();
  a.mfu = e.model_flops_utilisation(job);
  a.hfu = e.hardware_flops_utilisation(job);
  a.compute = r.breakdown.compute;
  a.exposed_communication = r.breakdown.exposed_communication;
  a.exposed_host = r.breakdown.exposed_host;
  a.optimizer = r.breakdown.optimizer;
  a.idle = r.breakdown.idle;
  for (const CommunicationRow& c : r.communication)
    a.communication.push_back({std::string(name_of(c.kind)), c.group_size, c.count, c.bytes, c.busy, c.exposed,
                               std::string(name_of(c.bottleneck))});
  for (const CriticalPathRow& row : r.critical_path) a.critical_path.push_back({row.resource, row.time});
  a.memory = memory_answer(r.memory);
  for (const Suggestion& s : suggestions)
    a.suggestions.push_back({s.change, s.step, s.memory_change, s.tokens_per_s_per_gpu, s.speedup, s.fits});
  a.not_modelled = r.not_modelled;
  for (const std::string& n : job.model->not_modelled)
    if (std::find(a.not_modelled.begin(), a.not_modelled.end(), n) == a.not_modelled.end()) a.not_modelled.push_back(n);
  a.provenance = provenance_of(job);
  return a;
}

AnswerMemory memory_of(const Trace& trace, Bytes capacity) {
  AnswerMemory out;
  out.capacity = capacity;
  out.peak_at = "measured";
  for (const StepMemory& m : trace.step_memory) {
    out.allocated_peak = std::max(out.allocated_peak, m.allocated_peak);
    out.reserved_peak = std::max(out.reserved_peak, m.reserved_peak);
    out.retries += m.retries;
    out.fits = out.fits && !m.out_of_memory;
  }
  out.device_peak = out.reserved_peak;
  return out;
}

}  // namespace foreshard::cli
