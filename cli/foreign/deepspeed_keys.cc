#include "cli/foreign/deepspeed_keys.h"

namespace foreshard::cli::deepspeed {
namespace {

using enum KeyRule;

constexpr const char* kLogging = "logging";
constexpr const char* kSaving = "saving and loading are outside a step";
constexpr const char* kNvmeOnly = "NVMe only";
constexpr const char* kLossScale = "the loss scale's value; that there is one is planned with fp16";
constexpr const char* kNotTraining = "another engine than that of training";
constexpr const char* kRemoved = "DeepSpeed 0.19.8 stops at this key: the feature was removed";
constexpr const char* kOwnCheckpoints =
    "deepspeed.checkpointing.checkpoint alone reads it; plans have torch.utils.checkpoint";
constexpr const char* kDeepCompile = "asks for something with compile.deepcompile only";
constexpr const char* kSuperchips = "SuperOffload only";
constexpr const char* kFlopsProfilerRest = "the profiler's one step is not planned";
constexpr const char* kTensorParallelRest = "with tensor_parallel.autotp_size only";
constexpr const char* kExpertParallelRest = "with expert_parallel.enabled only";
constexpr const char* kPipelineRest = "PipelineModule only";
constexpr const char* kHybridEngineRest = "with hybrid_engine.enabled only";

constexpr KeyRow kRows[] = {
    // The batch
    {"train_batch_size", kTaken, "micro-batch x accumulation x GPUs"},
    {"train_micro_batch_size_per_gpu", kTaken, "--micro-batch"},
    {"gradient_accumulation_steps", kTaken, "--accumulate"},
    {"managed_gradient_accumulation", kNotModelled,
     "the script decides when a step is due; planned: every --accumulate micro-batches", "true"},

    // Precision
    {"bf16.enabled", kTaken, "--param-dtype bf16"},
    {"bf16.immediate_grad_update", kSamePlan, "read by BF16_Optimizer only, which is not planned"},
    {"bf16.check_grad_overflow", kNotModelled, "the plan tests gradients for overflow all the same",
     "true"},
    {"bf16.bf16_master_weights_and_grads", kRefused,
     "plans have fp32 master weights, four bytes an element more", "false"},
    {"bf16.bf16_optimizer_states", kRefused, "plans have fp32 optimizer states", "false"},
    {"fp16.enabled", kTaken, "--param-dtype fp16"},
    {"fp16.auto_cast", kSamePlan, "casts floating-point inputs; tokens are none"},
    {"fp16.loss_scale", kSamePlan, kLossScale},
    {"fp16.initial_scale_power", kSamePlan, kLossScale},
    {"fp16.loss_scale_window", kSamePlan, kLossScale},
    {"fp16.hysteresis", kSamePlan, kLossScale},
    {"fp16.consecutive_hysteresis", kSamePlan, kLossScale},
    {"fp16.min_loss_scale", kSamePlan, kLossScale},
    {"fp16.fp16_master_weights_and_grads", kRefused, "plans have fp32 master weights", "false"},
    {"torch_autocast.enabled", kTaken, "torch.autocast instead of 16-bit parameters"},
    {"torch_autocast.dtype", kTaken, "its dtype"},
    {"torch_autocast.lower_precision_safe_modules", kTaken,
     "classes whose parameters travel in its dtype"},
    {"data_types.grad_accum_dtype", kTaken, "--zero-grad-accum-dtype"},
    {"data_types.param_dtype", kTaken, "dtype of the parameters in place of fp16 and bf16"},
    {"data_types.buffer_dtype", kNotModelled, "buffers are planned in their own dtype"},
    {"data_types.keep_in_fp32_modules", kNotModelled,
     "buffers are planned in their own dtype, whatever their module", "\"auto\"|[]"},
    {"communication_data_type", kTaken, "--reduce-dtype"},
    {"seq_parallel_communication_data_type", kSamePlan, "with sequence parallelism only"},

    // Gradients
    {"gradient_clipping", kTaken, "--clip"},
    {"prescale_gradients", kNotModelled,
     "gradients are divided before they are added; planned: one division, after the reduction",
     "false"},
    {"gradient_predivide_factor", kNotModelled, "planned: one division by the number of ranks",
     "1"},
    {"gradient_allreduce_op", kNotModelled, "the plan divides by the number of ranks", "\"mean\""},
    {"disable_allgather", kSamePlan, "no stage of ZeRO reads it"},

    // Optimizer and schedule
    {"optimizer.type", kTaken, "--optimizer"},
    {"optimizer.params.torch_adam", kTaken, "torch.optim.AdamW in place of FusedAdam"},
    {"optimizer.params.adam_w_mode", kTaken, "AdamW under the name Adam"},
    {"optimizer.params.foreach", kTaken, "--optimizer adamw-foreach, adamw-for-loop"},
    {"optimizer.params.momentum", kTaken, "SGD's momentum"},
    {"optimizer.params.amsgrad", kRefused, "one more state for each parameter", "false"},
    {"optimizer.params.fp32_optimizer_states", kRefused, "plans have fp32 states", "true"},
    {"optimizer.params.max_grad_norm", kRefused,
     "DeepSpeed stops here, too: gradient_clipping is its place"},
    {"optimizer.params.*", kSamePlan, "numbers of the same kernels"},
    {"optimizer.legacy_fusion", kSamePlan, "fp16 without ZeRO only"},
    {"scheduler.*", kSamePlan, "the learning rate"},
    {"zero_allow_untested_optimizer", kSamePlan, "a check"},
    {"zero_force_ds_cpu_optimizer", kTaken, "which optimizer steps offloaded states"},

    // ZeRO
    {"zero_optimization.stage", kTaken, "--framework zero1, zero2, zero3"},
    {"allgather_size", kTaken, "allgather_bucket_size of \"zero_optimization\": true"},
    {"zero_optimization.contiguous_gradients", kTaken, "--zero-contiguous-gradients"},
    {"zero_optimization.reduce_scatter", kTaken, "--zero-reduce-scatter"},
    {"zero_optimization.reduce_bucket_size", kTaken, "--zero-reduce-bucket-size"},
    {"zero_optimization.use_multi_rank_bucket_allreduce", kTaken, "--zero-multi-rank-allreduce"},
    {"zero_optimization.allgather_partitions", kSamePlan, "DeepSpeed 0.19.8 acts on it nowhere"},
    {"zero_optimization.allgather_bucket_size", kTaken, "--zero-allgather-bucket-size"},
    {"zero_optimization.overlap_comm", kTaken, "--zero-overlap-comm"},
    {"zero_optimization.compute_grad_norm", kNotModelled, "the norm is planned all the same",
     "true"},
    {"zero_optimization.load_from_fp32_weights", kSamePlan, kSaving},
    {"zero_optimization.elastic_checkpoint", kSamePlan, kSaving},
    {"zero_optimization.round_robin_gradients", kTaken, "--zero-round-robin-gradients"},
    {"zero_optimization.parameter_alignment", kNotModelled,
     "padding of up to 16 bytes a parameter in the flat buffers", "false"},
    {"zero_optimization.ignore_unused_parameters", kSamePlan, "a check"},
    {"zero_optimization.legacy_stage1", kRefused, "DeepSpeed stops here, too", "false"},
    {"zero_optimization.sub_group_size", kTaken, "--zero-sub-group-size"},
    {"zero_optimization.stage3_prefetch_bucket_size", kTaken, "--zero-prefetch-bucket-size"},
    {"zero_optimization.stage3_param_persistence_threshold", kTaken,
     "--zero-param-persistence-threshold"},
    {"zero_optimization.stage3_model_persistence_threshold", kTaken,
     "--zero-model-persistence-threshold"},
    {"zero_optimization.stage3_max_live_parameters", kTaken, "--zero-max-live-parameters"},
    {"zero_optimization.stage3_max_reuse_distance", kTaken, "--zero-max-reuse-distance"},
    {"zero_optimization.stage3_module_granularity_threshold", kTaken, "--zero-module-granularity"},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", kSamePlan, kSaving},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", kRefused,
     "plans fetch parameters with all-gathers", "false"},
    {"zero_optimization.stage3_allgather_sequential", kRefused,
     "plans gather the parameters of a module together", "false"},
    {"zero_optimization.leaf_module.classes", kTaken, "--zero-leaf-classes"},
    {"zero_optimization.leaf_module.names", kRefused, "--zero-leaf-classes takes classes", "[]"},
    {"zero_optimization.leaf_module.name_suffixes", kRefused, "--zero-leaf-classes takes classes",
     "[]"},
    {"zero_optimization.memory_efficient_linear", kNotModelled,
     "linear layers are planned as DeepSpeed's own function", "true"},
    {"zero_optimization.override_module_apply", kSamePlan, "construction"},
    {"zero_optimization.pipeline_loading_checkpoint", kSamePlan, kSaving},
    {"zero_optimization.log_trace_cache_warnings", kSamePlan, kLogging},
    {"zero_optimization.enable_sanity_checks", kNotModelled, "checks that make the host wait",
     "false"},
    {"zero_optimization.save_muon_momentum_buffer_in_memory", kSamePlan, "Muon only"},
    {"zero_optimization.zenflow.*", kRefused, "ZenFlow updates parts of the parameters only",
     "null"},
    // ZeRO++
    {"zero_optimization.zero_hpz_partition_size", kTaken, "--zero-hpz-partition-size"},
    {"zero_optimization.zero_quantized_weights", kTaken, "--zero-quantized-weights"},
    {"zero_optimization.zero_quantized_gradients", kTaken, "--zero-quantized-gradients"},
    {"zero_optimization.zero_quantized_nontrainable_weights", kRefused,
     "frozen weights are kept in 8 bits; --lora-base 4bit is bitsandbytes'", "false"},
    // Offload
    {"zero_optimization.offload_optimizer.device", kTaken, "--offload optimizer"},
    {"zero_optimization.offload_optimizer.pin_memory", kTaken, "--zero-pin-memory"},
    {"zero_optimization.offload_optimizer.ratio", kTaken, "--zero-offload-ratio"},
    {"zero_optimization.offload_optimizer.super_offload", kRefused,
     "SuperOffload steps on Grace's own terms", "false"},
    {"zero_optimization.offload_optimizer.cpuadam_cores_perc", kSamePlan, kSuperchips},
    {"zero_optimization.offload_optimizer.nvme_path", kSamePlan, kNvmeOnly},
    {"zero_optimization.offload_optimizer.buffer_count", kSamePlan, kNvmeOnly},
    {"zero_optimization.offload_optimizer.pipeline_read", kSamePlan, kNvmeOnly},
    {"zero_optimization.offload_optimizer.pipeline_write", kSamePlan, kNvmeOnly},
    {"zero_optimization.offload_optimizer.fast_init", kSamePlan, kNvmeOnly},
    {"zero_optimization.offload_param.device", kTaken, "--offload params"},
    {"zero_optimization.offload_param.pin_memory", kTaken, "--zero-pin-memory"},
    {"zero_optimization.offload_param.nvme_path", kSamePlan, kNvmeOnly},
    {"zero_optimization.offload_param.buffer_count", kSamePlan, kNvmeOnly},
    {"zero_optimization.offload_param.buffer_size", kSamePlan, kNvmeOnly},
    {"zero_optimization.offload_param.max_in_cpu", kSamePlan, kNvmeOnly},
    {"zero_optimization.cpu_offload", kTaken, "old for offload_optimizer: {device: cpu}"},
    {"zero_optimization.cpu_offload_param", kTaken, "old for offload_param: {device: cpu}"},
    {"zero_optimization.cpu_offload_use_pin_memory", kSamePlan,
     "deprecated: DeepSpeed 0.19.8 acts on it nowhere, offload_* have pin_memory"},
    {"aio.*", kSamePlan, kNvmeOnly},

