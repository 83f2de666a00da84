#pragma once

// What a person chooses about a training job: everything that turns a model into a schedule except
// the hardware.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/units.h"

namespace foreshard {

enum class FrameworkKind : std::uint8_t {
  kUnsharded,
  kDdp,
  kFsdp2,
  kFsdp1,
  kZero1,
  kZero2,
  kZero3,
  kShardedOptimizer
};
enum class OptimizerKind : std::uint8_t { kAdamWFused, kAdamWForeach, kAdamWForLoop, kSgd, kNone };
/// What lives in host memory between uses. FSDP2: parameters (the optimizer then steps on the CPU
/// too); DeepSpeed: the optimizer, the parameters (stage 3), or both.
enum class OffloadKind : std::uint8_t { kNone, kParameters, kOptimizer, kBoth };
enum class AttentionKind : std::uint8_t {
  kFlash,         ///< SDPA: flash attention where no mask forbids it, else as kSdpa.
  kSdpa,          ///< SDPA without flash attention: the memory-efficient kernel.
  kMath,          ///< SDPA's own products in fp32.
  kEager,         ///< Products and a softmax written out in the compute dtype.
  kFlashLibrary,  ///< flash-attn's own functions, as transformers' flash_attention_2 calls them:
                  ///< sliding windows are the kernel's, and no mask is made.
};
/// Its kernel is one of flash-attn's (or cuDNN's) where nothing forbids it.
constexpr bool takes_flash(AttentionKind kind) {
  return kind == AttentionKind::kFlash || kind == AttentionKind::kFlashLibrary;
}
/// How the loss is computed from the logits: cast to fp32 then cross-entropy (PyTorch recipes), in
/// the logits' own dtype, in chunks of tokens, or one fused kernel that never stores the logits'
/// gradient apart.
enum class LossKind : std::uint8_t {
  kCrossEntropyFloat,
  kCrossEntropy,
  kChunked,
  kFused,
  kMeanSquare,
  kMeanSquareOutput
};
enum class CheckpointKind : std::uint8_t { kNone, kFull, kEveryK, kSelectiveOp, kModules };

/// 8-bit products in the linear layers of the blocks; head, attention and everything else stay in
/// the compute dtype. Scales are found anew for each product from the largest element of the tensor
/// (kTensorwise) or of each row along the summed dimension (kRowwise, torchao; ...HighPrecision:
/// the weight gradient stays in 16 bits), or carried from earlier steps (kDelayed, Transformer
/// Engine, whose casts write both layouts at once).
enum class Float8Kind : std::uint8_t {
  kNone,
  kTensorwise,
  kRowwise,
  kRowwiseHighPrecision,
  kDelayed
};

/// Resharding after forward: never, always, or to a smaller group of `group` ranks (F2-F-3).
struct Reshard {
  enum class Kind : std::uint8_t { kDefault, kNo, kYes, kGroup } kind = Kind::kDefault;
  std::int64_t group = 0;
  static Reshard no() { return {Kind::kNo, 0}; }
  static Reshard yes() { return {Kind::kYes, 0}; }
  static Reshard to_group(std::int64_t n) { return {Kind::kGroup, n}; }
};

/// Precision of one unit. Absent: the parameters' own dtype (reduce: the parameters' original
/// dtype, F2-MP-1).
struct MixedPrecision {
  std::optional<DType> param, reduce, output, buffer;
  bool cast_forward_inputs = true;
};

/// Which modules form a unit. The calls are made in the order a user would: inner modules first,
/// the root last.
struct WrapPolicy {
  enum class Kind : std::uint8_t {
    kBlocks,
    kEveryK,
    kRootOnly,
    kSize,
    kModules,
    kBlocksAndAdapters,  ///< Where weights are frozen, also each trainable leaf (peft's policy).
    kCalls               ///< ParallelConfig::calls.
  } kind = Kind::kBlocks;
  std::int64_t every = 1;                   ///< kEveryK: consecutive blocks in one unit.
  std::int64_t min_elements = 100'000'000;  ///< kSize: FSDP1's size-based policy (F1-G-4).
  std::vector<std::string> modules;         ///< kModules: names, or class names.
  bool root_split =
      true;  ///< Embedding one unit, final norm and head another (F2-G-5), outside the root.
};

/// One explicit `fully_shard` call (WrapPolicy::Kind::kCalls); everything a user can say per call.
struct WrapCall {
  std::vector<std::string> modules;
  Reshard reshard;
  std::optional<MixedPrecision> precision;  ///< Absent: the job's.
  std::map<std::string, DType> param_dtype_override;
  struct Placement {
    int dim = 0;
    std::int64_t mesh_size = 0;
  };  ///< mesh_size 0: the whole shard mesh.
  std::map<std::string, Placement> placement;
  std::vector<std::string> ignored_parameters;
  bool offload = false;
  bool as_list = false;
};

/// What a bucket goes through on its way: torch.distributed.algorithms.ddp_comm_hooks.
enum class DdpCommHook : std::uint8_t {
  kNone,
  kAllReduce,
  kBf16Compress,
  kFp16Compress,
  kPowerSgd
};

/// PowerSGDState of powerSGD_hook.py, under its names where they are short.
struct PowerSgdOptions {
  std::int64_t rank = 1;  ///< matrix_approximation_rank.
  /// start_powerSGD_iter: buckets are all-reduced whole before. PyTorch's default is 1,000; plans
  /// show the steps after it, and 2 is the least that error feedback and warm start allow.
  std::int64_t start_iteration = 2;
  double min_compression_rate = 2;
  double orthogonalization_epsilon = 0;
  bool error_feedback = true, warm_start = true;
};

struct DdpOptions {
  std::optional<double> bucket_cap_mib;     ///< Absent: 25 with a first bucket of 1 MiB (D-2, D-3).
  std::vector<double> bucket_cap_mib_list;  ///< One for each bucket, the last repeats; overrides
                                            ///< bucket_cap_mib (D-3).
  bool last_bucket_small = false;           ///< DDP_SET_LAST_BUCKET_CAP=1 (D-5).
  bool gradient_as_bucket_view = false;
  bool static_graph = false;
  bool find_unused_parameters = false;
  bool skip_all_reduce_unused =
      false;  ///< skip_all_reduce_unused_params: wholly unused buckets are not reduced.
  bool batched_grad_copy = false;  ///< One list copy and one division for each bucket.
  bool lazy_bucket_allocation = false;
  bool broadcast_buffers = true;  ///< From rank 0, before every forward and at construction (D-1).
  bool init_sync = true;          ///< Construction verifies and broadcasts the parameters (D-1).
  bool verify_parameters = true;  ///< Part of init_sync; some recordings leave it out.
  DdpCommHook comm_hook = DdpCommHook::kNone;
  PowerSgdOptions power_sgd;
  std::optional<MixedPrecision>
      mixed_precision;  ///< DDP's own (D-10); autocast is ParallelConfig::autocast.
  std::vector<std::string> ignored_parameters;  ///< _set_params_and_buffers_to_ignore_for_model.
};

/// FullyShardedDataParallel of PyTorch, flat parameters; names as its arguments
/// (torch/distributed/fsdp/api.py, wrap.py).
struct Fsdp1Options {
  enum class Strategy : std::uint8_t {
    kFullShard,
    kShardGradOp,
    kNoShard,
    kHybrid,
    kHybridZero2
  } strategy = Strategy::kFullShard;
  enum class BackwardPrefetch : std::uint8_t {
    kPre,
    kPost,
    kNone
  } backward_prefetch = BackwardPrefetch::kPre;
  bool forward_prefetch = false;
  bool limit_all_gathers = true;
  bool use_orig_params = false;
  bool keep_low_precision_grads = false;
  bool cast_forward_inputs = false, cast_root_forward_inputs = true;
  /// Classes kept in full precision as units of their own (F1-G-5). Absent: BatchNorm of any
  /// dimension.
  std::optional<std::vector<std::string>> full_precision_classes;
  std::vector<std::string> ignored_modules, ignored_parameters;

