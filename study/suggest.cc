#include "study/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/integers.h"
#include "core/parallel.h"
#include "schedules/planner/framework_table.h"
#include "schedules/planner/wrap_policy.h"
#include "sim/cost/attention_rates.h"
#include "study/job_change.h"
#include "study/mesh_search.h"
#include "study/suggestion_study.h"

namespace foreshard {
namespace {

constexpr double kWorthKnowing = 1.02;  ///< Smaller gains are within the model's error.

/// Changes that free memory at the price of time.
void add_savings(const Job& job, std::vector<JobChange>& out) {
  const ParallelConfig& c = job.config;
  if (c.micro_batch > 1) out.push_back(change::micro_batch(c.micro_batch / 2));
  if (c.checkpoint == CheckpointKind::kNone) out.push_back(change::full_checkpoint());
  const FrameworkRow& framework = row_of(c.framework);
  if (!framework.forms_units()) return;
  if (c.replicate > 1) out.push_back(change::mesh(job, job.gpus, 1));
  if (c.reshard.kind == Reshard::Kind::kNo && framework.reshard != ReshardChoice::kStrategy)
    out.push_back(change::resharding(job, true));
  using Wrap = WrapPolicy::Kind;
  const bool larger_units =
      c.wrap.kind == Wrap::kEveryK || c.wrap.kind == Wrap::kRootOnly || c.wrap.kind == Wrap::kSize;
  if (framework.units == UnitForm::kModuleGroup && larger_units && !job.model->roles.blocks.empty())
    out.push_back(change::wrap({}));
}

void add_sharding_changes(const Job& job, std::vector<JobChange>& out) {
  const ParallelConfig& c = job.config;
  const FrameworkRow& framework = row_of(c.framework);
  if (!framework.forms_units()) return;
  const bool frees = framework.reshard == ReshardChoice::kStrategy
                         ? c.fsdp1.strategy == Fsdp1Options::Strategy::kFullShard ||
                               c.fsdp1.strategy == Fsdp1Options::Strategy::kHybrid
                         : c.reshard.kind != Reshard::Kind::kNo;
  if (frees) out.push_back(change::resharding(job, false));
  if (framework.units == UnitForm::kModuleGroup && c.wrap.kind == WrapPolicy::Kind::kBlocks &&
      job.model->roles.blocks.size() >= 4)
    out.push_back(change::wrap(blocks_together(2)));
}

/// The fastest attention kernel that the profile has rates of, in place of flash-attention 2.
void add_attention_kernel(const Job& job, std::vector<JobChange>& out) {
  if (!takes_flash(job.config.attention)) return;
  for (const auto& [kernel, key] :
       {std::pair(AttentionKernel::kFlash3, "attention_fa3_h128_forward"),
        std::pair(AttentionKernel::kCudnn, "attention_cudnn_h128_forward")}) {
    if (job.attention_kernel == kernel) return;
    if (job.hardware.gpu.find_efficiency(key) == nullptr) continue;
    if (!lacks_attention_kernel(kernel, job.hardware.gpu).empty()) continue;
    return out.push_back(change::attention_kernel(kernel));
  }
}

/// ZeRO++ where stage 3 gathers over several nodes.
void add_zero_changes(const Job& job, std::vector<JobChange>& out) {
  const ParallelConfig& c = job.config;
  const std::int64_t node = job.hardware.gpus_per_node();
  if (c.framework != FrameworkKind::kZero3 || c.world() <= node) return;
  const JobChange secondary = c.zero.hpz_partition_size == 1 && c.world() % node == 0 && node > 1
                                  ? change::secondary_partition(node)
                                  : JobChange();
  if (!secondary.empty()) out.push_back(secondary);
  if (!c.zero.quantised_weights) out.push_back(secondary + change::quantised_weights());
}

/// Changes that a job has memory for, whatever it needs: none of them needs less.
void add_spendings(const Job& job, std::vector<JobChange>& out) {
  const ParallelConfig& c = job.config;
  out.push_back(change::micro_batch(2 * c.micro_batch));
  if (c.checkpoint == CheckpointKind::kFull) out.push_back(change::no_checkpoint());
  add_sharding_changes(job, out);
  if (row_of(c.framework).sync_choice && c.accumulate > 1 && c.sync_each_micro_batch)
    out.push_back(change::sync_each_micro_batch(false));
  add_attention_kernel(job, out);
  if (compute_dtype(job.config) == DType::kFloat32 && !job.tf32 &&
      job.hardware.gpu.peak_tf32.known())
    out.push_back(change::tf32());
}

/// Changes worth a trial whatever memory the job takes.
std::vector<JobChange> changes_of_any_job(const Job& job) {
  std::vector<JobChange> out;
  add_savings(job, out);
  add_zero_changes(job, out);
  if (!job.config.compile) out.push_back(change::compile());
  return out;
}

/// A change for a job that no single option makes fit, and whether it buys GPUs.
struct Rescue {
  JobChange change;
  bool more_gpus = false;
};

/// For fine-tuning on one machine: training adapters only, or their base in four bits.
void add_adapters(const Job& job, const JobChange& save, std::vector<Rescue>& out) {
  if (job.gpus > job.hardware.gpus_per_node()) return;
  const auto frozen = [](const ParameterDef& p) { return !p.trainable; };
  const std::vector<ParameterDef>& all = job.model->parameters;
  if (std::any_of(all.begin(), all.end(), frozen)) {
    out.push_back({save + change::four_bit_base()});
    return;
  }
  if (row_of(job.config.framework).units == UnitForm::kModule) return;  // Wrapped otherwise then.
  const JobChange adapters = change::adapters(job);
  out.push_back({save + adapters});
  out.push_back({save + adapters + change::four_bit_base()});
}

/// All that saves memory at once, then host memory, 16-bit states, flat parameters where rows cut
/// unevenly, adapters, more GPUs.
std::vector<Rescue> rescues_for(const Job& job, bool uneven) {
  const ParallelConfig& c = job.config;
  const FrameworkRow& framework = row_of(c.framework);
  JobChange save;
  if (c.checkpoint != CheckpointKind::kFull) save = save + change::full_checkpoint();
  if (c.micro_batch > 1) save = save + change::micro_batch(1);
  std::vector<Rescue> out;
  if (!save.empty()) out.push_back({save});
  if (!framework.offloads.empty() && c.offload == OffloadKind::kNone)
    out.push_back({save + change::offload(framework.offloads.back())});
  if (c.model_dtype == DType::kFloat32 && framework.precision != PrecisionRule::kMasters)
    out.push_back({save + change::model_dtype(job, DType::kBFloat16)});
  if (const JobChange fsdp1 = change::to_fsdp1(job); uneven && !fsdp1.empty())
    out.push_back({save + fsdp1});
  add_adapters(job, save, out);
  for (std::int64_t k = 2; !framework.whole_copies() && k <= 16; k *= 2) {
    if (job.hardware.network.kind == NetworkKind::kNone &&
        job.gpus * k > job.hardware.gpus_per_node())
      break;
    out.push_back({save + change::more_gpus(job, k), true});
  }
  return out;
}

std::optional<Suggestion> try_change(const Job& job, const Evaluation& base, const Simulator& own,
                                     JobChange change) {
  ChangeTrial trial(job, std::move(change));
  trial.plan();
  trial.run(base.result.memory, own);
  return trial.suggestion(job, base);
}

/// Hybrid sharding, where the job shards over all GPUs and has memory for more.
std::optional<Suggestion> try_meshes(const Job& job, const Evaluation& base, const Simulator& own) {
  const ParallelConfig& c = job.config;
  if (!base.result.memory.fits || c.replicate > 1 || !row_of(c.framework).forms_units())
    return std::nullopt;
  std::map<std::int64_t, Suggestion> tried;
  const auto speed = [&](Mesh mesh) -> std::optional<double> {
    const auto s = try_change(job, base, own, change::mesh(job, mesh.shard, mesh.replicate));
    if (!s || !s->fits) return std::nullopt;
    tried[mesh.replicate] = *s;
    return s->speedup;
  };
  const auto best = best_mesh(job.gpus, job.hardware.gpus_per_node(), 1, speed);
  return best ? std::optional(tried[best->replicate]) : std::nullopt;
}

/// The changes that fit, of those the smallest number of GPUs only.
std::vector<Suggestion> rescue(const Job& job, const Evaluation& base, std::size_t most) {
  std::vector<Suggestion> out;
  const bool uneven = padded_share(base.schedule) > kMuchPadding;
  const Simulator own(base.schedule);
  for (const Rescue& rescue : rescues_for(job, uneven)) {
    if (out.size() == most) break;
    const std::optional<Suggestion> s = try_change(job, base, own, rescue.change);
    if (!s) continue;
    out.push_back(*s);
    if (rescue.more_gpus) break;
  }
  return out;
}

std::string text_of_rates(std::string_view kernel) {
  return kernel == "fa3"     ? "flash-attention 3"
         : kernel == "cudnn" ? "cuDNN's attention"
                             : "flash-attention 2";
}

}  // namespace

double padded_share(const Schedule& schedule) {
  std::int64_t real = 0, padded = 0;
  for (const ShardUnit& u : schedule.programs[0].units) {
    real += u.numel.value;
    padded += std::max(u.numel, u.padded_numel).value;
  }
  return padded == 0 ? 0 : 1 - static_cast<double>(real) / static_cast<double>(padded);
}

namespace {

/// No module calls attention as a function: its products and softmax are statements of their own.
bool writes_attention_out(const Model& model) {
  bool softmax = false;
  for (const Module& m : model.modules) {
    for (const Statement& s : m.program) {
      if (s.function == Function::kAttention || s.function == Function::kPackedAttention ||
          s.function == Function::kWindowedAttention)
        return false;
      softmax = softmax || s.function == Function::kSoftmax;
    }
  }
  return softmax;
}

/// Which kernels SDPA took in place of flash attention; "" if none.
std::string remark_on_other_kernels(const Job& job, const Schedule& schedule) {
  const RankProgram& p = schedule.programs[0];
  std::int64_t flash = 0, efficient = 0;
  for (const Launch& l : p.launches) {
    flash += l.op == OpKind::kFlashAttention ? 1 : 0;
    efficient += l.op == OpKind::kEfficientAttention ? 1 : 0;
  }
  if (efficient > 0) {
    return fmt::format(
        "{} of {} attention calls are not flash attention's: SDPA takes its memory-efficient "
        "kernel where there is a mask (a sliding window that the sequence exceeds), in fp32, and "
        "for keys and values of different sizes. --attention flash-attn: windows in the kernel",
        efficient, flash + efficient);
  }
  if (flash > 0 || !writes_attention_out(*job.model)) return "";
  return fmt::format(
      "the model writes its attention out as products and a softmax (soft-capped scores), whatever "
      "--attention says{}",
      job.config.attention == AttentionKind::kFlashLibrary
          ? "; flash-attn's own soft cap is not modelled"
          : "");
}

}  // namespace

std::string remark_on_attention(const Job& job, const Schedule& schedule) {
  if (!takes_flash(job.config.attention)) return "";
  if (const std::string other = remark_on_other_kernels(job, schedule); !other.empty())
    return other;
  if (const std::string lacks = lacks_attention_kernel(job.attention_kernel, job.hardware.gpu);
      !lacks.empty())
    return lacks + ": PyTorch takes the memory-efficient kernel there, --attention sdpa";
  const std::string_view own = own_rates_of(job.attention_kernel);
  std::set<std::pair<OpKind, std::int64_t>> met;
  for (const Launch& l : schedule.programs[0].launches) {
    if (l.op != OpKind::kFlashAttention && l.op != OpKind::kFlashAttentionBackward) continue;
    if (!met.emplace(l.op, l.dims[4]).second) continue;
    for (const AttentionRateKey& rate :
         attention_rates(job.hardware.gpu, l, job.attention_kernel)) {
      if (rate.kernel == own) continue;
      return fmt::format("no rates of {} for heads of {} are known on {}: {} taken",
                         text_of_rates(own), l.dims[4], job.hardware.gpu.name,
                         rate.kernel.empty() ? "half its 16-bit peak is"
                                             : "those of " + text_of_rates(rate.kernel) + " are");
    }
  }
  return "";
}

/// "model.embed_tokens.weight, 128256 rows in 1000 parts of 129": where most is padded.
std::string most_padded(const Model& model, std::int64_t parts) {
  const ParameterDef* worst = nullptr;
  std::int64_t most = 0;
  for (const ParameterDef& p : model.parameters) {
    if (p.shape.empty() || p.shape[0] < 1) continue;
    const std::int64_t rows = ceil_div(p.shape[0], parts) * parts - p.shape[0];
    const std::int64_t padded = rows * (p.numel() / p.shape[0]);
    if (padded <= most) continue;
    most = padded;
    worst = &p;
  }
  if (!worst) return "";
  const std::int64_t rows = worst->shape[0], part = ceil_div(rows, parts);
  return fmt::format(" (most in {}: {} rows make {} parts of {})", worst->name, rows, parts, part);
}

std::string remark_on(const Job& job, const Schedule& schedule) {
  const double share = padded_share(schedule);
  if (job.config.framework != FrameworkKind::kFsdp2 || share <= kMuchPadding) return "";
  return fmt::format(
      "{:.0f} % of what is sharded is padding: FSDP2 cuts each parameter along dimension 0 into {} "
      "equal parts, rounded up{}. --replicate makes the shard group smaller; "
      "--framework fsdp1 and zero3 cut flat parameters, without this padding",
      100 * share, job.config.shard, most_padded(*job.model, job.config.shard));
}

SuggestionStudy::SuggestionStudy(const Job& job, TaskPool& pool) : job_(job), pool_(pool) {
  for (JobChange& c : changes_of_any_job(job)) {
    early_.emplace_back(job, std::move(c));
    add(early_.back());
  }
}

void SuggestionStudy::add(Entry& entry) {
  pool_.add(TaskPool::Order::kAwaited, [this, &entry] {
    entry.trial.plan();
    ready(entry);
  });
}

void SuggestionStudy::begin(const MemoryResult& memory, const Simulator& own) {
  memory_ = memory;
  own_ = &own;
  std::vector<JobChange> spendings, allocator;
  if (memory.fits) add_spendings(job_, spendings);
  if (!job_.allocator.expandable_segments && (!memory.fits || is_borderline(memory)))
    allocator.push_back(change::expandable_segments());
  for (auto& [changes, list] : {std::pair(&spendings, &first_), std::pair(&allocator, &last_)}) {
    for (JobChange& c : *changes) {
      list->emplace_back(job_, std::move(c));
      add(list->back());
      ready(list->back());
    }
  }
  for (Entry& entry : early_) ready(entry);
}

void SuggestionStudy::compare(const Evaluation& base) {
  pool_.add(TaskPool::Order::kAwaited, [this, &base] { mesh_ = try_meshes(job_, base, *own_); });
}

/// A change is tried once it is planned and the job's memory is known.
void SuggestionStudy::ready(Entry& entry) {
  if (++entry.ready < 2) return;
  pool_.add(TaskPool::Order::kAwaited, [this, &entry] { entry.trial.run(memory_, *own_); });
}

std::vector<Suggestion> SuggestionStudy::finish(const Evaluation& base, std::size_t most) const {
  const bool base_fits = base.result.memory.fits, at_the_edge = is_borderline(base.result.memory);
  std::vector<Suggestion> all;
  const auto keep = [&](const std::optional<Suggestion>& s) {
    if (s && (!base_fits || (at_the_edge && s->fits) || s->speedup >= kWorthKnowing))
      all.push_back(*s);
  };
  keep(mesh_);
  for (const std::deque<Entry>* list : {&first_, &early_, &last_})
    for (const Entry& entry : *list) keep(entry.trial.suggestion(job_, base));
  if (!base_fits && all.empty()) return rescue(job_, base, most + 1);  // One with more GPUs.
  std::stable_sort(all.begin(), all.end(), [](const Suggestion& a, const Suggestion& b) {
    return a.fits != b.fits ? a.fits : a.speedup > b.speedup;
  });
  // Keep one that does not fit at most: it says what more memory would buy.
  std::vector<Suggestion> out;
  bool too_large = false;
  for (const Suggestion& s : all) {
    if (out.size() == most || (!s.fits && too_large)) continue;
    too_large = too_large || !s.fits;
    out.push_back(s);
  }
  return out;
}

std::vector<Suggestion> suggest(const Job& job, const Evaluation& base, std::size_t most) {
  TaskPool pool;
  SuggestionStudy study(job, pool);
  const Simulator own(base.schedule);
  study.begin(base.result.memory, own);
  study.compare(base);
  pool.run();
  return study.finish(base, most);
}

}  // namespace foreshard