    // Activations
    {"activation_checkpointing.partition_activations", kNotModelled, kOwnCheckpoints, "false"},
    {"activation_checkpointing.cpu_checkpointing", kNotModelled, kOwnCheckpoints, "false"},
    {"activation_checkpointing.contiguous_memory_optimization", kNotModelled, kOwnCheckpoints,
     "false"},
    {"activation_checkpointing.number_checkpoints", kSamePlan,
     "with contiguous_memory_optimization only"},
    {"activation_checkpointing.synchronize_checkpoint_boundary", kNotModelled, kOwnCheckpoints,
     "false"},
    {"activation_checkpointing.profile", kSamePlan, kLogging},

    // What is measured and written
    {"wall_clock_breakdown", kTaken, "--zero-wall-clock-breakdown"},
    {"timers.throughput.enabled", kTaken, "--zero-throughput-timer"},
    {"timers.throughput.synchronized", kTaken, "--zero-throughput-timer"},
    {"flops_profiler.enabled", kTaken, "switches wall_clock_breakdown on"},
    {"flops_profiler.detailed", kSamePlan, kFlopsProfilerRest},
    {"flops_profiler.module_depth", kSamePlan, kFlopsProfilerRest},
    {"flops_profiler.output_file", kSamePlan, kFlopsProfilerRest},
    {"flops_profiler.profile_step", kSamePlan, kFlopsProfilerRest},
    {"flops_profiler.recompute_fwd_factor", kSamePlan, kFlopsProfilerRest},
    {"flops_profiler.top_modules", kSamePlan, kFlopsProfilerRest},
    {"memory_breakdown", kNotModelled, "reading the memory's state between the parts of a step",
     "false"},
    {"comms_logger.*", kNotModelled, "timing each collective makes the host wait for it", "false"},
    {"steps_per_print", kSamePlan, kLogging},
    {"dump_state", kSamePlan, kLogging},
    {"log_level", kSamePlan, kLogging},
    {"tensorboard.*", kSamePlan, kLogging},
    {"wandb.*", kSamePlan, kLogging},
    {"csv_monitor.*", kSamePlan, kLogging},
    {"comet.*", kSamePlan, kLogging},
    {"checkpoint.*", kSamePlan, kSaving},
    {"datastates_ckpt.*", kSamePlan, kSaving},
    {"vocabulary_size", kSamePlan, "a check"},
    {"dataloader_drop_last", kSamePlan, "loading data is outside a step"},
    {"disable_python_gc", kSamePlan, "Python's garbage collector is not planned"},

