#include "schedules/planner/framework_table.h"

#include <algorithm>

#include "core/enum_names.h"
#include "schedules/planner/frameworks/ddp.h"
#include "schedules/planner/frameworks/framework.h"
#include "schedules/planner/frameworks/fsdp1.h"
#include "schedules/planner/frameworks/zero.h"

namespace foreshard {
namespace {

constexpr OffloadKind kParametersOnly[] = {OffloadKind::kParameters};
constexpr OffloadKind kOptimizerOnly[] = {OffloadKind::kOptimizer};
constexpr OffloadKind kEither[] = {OffloadKind::kParameters, OffloadKind::kOptimizer,
                                   OffloadKind::kBoth};
constexpr std::string_view kFsdpOffload =
    "params: FSDP's CPU offload moves shards, gradients and the optimizer step together";

template <std::int64_t N>
std::int64_t steps(const ParallelConfig&) {
  return N;
}

/// Forward prefetch and the rate limiter meet in a third way in the third step: 3, 6 and then 7
/// waits for events a step (recorded on the stand-in GPU).
std::int64_t fsdp1_steps(const ParallelConfig& c) { return c.fsdp1.forward_prefetch ? 3 : 2; }

DType own_or_asked_reduction(const ParallelConfig& c) {
  return c.precision.reduce.value_or(asked_compute_dtype(c));
}

DType ddp_compute(const ParallelConfig& c) {
  return c.ddp.mixed_precision ? c.ddp.mixed_precision->param.value_or(c.model_dtype)
                               : asked_compute_dtype(c);
}

DType ddp_reduction(const ParallelConfig& c) {
  if (c.ddp.comm_hook == DdpCommHook::kBf16Compress) return DType::kBFloat16;
  if (c.ddp.comm_hook == DdpCommHook::kFp16Compress) return DType::kFloat16;
  if (!c.ddp.mixed_precision) return c.model_dtype;
  return c.ddp.mixed_precision->reduce.value_or(ddp_compute(c));
}

DType zero_reduction(const ParallelConfig& c) {
  return c.zero.communication_dtype.value_or(asked_compute_dtype(c));
}

DType sharded_optimizer_reduction(const ParallelConfig& c) {
  return c.sharded_optimizer.accumulate_in_float32 ? DType::kFloat32 : asked_compute_dtype(c);
}

std::unique_ptr<Framework> unsharded(const ParallelConfig&) { return make_unsharded(); }
std::unique_ptr<Framework> fsdp1_framework(const ParallelConfig& c) { return fsdp1::make_fsdp1(c); }
std::unique_ptr<Framework> zero_framework(const ParallelConfig& c) { return zero::make_zero(c); }

/// Whole stages of ZeRO differ in a few facts only.
constexpr FrameworkRow zero_row(FrameworkKind kind, std::string_view name, std::string_view title) {
  const bool stage3 = kind == FrameworkKind::kZero3;
  FrameworkRow row{.kind = kind,
                   .name = name,
                   .title = title,
                   .ranks = RankLayout::kShards,
                   .precision = PrecisionRule::kMasters,
                   .offload_hint = "optimizer: parameters can be offloaded in stage 3 only",
                   .sync_choice = false,
                   .module_hooks = stage3,
                   .checkpoint_outside = stage3,
                   .deepspeed = true,
                   .calibrated = kind == FrameworkKind::kZero1,
                   // Stage 3 records its trace, then compares it over the ranks; the engine's timer
                   // waits for the device from the third step on.
                   .steady_steps = steps<3>,
                   .reduction_dtype = zero_reduction,
                   .make = zero_framework};
  if (stage3)
    row.offloads = kEither;
  else
    row.offloads = kOptimizerOnly;
  return row;
}

constexpr FrameworkRow kRows[] = {
    {.kind = FrameworkKind::kUnsharded,
     .name = "none",
     .title = "one device",
     .ranks = RankLayout::kOneDevice,
     .precision = PrecisionRule::kParameters,
     .offload_hint = "none: nothing is offloaded without sharding",
     .sync_choice = false,
     .steady_steps = steps<2>,
     .reduction_dtype = own_or_asked_reduction,
     .make = unsharded},
    {.kind = FrameworkKind::kDdp,
     .name = "ddp",
     .title = "DDP",
     .ranks = RankLayout::kCopies,
     .precision = PrecisionRule::kParameters,
     .offload_hint = "none: nothing is offloaded without sharding",
     .steady_steps = ddp::steady_steps,
     .compute_dtype = ddp_compute,
     .reduction_dtype = ddp_reduction,
     .make = make_ddp},
    {.kind = FrameworkKind::kFsdp2,
     .name = "fsdp2",
     .title = "FSDP2",
     .units = UnitForm::kModuleGroup,
     .root_split = true,
     .reshard = ReshardChoice::kReshard,
     .offloads = kParametersOnly,
     .offload_hint = kFsdpOffload,
     .module_hooks = true,
     .dtensor = true,
     .steady_steps = steps<2>,
     .reduction_dtype = own_or_asked_reduction,
     .make = make_fsdp2},
    {.kind = FrameworkKind::kFsdp1,
     .name = "fsdp1",
     .title = "FSDP1",
     .units = UnitForm::kModule,
     .reshard = ReshardChoice::kStrategy,
     .offloads = kParametersOnly,
     .offload_hint = kFsdpOffload,
     .module_hooks = true,
     .steady_steps = fsdp1_steps,
     .reduction_dtype = own_or_asked_reduction,
     .make = fsdp1_framework},
    zero_row(FrameworkKind::kZero1, "zero1", "ZeRO-1"),
    zero_row(FrameworkKind::kZero2, "zero2", "ZeRO-2"),
    zero_row(FrameworkKind::kZero3, "zero3", "ZeRO-3"),
    {.kind = FrameworkKind::kShardedOptimizer,
     .name = "sharded-optimizer",
     .title = "data parallel, sharded optimizer",
     .precision = PrecisionRule::kMasters,
     .offload_hint = "none: it keeps everything on the device",
     .casts_model = false,
     .steady_steps = steps<2>,
     .reduction_dtype = sharded_optimizer_reduction,
     .make = make_sharded_optimizer},
};
static_assert(has_row_for_each(kRows, &FrameworkRow::kind));
#ifndef __SANITIZE_ADDRESS__  // GCC bug 71962: no addresses in constant expressions under UBSan.
static_assert(std::all_of(std::begin(kRows), std::end(kRows), [](const FrameworkRow& row) {
  return !row.name.empty() && !row.title.empty() && row.steady_steps != nullptr &&
         row.reduction_dtype != nullptr && row.make != nullptr;
}));
#endif

}  // namespace

DType asked_compute_dtype(const ParallelConfig& c) {
  return c.precision.param.value_or(c.model_dtype);
}

bool FrameworkRow::can_offload(OffloadKind what) const {
  return what == OffloadKind::kNone ||
         std::find(offloads.begin(), offloads.end(), what) != offloads.end();
}

std::span<const FrameworkRow> frameworks() { return kRows; }

const FrameworkRow& row_of(FrameworkKind kind) { return kRows[static_cast<std::size_t>(kind)]; }

const FrameworkRow* find_framework(std::string_view name) {
  for (const FrameworkRow& row : kRows)
    if (row.name == name) return &row;
  return nullptr;
}

}  // namespace foreshard
