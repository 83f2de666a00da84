#include "cli/answer_of.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/format.h"
#include "models/adapter_targets.h"
#include "schedules/planner/framework_table.h"
#include "sim/provenance.h"
#include "study/headroom.h"

namespace foreshard::cli {
namespace {

AnswerMemory memory_answer(const MemoryResult& m) {
  AnswerMemory out;
  out.allocated_peak = m.allocated_peak;
  out.reserved_peak = m.reserved_peak;
  out.device_peak = m.device_peak;
  out.capacity = m.capacity;
  out.context = m.context;
  out.communicators = m.communicators;
  out.host_peak = m.host_peak;
  out.host_node_peak = m.host_node_peak;
  out.host_capacity = m.host_capacity;
  out.retries = m.retries;
  out.retries_total = m.retries_total;
  out.fits = m.fits;
  out.fits_device = m.fits_device;
  out.fits_host = m.fits_host();
  out.tight = m.fits && !leaves_headroom(m.device_peak, m.capacity);
  out.peak_at = describe_place(m.peak_at);
  if (m.out_of_memory) {
    const OutOfMemoryReport& o = *m.out_of_memory;
    out.out_of_memory =
        fmt::format("first failure: {} for {} in {} (allocated {}, reserved {})",
                    format_memory(o.requested), name_of(o.category), describe_place(o.at),
                    format_memory(o.allocated), format_memory(o.reserved));
  }
  for (const Owner& o : m.owners)
    out.owners.push_back({std::string(name_of(o.category)), o.unit, o.bytes});
  return out;
}

std::string number_text(const UsedNumber& n) {
  if (n.unit == "B") return format_memory(Bytes(std::llround(n.value)));
  if (n.unit == "B/s") return format_rate(BytesPerSecond(n.value));
  if (n.unit == "FLOP/s") return format_count(n.value) + "FLOP/s";
  if (n.unit == "s") return format_time(from_seconds(n.value));
  return fmt::format("{:.4g}{}{}", n.value, n.unit.empty() ? "" : " ", n.unit);
}

std::vector<AnswerProvenance> provenance_of(const Job& job, const Schedule& schedule) {
  std::vector<AnswerProvenance> out;
  const Cluster cluster = make_cluster(job.hardware, static_cast<int>(schedule.world));
  for (const UsedNumber& n : numbers_used(schedule, cluster, job.cost_parameters()))
    out.push_back({n.quantity, number_text(n), n.source, n.kind});
  return out;
}

void add_uncertainty(const StepUncertainty& u, StepAnswer& a) {
  a.step_range = {u.p10, u.p90};
  a.outside = u.outside;
  for (const UncertainInput& i : u.inputs)
    a.uncertainty.push_back({i.quantity, i.sd, i.effect, i.source});
}

std::string framework_text(const Job& job, const Schedule& s) {
  std::string out = std::string(row_of(job.config.framework).title);
  const std::size_t units = s.programs[0].units.size();
  if (units > 0) out += fmt::format(", {} unit{}", units, units == 1 ? "" : "s");
  if (job.config.replicate > 1 && job.config.shard > 1)
    out += fmt::format(", {} copies of {} shards", job.config.replicate, job.config.shard);
  return out;
}

/// A framework that makes a communicator for each unit (FSDP2 builds a device mesh for each that is
/// resharded to a smaller group) pays for it in buffers.
std::string remark_on_communicators(const Schedule& s, const MemoryResult& m) {
  constexpr std::size_t kUsual = 4;
  std::set<std::uint32_t> used;
  for (const Collective& c : s.program_for(m.rank).collectives) used.insert(c.group.value);
  if (used.size() <= kUsual || m.communicators.value == 0) return "";
  return fmt::format("NCCL keeps buffers for {} communicators: {} of the device", used.size(),
                     format_memory(m.communicators));
}

/// "8.04 B parameters", and where some are frozen: ", LoRA rank 16 on q_proj, v_proj in fp32, 13.6
/// M trained, 7.50 B in 4 bits".
std::string size_text(const Model& model) {
  double trained = 0, packed = 0;
  bool frozen = false;
  for (const ParameterDef& p : model.parameters) {
    const double n = static_cast<double>(p.numel()) * static_cast<double>(p.packs);
    (p.trainable ? trained : packed) += p.trainable || p.packs > 1 ? n : 0;
    frozen = frozen || !p.trainable;
  }
  std::string out =
      format_count(static_cast<double>(model.parameter_count().value)) + " parameters";
  if (const std::string adapters = describe_adapters(model); !adapters.empty())
    out += ", " + adapters;
  if (frozen) out += fmt::format(", {} trained", format_count(trained));
  if (packed > 0) out += fmt::format(", {} in 4 bits", format_count(packed));
  return out;
}

}  // namespace

StepAnswer answer_of(const Job& job, const Prediction& prediction) {
  const Evaluation& e = prediction.evaluation;
  const SimulationResult& r = e.result;
  StepAnswer a;
  a.model = job.model->name;
  a.model_size = size_text(*job.model);
  a.framework = framework_text(job, e.schedule);
  a.machines = describe_machines(job.hardware, job.gpus);
  a.precision = describe_precision(job);
  a.wrapping = describe_wrapping(job.config);
  a.batch = describe_batch(job);
  a.training = describe_training(job);
  a.gpus = job.gpus;
  a.step_time = r.step_time;
  a.tokens_per_s_per_gpu = e.tokens_per_second_per_gpu();
  a.samples_per_s_per_gpu = e.samples_per_second_per_gpu(job);
  a.peak = peak_name(job);
  a.mfu = e.model_flops_utilisation(job);
  a.hfu = e.hardware_flops_utilisation(job);
  a.compute = r.breakdown.compute;
  a.exposed_communication = r.breakdown.exposed_communication;
  a.exposed_host = r.breakdown.exposed_host;
  a.optimizer = r.breakdown.optimizer;
  a.idle = r.breakdown.idle;
  a.interference = r.breakdown.interference;
  for (const CommunicationRow& c : r.communication)
    a.communication.push_back({std::string(name_of(c.kind)), c.group, c.group_size, c.count,
                               c.bytes, c.busy, c.exposed, c.stretched,
                               std::string(name_of(c.bottleneck))});
  for (const CriticalPathRow& row : r.critical_path)
    a.critical_path.push_back(
        {name_of(row.resource), row.time, row.resource.kind == CriticalResource::Kind::kKernel});
  a.memory = memory_answer(r.memory);
  a.memory.runs_with = prediction.needed_memory;
  for (const Suggestion& s : prediction.suggestions)
    a.suggestions.push_back({s.change, s.step, s.memory_change, s.tokens_per_s_per_gpu,
                             s.samples_per_s_per_gpu, s.speedup, s.fits});
  if (const std::string remark = remark_on(job, e.schedule); !remark.empty())
    a.remarks.push_back(remark);
  if (const std::string remark = remark_on_attention(job, e.schedule); !remark.empty())
    a.remarks.push_back(remark);
  if (const std::string remark = remark_on_communicators(e.schedule, r.memory); !remark.empty())
    a.remarks.push_back(remark);
  a.remarks.insert(a.remarks.end(), e.schedule.remarks.begin(), e.schedule.remarks.end());
  a.not_modelled = r.not_modelled;
  for (const std::string& n : job.model->not_modelled)
    if (std::find(a.not_modelled.begin(), a.not_modelled.end(), n) == a.not_modelled.end())
      a.not_modelled.push_back(n);
  a.provenance = provenance_of(job, e.schedule);
  add_uncertainty(prediction.uncertainty, a);
  return a;
}

MemoryExplanation memory_explanation_of(const Job& job, const Evaluation& e,
                                        const MemoryStudy& study) {
  const MemoryResult& m = e.result.memory;
  MemoryExplanation x;
  x.title = fmt::format("{} · {} · {} · {}", job.model->name, framework_text(job, e.schedule),
                        describe_machines(job.hardware, job.gpus), describe_precision(job));
  x.memory = memory_answer(m);
  x.memory.owners.clear();
  for (const Owner& o : m.owners_by_module)
    x.memory.owners.push_back({std::string(name_of(o.category)), o.unit, o.bytes});
  x.rank = m.rank;
  x.step = m.peak_at.step;
  x.step_time = e.result.step_time;
  for (const PhaseRow& p : study.phases)
    x.phases.push_back({p.step, p.phase, p.allocated, p.reserved});
  for (const MemoryChange& c : study.changes)
    x.changes.push_back({c.change, c.kind, c.allocated, c.reserved, c.device, c.device_change,
                         c.step, c.speed, c.fits, c.peak_at});
  for (const CheckpointRow& c : study.checkpoints)
    x.checkpoints.push_back(
        {c.phase, c.way, c.allocated, c.reserved, c.host, c.host_node, c.fits, c.host_fits});
  return x;
}

AnswerMemory memory_of(const Trace& trace, Bytes capacity) {
  AnswerMemory out;
  out.capacity = capacity;
  out.peak_at = "measured";
  std::map<std::int32_t, std::pair<std::int32_t, std::int64_t>> of_rank;  // Last step, retries.
  for (const StepMemory& m : trace.step_memory) {
    out.allocated_peak = std::max(out.allocated_peak, m.allocated_peak);
    out.reserved_peak = std::max(out.reserved_peak, m.reserved_peak);
    auto& [last, retries] = of_rank.try_emplace(m.rank, m.step, 0).first->second;
    last = std::max(last, m.step);
    retries += m.retries;
    out.retries_total = std::max(out.retries_total, retries);
    out.fits = out.fits_device = out.fits && !m.out_of_memory;
  }
  for (const StepMemory& m : trace.step_memory)
    if (m.step == of_rank[m.rank].first) out.retries = std::max(out.retries, m.retries);
  out.device_peak = out.reserved_peak;
  return out;
}

}  // namespace foreshard::cli