    // Other engines and other parallelism
    {"sequence_parallel_size", kRefused, "Ulysses: sequence parallelism is not planned", "1"},
    {"tensor_parallel.autotp_size", kRefused, "tensor parallelism is not planned", "0|1"},
    {"tensor_parallel.dtype", kSamePlan, kTensorParallelRest},
    {"tensor_parallel.injection_policy_tuple", kSamePlan, kTensorParallelRest},
    {"tensor_parallel.keep_module_on_host", kSamePlan, kTensorParallelRest},
    {"tensor_parallel.kernel_inject", kSamePlan, kTensorParallelRest},
    {"tensor_parallel.partition_config", kSamePlan, kTensorParallelRest},
    {"tensor_parallel.preset_model", kSamePlan, kTensorParallelRest},
    {"tensor_parallel.replace_with_kernel_inject", kSamePlan, kTensorParallelRest},
    {"tensor_parallel.tensor_parallel", kSamePlan, kTensorParallelRest},
    {"tensor_parallel.tp", kSamePlan, kTensorParallelRest},
    {"tensor_parallel.tp_overlap_comm", kSamePlan, kTensorParallelRest},
    {"tensor_parallel.vocab_parallel_ce_backend", kSamePlan, kTensorParallelRest},
    {"tensor_parallel.vocab_parallel_lm_head", kSamePlan, kTensorParallelRest},
    {"expert_parallel.enabled", kRefused, "expert parallelism is not planned", "false"},
    {"expert_parallel.async_split_plan", kSamePlan, kExpertParallelRest},
    {"expert_parallel.autoep_size", kSamePlan, kExpertParallelRest},
    {"expert_parallel.combine_impl", kSamePlan, kExpertParallelRest},
    {"expert_parallel.comm_backend", kSamePlan, kExpertParallelRest},
    {"expert_parallel.comm_max_tokens_per_rank", kSamePlan, kExpertParallelRest},
    {"expert_parallel.comm_num_sm", kSamePlan, kExpertParallelRest},
    {"expert_parallel.comm_qp_margin", kSamePlan, kExpertParallelRest},
    {"expert_parallel.disable_triton_grouped_mm", kSamePlan, kExpertParallelRest},
    {"expert_parallel.expert_activation", kSamePlan, kExpertParallelRest},
    {"expert_parallel.expert_pattern", kSamePlan, kExpertParallelRest},
    {"expert_parallel.expert_tensor_parallel_size", kSamePlan, kExpertParallelRest},
    {"expert_parallel.expert_w1", kSamePlan, kExpertParallelRest},
    {"expert_parallel.expert_w2", kSamePlan, kExpertParallelRest},
    {"expert_parallel.expert_w3", kSamePlan, kExpertParallelRest},
    {"expert_parallel.gate_up_impl", kSamePlan, kExpertParallelRest},
    {"expert_parallel.has_shared_experts", kSamePlan, kExpertParallelRest},
    {"expert_parallel.load_balance_coeff", kSamePlan, kExpertParallelRest},
    {"expert_parallel.moe_layer_pattern", kSamePlan, kExpertParallelRest},
    {"expert_parallel.num_expert_groups", kSamePlan, kExpertParallelRest},
    {"expert_parallel.num_experts_attr", kSamePlan, kExpertParallelRest},
    {"expert_parallel.num_limited_groups", kSamePlan, kExpertParallelRest},
    {"expert_parallel.preset_model", kSamePlan, kExpertParallelRest},
    {"expert_parallel.route_norm", kSamePlan, kExpertParallelRest},
    {"expert_parallel.route_scale", kSamePlan, kExpertParallelRest},
    {"expert_parallel.routed_scaling_factor", kSamePlan, kExpertParallelRest},
    {"expert_parallel.router_pattern", kSamePlan, kExpertParallelRest},
    {"expert_parallel.row_weighting_impl", kSamePlan, kExpertParallelRest},
    {"expert_parallel.score_apply", kSamePlan, kExpertParallelRest},
    {"expert_parallel.score_func", kSamePlan, kExpertParallelRest},
    {"expert_parallel.shared_experts_gate_pattern", kSamePlan, kExpertParallelRest},
    {"expert_parallel.shared_experts_pattern", kSamePlan, kExpertParallelRest},
    {"expert_parallel.top_k", kSamePlan, kExpertParallelRest},
    {"expert_parallel.top_k_attr", kSamePlan, kExpertParallelRest},
    {"expert_parallel.use_grouped_mm", kSamePlan, kExpertParallelRest},
    {"expert_parallel.validate_folding_routing", kSamePlan, kExpertParallelRest},
    {"use_data_before_expert_parallelism", kSamePlan, "with expert parallelism only"},
    {"pipeline.stages", kRefused, "pipeline parallelism is not planned", "\"auto\"|1"},
    {"pipeline.activation_checkpoint_interval", kSamePlan, kPipelineRest},
    {"pipeline.grad_partitioned", kSamePlan, kPipelineRest},
    {"pipeline.partition", kSamePlan, kPipelineRest},
    {"pipeline.pipe_partitioned", kSamePlan, kPipelineRest},
    {"pipeline.seed_layers", kSamePlan, kPipelineRest},
    {"hybrid_engine.enabled", kRefused, kNotTraining, "false"},
    {"hybrid_engine.enable_cuda_graph", kSamePlan, kHybridEngineRest},
    {"hybrid_engine.inference_tp_size", kSamePlan, kHybridEngineRest},
    {"hybrid_engine.max_out_tokens", kSamePlan, kHybridEngineRest},
    {"hybrid_engine.pin_parameters", kSamePlan, kHybridEngineRest},
    {"hybrid_engine.release_inference_cache", kSamePlan, kHybridEngineRest},
    {"hybrid_engine.tp_gather_partition_size", kSamePlan, kHybridEngineRest},
    {"compile.deepcompile", kRefused,
     "DeepCompile moves gathers and reductions by passes of its own", "false"},
    {"compile.autoep_non_moe", kSamePlan, "with expert parallelism only"},
    {"compile.debug_log", kSamePlan, kDeepCompile},
    {"compile.double_buffer", kSamePlan, kDeepCompile},
    {"compile.free_activation", kSamePlan, kDeepCompile},
    {"compile.free_activation_threshold", kSamePlan, kDeepCompile},
    {"compile.keep_all_input_tensors", kSamePlan, kDeepCompile},
    {"compile.keep_int_input_tensors", kSamePlan, kDeepCompile},
    {"compile.offload_activation", kSamePlan, kDeepCompile},
    {"compile.offload_activation_pin_memory", kSamePlan, kDeepCompile},
    {"compile.offload_opt_states", kSamePlan, kDeepCompile},
    {"compile.offload_parameters", kSamePlan, kDeepCompile},
    {"compile.passes", kSamePlan, kDeepCompile},
    {"compile.symmetric_memory", kSamePlan, kDeepCompile},
    {"compile.sync_after_allgather", kSamePlan, kDeepCompile},
    {"compile.sync_after_reduce", kSamePlan, kDeepCompile},
    {"compile.sync_before_allgather", kSamePlan, kDeepCompile},
    {"compile.sync_before_reduce", kSamePlan, kDeepCompile},
    {"weight_quantization.*", kRefused, kNotTraining, "null"},
    {"data_efficiency.*", kRefused, "batches of other lengths from step to step", "false"},
    {"autotuning.*", kNotModelled, "DeepSpeed's own search; planned: the values of the file",
     "false"},