  /// How the modules are wrapped. kFromWrap: as ParallelConfig::wrap says (blocks and named
  /// modules: lambda policy).
  enum class Policy : std::uint8_t {
    kFromWrap,
    kModuleClass,
    kTransformer,
    kSize,
    kLambda,
    kAlways,
    kCustom,
    kManual,
  } policy = Policy::kFromWrap;
  std::vector<std::string> policy_names;    ///< Classes (kModuleClass, kTransformer) or modules
                                            ///< (kLambda; kManual: in order of the calls).
  std::int64_t min_elements = 100'000'000;  ///< kSize.
  std::optional<std::vector<std::string>> force_leaf_classes,
      exclude_classes;  ///< kSize; absent: PyTorch's.
  /// Arguments of one unit that differ from the root's (CustomPolicy).
  struct Override {
    std::optional<Strategy> strategy;
    std::optional<BackwardPrefetch> backward_prefetch;
    std::optional<MixedPrecision> precision;
  };
  std::map<std::string, Override> custom;  ///< kCustom: wrapped modules by name.
};

struct ZeroOptions {
  std::int64_t reduce_bucket_size = 500'000'000, allgather_bucket_size = 500'000'000;
  std::int64_t prefetch_bucket_size = 50'000'000, param_persistence_threshold = 100'000;
  std::int64_t model_persistence_threshold = INT64_MAX, max_live_parameters = 1'000'000'000,
               max_reuse_distance = 1'000'000'000;
  std::int64_t sub_group_size = 1'000'000'000;
  std::optional<bool> overlap_comm;
  bool contiguous_gradients = true, reduce_scatter = true, round_robin_gradients = false;
  bool multi_rank_all_reduce = true;  ///< use_multi_rank_bucket_allreduce (Z2-G-2).
  std::int64_t hpz_partition_size =
      1;  ///< zero_hpz_partition_size: ranks of the secondary group (Z3-X).
  bool quantised_weights = false;    ///< zero_quantized_weights: gathers in int8 blocks (qwZ).
  bool quantised_gradients = false;  ///< zero_quantized_gradients: int4 all-to-alls (qgZ).
  /// GPUs that a process sees (device_count()): qgZ reduces among them first. 0: not known.
  std::int64_t gpus_per_node = 0;
  std::int64_t module_granularity_threshold =
      0;                                  ///< Modules this fine are fetched as a whole (Z3-P-3).
  std::vector<std::string> leaf_classes;  ///< set_z3_leaf_modules: fetched as a whole (Z3-P-3).
  bool pin_memory = false;  ///< Page-locked memory of offloaded states (offload_*.pin_memory).
  bool partitioned_construction =
      false;  ///< The model is built under deepspeed.zero.Init: never whole on a device.
  /// offload_optimizer.ratio of stage 3: the last sub-groups, this part of them, are stepped on the
  /// CPU, the first ones on the device (twin flow).
  double offload_ratio = 1;
  /// timers.throughput, enabled and synchronized: the host waits for the device around each
  /// micro-batch from the third step on (DS-TIMER).
  bool throughput_timer = true;
  /// The engine reads its event timers after every micro-batch.
  bool wall_clock_breakdown = false;
  std::optional<DType> communication_dtype, grad_accum_dtype;  ///< Absent: the compute dtype.
};

/// Data parallelism with the optimizer sharded over `shard` neighbours, as trainers write it
/// themselves (nanotron, InternEvo): every rank keeps whole 16-bit parameters, each updates its
/// part of every tensor and sends it to the others.
struct ShardedOptimizerOptions {
  /// Gradients of a bucket are reduced while backward goes on.
  double bucket_mib = 25;
  /// Gradients are added to an fp32 buffer after every micro-batch and reduced in fp32 (nanotron).
  bool accumulate_in_float32 = false;
  /// One collective for each tensor (coalesced calls of c10d share a launch, not a ring), or one
  /// for each flattened bucket.
  bool one_collective_per_tensor = false;
  /// Reduce-scatter each tensor to its owners; otherwise all-reduce. Needs replicate = 1.
  bool reduce_scatter = false;
  /// One all-reduce of all fp32 sums when backward is over (nanotron's ZeRO-1, whose model is not
  /// wrapped in DDP: trainer.py). Needs accumulate_in_float32.
  bool reduce_after_backward = false;
  /// The update is gathered through lists: flat copies of all parts by rank, one collective, a copy
  /// for each part of each tensor (nanotron's all_gather_coalesced).
  bool gather_lists = false;
  /// After the update each tensor is broadcast by the one rank that owns it as a whole (InternEvo);
  /// otherwise gathered.
  bool owners_broadcast = false;
  /// CUDA_DEVICE_MAX_CONNECTIONS=1: kernels of all streams start in the order of their launch, so
  /// that backward stands still from the launch of a bucket's collective until the one before is
  /// done and it can start.
  bool one_hardware_queue = false;
};

struct ParallelConfig {
  FrameworkKind framework = FrameworkKind::kFsdp2;
  std::int64_t shard = 1, replicate = 1;  ///< World size = shard * replicate (DDP: replicate).
  std::int64_t micro_batch = 1, sequence = 2048;
  std::int64_t accumulate = 1;
  bool sync_each_micro_batch = true;
  bool average_micro_batches =
      false;  ///< The script divides each loss by `accumulate` before backward.

