#include "cli/foreign/torchtitan_keys.h"

namespace foreshard::cli::torchtitan {
namespace {

using enum KeyRule;

constexpr const char* kLogging = "logging";
constexpr const char* kSaving = "saving and loading are outside a step";
constexpr const char* kPipeline = "with pipeline parallelism only";
constexpr const char* kContext = "with context parallelism only";
constexpr const char* kExperts = "with expert parallelism only";
constexpr const char* kModelRest = "files and printing";
constexpr const char* kTrainingRest = "data, number of steps, Python's garbage collector";
constexpr const char* kOptimizerRest = "numbers of the same kernels";
constexpr const char* kActivationCheckpointRest = "with memory_budget only, or checks";
constexpr const char* kFaultToleranceRest = "with fault_tolerance.enable only";
constexpr const char* kDebugRest = "seeds and checks";
constexpr const char* kCommRest = "timeouts and records of calls";

constexpr KeyRow kRows[] = {
    // Model and training
    {"model.name", kTaken, "the model, with its flavor"},
    {"model.flavor", kTaken, "the model"},
    {"model.converters", kTaken, "--float8 with quantize.linear.float8"},
    {"model.hf_assets_path", kSamePlan, kModelRest},
    {"model.tokenizer_path", kSamePlan, kModelRest},
    {"model.print_after_conversion", kSamePlan, kModelRest},
    {"training.local_batch_size", kTaken, "--micro-batch"},
    {"training.global_batch_size", kTaken, "--accumulate"},
    {"training.seq_len", kTaken, "--seq"},
    {"training.max_norm", kTaken, "--clip: torchtitan clips always"},
    {"training.enable_cpu_offload", kTaken, "--offload params"},
    {"training.dtype", kTaken, "--model-dtype"},
    {"training.mixed_precision_param", kTaken, "--param-dtype"},
    {"training.mixed_precision_reduce", kTaken, "--reduce-dtype"},
    {"training.compile", kTaken, "--compile (earlier versions)"},
    {"training.seed", kSamePlan, kTrainingRest},
    {"training.dataset", kSamePlan, kTrainingRest},
    {"training.dataset_path", kSamePlan, kTrainingRest},
    {"training.steps", kSamePlan, kTrainingRest},
    {"training.gc_freq", kSamePlan, kTrainingRest},
    {"training.gc_debug", kSamePlan, kTrainingRest},
    {"training.dataloader.num_workers", kSamePlan, kTrainingRest},
    {"training.dataloader.persistent_workers", kSamePlan, kTrainingRest},
    {"training.dataloader.pin_memory", kSamePlan, kTrainingRest},
    {"training.dataloader.prefetch_factor", kSamePlan, kTrainingRest},
    {"optimizer.name", kTaken, "--optimizer"},
    {"optimizer.implementation", kTaken, "--optimizer"},
    {"optimizer.early_step_in_backward", kRefused, "plans step after backward", "false"},
    {"optimizer.lr", kSamePlan, kOptimizerRest},
    {"optimizer.beta1", kSamePlan, kOptimizerRest},
    {"optimizer.beta2", kSamePlan, kOptimizerRest},
    {"optimizer.eps", kSamePlan, kOptimizerRest},
    {"optimizer.weight_decay", kSamePlan, kOptimizerRest},
    {"lr_scheduler.*", kSamePlan, "the learning rate"},
    {"activation_checkpoint.mode", kTaken, "--checkpoint"},
    {"activation_checkpoint.selective_ac_option", kTaken, "--checkpoint every:K, selective"},
    {"activation_checkpoint.early_stop", kTaken, "where a recomputation ends"},
    {"activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns", kSamePlan,
     "routers of experts; one small product a block"},
    {"activation_checkpoint.memory_budget", kSamePlan, kActivationCheckpointRest},
    {"activation_checkpoint.visualize_memory_budget_pareto", kSamePlan, kActivationCheckpointRest},
    {"activation_checkpoint.preserve_rng_state", kSamePlan, kActivationCheckpointRest},
    {"activation_checkpoint.determinism_check", kSamePlan, kActivationCheckpointRest},
    {"activation_checkpoint.debug", kSamePlan, kActivationCheckpointRest},
    {"compile.enable", kTaken, "--compile"},
    {"compile.components", kTaken, "--compile for \"model\""},
    {"compile.backend", kRefused, "compiled blocks are inductor's", "\"inductor\""},

    // Parallelism
    {"parallelism.data_parallel_replicate_degree", kTaken, "--replicate"},
    {"parallelism.data_parallel_shard_degree", kTaken, "--shard"},
    {"parallelism.fsdp_reshard_after_forward", kTaken, "--reshard"},
    {"parallelism.tensor_parallel_degree", kRefused, "tensor parallelism is not planned", "1"},
    {"parallelism.pipeline_parallel_degree", kRefused, "pipeline parallelism is not planned", "1"},
    {"parallelism.context_parallel_degree", kRefused, "context parallelism is not planned", "1"},
    {"parallelism.expert_parallel_degree", kRefused, "expert parallelism is not planned", "1"},
    {"parallelism.expert_tensor_parallel_degree", kSamePlan, kExperts},
    {"parallelism.expert_parallel_comm_backend", kSamePlan, kExperts},
    {"parallelism.disable_loss_parallel", kSamePlan, "with tensor parallelism only"},
    {"parallelism.enable_async_tensor_parallel", kSamePlan, "with tensor parallelism only"},
    {"parallelism.enable_compiled_autograd", kRefused, "backward is planned as autograd runs it",
     "false"},
    {"parallelism.module_fqns_per_model_part", kSamePlan, kPipeline},
    {"parallelism.pipeline_parallel_first_stage_less_layers", kSamePlan, kPipeline},
    {"parallelism.pipeline_parallel_last_stage_less_layers", kSamePlan, kPipeline},
    {"parallelism.pipeline_parallel_layers_per_stage", kSamePlan, kPipeline},
    {"parallelism.pipeline_parallel_split_points", kSamePlan, kPipeline},
    {"parallelism.pipeline_parallel_schedule", kSamePlan, kPipeline},
    {"parallelism.pipeline_parallel_schedule_csv", kSamePlan, kPipeline},
    {"parallelism.pipeline_parallel_microbatch_size", kSamePlan, kPipeline},
    {"parallelism.pipeline_parallel_expert_parallel_overlap", kSamePlan, kPipeline},
    {"parallelism.context_parallel_load_balancer", kSamePlan, kContext},
    {"parallelism.context_parallel_rotate_method", kSamePlan, kContext},

    // 8-bit products
    {"quantize.linear.float8.recipe_name", kTaken, "--float8"},
    {"quantize.linear.float8.enable_fsdp_float8_all_gather", kTaken, "--float8-all-gather"},
    {"quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp", kTaken,
     "--float8-precompute-scales"},
    {"quantize.linear.float8.filter_fqns", kTaken, "linear layers that stay in 16 bits"},
    {"quantize.linear.float8.emulate", kRefused, "8-bit products are the hardware's", "false"},
    {"quantize.linear.mx.*", kSamePlan, "with the converter \"mx\" only, which is refused"},
    {"quantize.grouped_mm.*", kSamePlan, "with its converter only, which is refused"},

    // The rest
    {"fault_tolerance.enable", kRefused, "torchft's reductions between replicas", "false"},
    {"fault_tolerance.process_group", kSamePlan, kFaultToleranceRest},
    {"fault_tolerance.process_group_timeout_ms", kSamePlan, kFaultToleranceRest},
    {"fault_tolerance.replica_id", kSamePlan, kFaultToleranceRest},
    {"fault_tolerance.group_size", kSamePlan, kFaultToleranceRest},
    {"fault_tolerance.min_replica_size", kSamePlan, kFaultToleranceRest},
    {"fault_tolerance.semi_sync_method", kSamePlan, kFaultToleranceRest},
    {"comm.mode", kRefused, "no real collectives", "\"default\""},
    {"comm.init_timeout_seconds", kSamePlan, kCommRest},
    {"comm.train_timeout_seconds", kSamePlan, kCommRest},
    {"comm.trace_buf_size", kSamePlan, kCommRest},
    {"comm.save_traces_folder", kSamePlan, kCommRest},
    {"comm.save_traces_file_prefix", kSamePlan, kCommRest},
    {"memory_estimation.enable", kRefused, "estimates memory in place of training", "false"},
    {"memory_estimation.disable_fake_mode", kSamePlan, "with memory_estimation.enable only"},
    {"experimental.custom_import", kNotModelled, "what that module changes", "\"\""},
    {"experimental.custom_args_module", kNotModelled, "what that module changes", "\"\""},
    {"debug.deterministic", kNotModelled, "deterministic kernels, which are slower", "false"},
    {"debug.seed", kSamePlan, kDebugRest},
    {"debug.deterministic_warn_only", kSamePlan, kDebugRest},
    {"debug.moe_force_load_balance", kSamePlan, kDebugRest},
    {"job.*", kSamePlan, "files and printing"},
    {"profiling.*", kSamePlan, kLogging},
    {"metrics.*", kSamePlan, kLogging},
    {"checkpoint.*", kSamePlan, kSaving},
    {"validation.*", kSamePlan, "evaluation is outside a step"},
};

}  // namespace

std::span<const KeyRow> key_table() { return kRows; }

const std::map<std::string, std::string>& other_names() {
  static const std::map<std::string, std::string> names{
      {"training.batch_size", "training.local_batch_size"},
      {"float8", "quantize.linear.float8"},
      {"mx", "quantize.linear.mx"},
      {"training.deterministic", "debug.deterministic"},
      {"training.data_parallel_replicate_degree", "parallelism.data_parallel_replicate_degree"},
      {"training.data_parallel_shard_degree", "parallelism.data_parallel_shard_degree"},
      {"training.tensor_parallel_degree", "parallelism.tensor_parallel_degree"}};
  return names;
}

}  // namespace foreshard::cli::torchtitan