    // Removed from DeepSpeed, read by earlier releases
    {"nebula.*", kRefused, kRemoved, "false"},
    {"compression_training.*", kRefused, kRemoved, "{}"},
    {"amp.*", kRefused, kRemoved, "false"},
    {"quantize_training.*", kRefused, kRemoved, "false"},
    {"sparse_gradients", kRefused, kRemoved, "false"},
    {"eigenvalue.*", kRefused, kRemoved, "false"},
    {"sparse_attention.*", kRefused, kRemoved, "{}"},
    {"elasticity.*", kRefused, kRemoved, "false"},
    {"graph_harvesting", kRefused, kRemoved, "false"},
    {"curriculum_learning.*", kRefused, kRemoved, "false"},
    {"progressive_layer_drop.*", kRefused, kRemoved, "false"},
    {"zero_optimization.mics_shard_size", kRefused,
     "MiCS: DeepSpeed 0.19.8 stops at this key; sharding within a group: FSDP's --replicate", "-1"},
    {"zero_optimization.mics_hierarchical_params_gather", kRefused,
     "MiCS: DeepSpeed 0.19.8 stops at this key", "false"},
    {"zero_optimization.zeropp_loco_param.*", kRefused, kRemoved, "null"},
};

}  // namespace

std::span<const KeyRow> key_table() { return kRows; }

const std::map<std::string, std::string>& other_names() {
  static const std::map<std::string, std::string> names = [] {
    std::map<std::string, std::string> out;
    const std::string zero = "zero_optimization.", alias = zero + "stage3_";
    for (const KeyRow& row : kRows)
      if (row.key.substr(0, alias.size()) == alias)
        out[zero + std::string(row.key.substr(alias.size()))] = row.key;
    out[zero + "stage3_gather_fp16_weights_on_model_save"] =
        zero + "stage3_gather_16bit_weights_on_model_save";
    out["bfloat16"] = "bf16";
    return out;
  }();
  return names;
}

}  // namespace foreshard::cli::deepspeed