  WrapPolicy wrap;
  std::vector<WrapCall> calls;  ///< For WrapPolicy::Kind::kCalls.
  Reshard reshard, root_reshard;
  /// Explicit prefetch depth: absent = the framework's implicit rule; n = the next n units listed;
  /// 0 = an empty list.
  std::optional<std::int64_t> prefetch_forward, prefetch_backward;
  std::map<std::string, std::vector<std::string>> forward_prefetch_lists, backward_prefetch_lists;
  MixedPrecision precision{DType::kBFloat16, DType::kFloat32, std::nullopt, std::nullopt, true};
  DType model_dtype =
      DType::kFloat32;  ///< Dtype of the parameters as built (and of the optimizer states).
  bool autocast = false;

  CheckpointKind checkpoint = CheckpointKind::kNone;
  std::int64_t checkpoint_every = 1;  ///< kEveryK: blocks with index % k == 0 (CK-4).
  std::vector<std::string> checkpoint_modules;
  bool checkpoint_early_stop = true;  ///< CK-3.
  /// checkpoint(unit(module)) instead of unit(checkpoint(module)): the framework's hooks run again
  /// in recomputation.
  bool checkpoint_outside_units = false;
  bool checkpoint_reentrant = false;  ///< torch.utils.checkpoint(use_reentrant=True).

