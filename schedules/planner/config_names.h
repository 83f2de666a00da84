#pragma once

// How the values of a configuration are written: on the command line, in configuration files and in
// advice. One table each, which its readers and writers share.

#include "core/enum_names.h"
#include "schedules/planner/config.h"

namespace foreshard {

inline constexpr EnumName<OffloadKind> kOffloadNames[] = {{OffloadKind::kNone, "none"},
                                                          {OffloadKind::kParameters, "params"},
                                                          {OffloadKind::kOptimizer, "optimizer"},
                                                          {OffloadKind::kBoth, "both"}};
static_assert(names_each(kOffloadNames));

inline constexpr EnumName<AttentionKind> kAttentionNames[] = {{AttentionKind::kFlash, "flash"},
                                                              {AttentionKind::kSdpa, "sdpa"},
                                                              {AttentionKind::kMath, "math"},
                                                              {AttentionKind::kEager, "eager"},
                                                              {AttentionKind::kFlashLibrary,
                                                               "flash-attn"}};
static_assert(names_each(kAttentionNames));

inline constexpr EnumName<Float8Kind> kFloat8Names[] = {
    {Float8Kind::kNone, "none"},
    {Float8Kind::kTensorwise, "tensorwise"},
    {Float8Kind::kRowwise, "rowwise"},
    {Float8Kind::kRowwiseHighPrecision, "rowwise-gw-hp"},
    {Float8Kind::kDelayed, "delayed"}};
static_assert(names_each(kFloat8Names));

inline constexpr EnumName<DdpCommHook> kCommHookNames[] = {{DdpCommHook::kNone, "none"},
                                                           {DdpCommHook::kAllReduce, "allreduce"},
                                                           {DdpCommHook::kBf16Compress, "bf16"},
                                                           {DdpCommHook::kFp16Compress, "fp16"},
                                                           {DdpCommHook::kPowerSgd, "powersgd"}};
static_assert(names_each(kCommHookNames));

inline constexpr EnumName<Fsdp1Options::Strategy> kStrategyNames[] = {
    {Fsdp1Options::Strategy::kFullShard, "full_shard"},
    {Fsdp1Options::Strategy::kShardGradOp, "shard_grad_op"},
    {Fsdp1Options::Strategy::kNoShard, "no_shard"},
    {Fsdp1Options::Strategy::kHybrid, "hybrid_shard"},
    {Fsdp1Options::Strategy::kHybridZero2, "hybrid_shard_zero2"}};
static_assert(names_each(kStrategyNames));

inline constexpr EnumName<Fsdp1Options::BackwardPrefetch> kBackwardPrefetchNames[] = {
    {Fsdp1Options::BackwardPrefetch::kPre, "backward_pre"},
    {Fsdp1Options::BackwardPrefetch::kPost, "backward_post"},
    {Fsdp1Options::BackwardPrefetch::kNone, "none"}};
static_assert(names_each(kBackwardPrefetchNames));

// Those that a user of the program can choose; the others are for recorded cases.

inline constexpr EnumName<OptimizerKind> kOptimizerNames[] = {
    {OptimizerKind::kAdamWFused, "adamw"},
    {OptimizerKind::kAdamWForeach, "adamw-foreach"},
    {OptimizerKind::kAdamWForLoop, "adamw-for-loop"},
    {OptimizerKind::kSgd, "sgd"}};
static_assert(std::size(kOptimizerNames) + 1 == kEnumerators<OptimizerKind>);  // kNone

inline constexpr EnumName<LossKind> kLossNames[] = {{LossKind::kCrossEntropyFloat, "float32"},
                                                    {LossKind::kCrossEntropy, "plain"},
                                                    {LossKind::kChunked, "chunked"},
                                                    {LossKind::kFused, "fused"}};
static_assert(std::size(kLossNames) + 2 == kEnumerators<LossKind>);  // mean squares: no option

inline constexpr EnumName<Fsdp1Options::Policy> kFsdp1PolicyNames[] = {
    {Fsdp1Options::Policy::kFromWrap, "lambda"},
    {Fsdp1Options::Policy::kModuleClass, "module_class"},
    {Fsdp1Options::Policy::kTransformer, "transformer"},
    {Fsdp1Options::Policy::kAlways, "always"}};
static_assert(std::size(kFsdp1PolicyNames) + 4 ==
              kEnumerators<Fsdp1Options::Policy>);  // kSize is --wrap's; three are recordings'

}  // namespace foreshard
