#include <algorithm>

#include "cli/framework_options.h"
#include "cli/job_options.h"

namespace foreshard::cli {
namespace {

using O = ZeroOptions;

constexpr std::int64_t kMostElements = std::int64_t{1} << 50;
constexpr const char* kAuto = "auto";

/// Width of the model as trainers take it for "auto": columns of the token embedding (DS-AUTO).
std::int64_t hidden_size(const Model& model) {
  std::int64_t width = 0;
  for (const ModuleId m : model.roles.embeddings) {
    for (const OwnedParameter& p : model.at(m).parameters) {
      const auto& shape = model.at(p.id).shape;
      if (shape.size() == 2) width = std::max(width, shape[1]);
    }
  }
  return width;
}

/// Values that a trainer fills in from the model (transformers: trainer_config_finalize;
/// accelerate: _prepare_deepspeed).
void resolve_auto(Arguments& a, const Model& model, ParallelConfig& c) {
  const std::int64_t h = hidden_size(model);
  const auto fill = [&](const char* name, std::int64_t& value, std::int64_t resolved) {
    if (a.text(name) != kAuto) return;
    if (h == 0) a.report(name, "\"auto\" needs a model with an embedding", "a number of elements");
    value = resolved;
  };
  fill("zero-reduce-bucket-size", c.zero.reduce_bucket_size, h * h);
  fill("zero-prefetch-bucket-size", c.zero.prefetch_bucket_size,
       static_cast<std::int64_t>(0.9 * static_cast<double>(h * h)));
  fill("zero-param-persistence-threshold", c.zero.param_persistence_threshold, 10 * h);
}

/// A number of elements, also as 5e8.
FrameworkOption elements(const OptionMaker<O>& make, const std::string& name, std::string help,
                         std::int64_t O::*field, bool may_be_auto = false) {
  return make.custom(name, "N", std::move(help), [=](Arguments& a, O& o) {
    if (may_be_auto && a.text(name) == kAuto) return;  // Known once the model is: resolve_auto.
    o.*field = static_cast<std::int64_t>(
        a.number(name, static_cast<double>(o.*field), 0, static_cast<double>(kMostElements)));
  });
}

}  // namespace

FrameworkOptions zero_options() {
  const OptionMaker<O> all(&ParallelConfig::zero,
                           {FrameworkKind::kZero1, FrameworkKind::kZero2, FrameworkKind::kZero3}),
      flat(&ParallelConfig::zero, {FrameworkKind::kZero1, FrameworkKind::kZero2}),
      stage3(&ParallelConfig::zero, {FrameworkKind::kZero3});
  return {
      .title = "ZeRO",
      .options =
          {elements(all, "zero-reduce-bucket-size",
                    "Elements, or auto: hidden size squared (default 5e8)", &O::reduce_bucket_size,
                    true),
           elements(
               flat, "zero-allgather-bucket-size",
               "Elements (default 5e8); the same plan: DeepSpeed gathers each group whole with "
               "PyTorch's all_gather_into_tensor",
               &O::allgather_bucket_size),
           elements(stage3, "zero-prefetch-bucket-size",
                    "Elements, or auto: 0.9 x hidden size squared (default 5e7)",
                    &O::prefetch_bucket_size, true),
           elements(stage3, "zero-param-persistence-threshold",
                    "Elements, or auto: 10 x hidden size (default 1e5)",
                    &O::param_persistence_threshold, true),
           elements(stage3, "zero-max-live-parameters", "Elements (default 1e9)",
                    &O::max_live_parameters),
           elements(stage3, "zero-max-reuse-distance", "Elements (default 1e9)",
                    &O::max_reuse_distance),
           all.custom(
               "zero-overlap-comm", "yes|no", "Default: stage 3 yes, others no",
               [](Arguments& a, O& o) { o.overlap_comm = a.yes_no("zero-overlap-comm", true); },
               {"yes", "no"}),
           all.yes_no("zero-contiguous-gradients", "Default yes", &O::contiguous_gradients),
           all.yes_no("zero-reduce-scatter", "Default yes", &O::reduce_scatter),
           flat.yes_no("zero-round-robin-gradients",
                       "Stages 1, 2: deal parameters out to partitions (default no)",
                       &O::round_robin_gradients),
           flat.yes_no("zero-multi-rank-allreduce",
                       "Stages 1, 2: use_multi_rank_bucket_allreduce (default yes)",
                       &O::multi_rank_all_reduce),
           all.custom("zero-grad-accum-dtype", "DTYPE",
                      "Dtype of accumulated gradients (default: --param-dtype)",
                      [](Arguments& a, O& o) {
                        o.grad_accum_dtype = read_dtype(a, "zero-grad-accum-dtype");
                      }),
           all.yes_no("zero-pin-memory", "Page-locked memory for offloaded states (default no)",
                      &O::pin_memory),
           stage3.number("zero-offload-ratio", "R",
                         "Stage 3: part of the sub-groups that the CPU steps, 0 to 1 (default 1)",
                         &O::offload_ratio, 0, 1),
           all.yes_no("zero-throughput-timer",
                      "The engine's timer waits for the device around each micro-batch (default "
                      "yes)",
                      &O::throughput_timer),
           all.yes_no("zero-wall-clock-breakdown",
                      "The host reads the engine's timers after each micro-batch (default no)",
                      &O::wall_clock_breakdown),
           elements(stage3, "zero-model-persistence-threshold",
                    "Stage 3, elements (default: no limit)", &O::model_persistence_threshold),
           elements(stage3, "zero-sub-group-size", "Stage 3, elements (default 1e9)",
                    &O::sub_group_size),
           stage3.integer("zero-hpz-partition-size",
                          "Stage 3: ranks of the secondary group (ZeRO++ hpZ; default 1: none)",
                          &O::hpz_partition_size, 1, kMostGpus),
           stage3.yes_no("zero-quantized-weights",
                         "Stage 3: gathers in int8 blocks (ZeRO++ qwZ; default no)",
                         &O::quantised_weights),
           stage3.yes_no("zero-quantized-gradients",
                         "Stage 3: gradients in int4 by all-to-alls, in the node and across nodes "
                         "(ZeRO++ qgZ; default no; gradients in fp16)",
                         &O::quantised_gradients),
           stage3.integer("zero-gpus-per-node",
                          "Stage 3: GPUs of a node, for quantised gradients (default: of --on)",
                          &O::gpus_per_node, 1, kMostGpus),
           stage3.names("zero-leaf-classes", "A,B",
                        "Stage 3: classes fetched as a whole (set_z3_leaf_modules)",
                        &O::leaf_classes),
           elements(stage3, "zero-module-granularity",
                    "Stage 3: modules this fine are fetched as a whole (default 0: none)",
                    &O::module_granularity_threshold),
           stage3.yes_no("zero-init",
                         "Stage 3: the model is built under zero.Init, never whole on a GPU "
                         "(default yes)",
                         &O::partitioned_construction)},
      .defaults = [](const Arguments&,
                     ParallelConfig& c) { c.zero.partitioned_construction = true; },
      .finish =
          [](Arguments& a, ParallelConfig& c) {
            c.zero.communication_dtype = read_dtype(a, "reduce-dtype");
            for (const char* name : {"zero-pin-memory", "zero-offload-ratio"})
              if (a.has(name) && c.offload == OffloadKind::kNone)
                a.report(name, "nothing is kept in host memory", "add --offload optimizer");
          },
      .with_model = resolve_auto};
}

}  // namespace foreshard::cli