  OptimizerKind optimizer = OptimizerKind::kAdamWForeach;
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01,
         momentum = 0.9;
  bool clip = true;
  double max_norm = 1.0;
  OffloadKind offload = OffloadKind::kNone;
  bool compile = false;
  Float8Kind float8 = Float8Kind::kNone;
  bool float8_all_gather =
      false;  ///< Weights are cast before they are gathered (torchao with FSDP2).
  /// precompute_float8_dynamic_scale_for_fsdp after each optimizer step; otherwise every gather
  /// finds the scales of its weights with an all-reduce each.
  bool float8_precompute_scales = true;
  AttentionKind attention = AttentionKind::kFlash;
  /// Rows hold several documents: Hugging Face models then pass a mask to attention instead of
  /// asking for a causal one, which takes the memory-efficient kernel with keys and values repeated
  /// to every query head.
  bool packed_sequences = false;
  LossKind loss = LossKind::kCrossEntropyFloat;
  std::int64_t loss_chunks = 8;

  std::int64_t reduce_scatter_max_inputs = 1;  ///< F2-RS-4.
  bool unshard_async = false;                  ///< F2-AG-10.

  DdpOptions ddp;
  Fsdp1Options fsdp1;
  ZeroOptions zero;
  ShardedOptimizerOptions sharded_optimizer;

  std::int64_t world() const { return shard * replicate; }
};

}  // namespace foreshard
