#include "cli/foreign/accelerate_keys.h"

namespace foreshard::cli::accelerate {
namespace {

using enum KeyRule;

constexpr const char* kLaunch = "how processes are started";
constexpr const char* kSaving = "saving and loading are outside a step";
constexpr const char* kOfDeepSpeed = "as that key of DeepSpeed's file";
constexpr const char* kParallelismConfigRest = "with context or sequence parallelism only";

constexpr KeyRow kRows[] = {
    // The job
    {"compute_environment", kRefused, "SageMaker's keys are others", "\"LOCAL_MACHINE\""},
    {"distributed_type", kTaken, "--framework"},
    {"mixed_precision", kTaken, "--param-dtype, --reduce-dtype, --autocast"},
    {"fp16", kTaken, "old for mixed_precision: fp16"},
    {"num_processes", kTaken, "--gpus"},
    {"num_machines", kTaken, "nodes, between which HYBRID_SHARD keeps copies"},
    {"use_cpu", kRefused, "jobs run on GPUs", "false"},
    {"downcast_bf16", kSamePlan, "TPUs only"},
    {"debug", kNotModelled, "checks of shapes before each collective of Accelerate's", "false"},
    {"machine_rank", kSamePlan, kLaunch},
    {"gpu_ids", kSamePlan, kLaunch},
    {"main_process_ip", kSamePlan, kLaunch},
    {"main_process_port", kSamePlan, kLaunch},
    {"rdzv_backend", kSamePlan, kLaunch},
    {"same_network", kSamePlan, kLaunch},
    {"main_training_function", kSamePlan, kLaunch},
    {"enable_cpu_affinity", kSamePlan, kLaunch},
    {"mpirun_config.*", kSamePlan, kLaunch},
    {"command_file", kSamePlan, kLaunch},
    {"commands", kSamePlan, kLaunch},
    {"tpu_name", kSamePlan, "TPUs only"},
    {"tpu_zone", kSamePlan, "TPUs only"},
    {"tpu_use_cluster", kSamePlan, "TPUs only"},
    {"tpu_use_sudo", kSamePlan, "TPUs only"},
    {"tpu_vm", kSamePlan, "TPUs only"},
    {"tpu_env", kSamePlan, "TPUs only"},
    {"fp8_config.*", kRefused, "8-bit products of Accelerate's backends: --float8 by hand", "{}"},
    {"megatron_lm_config.*", kRefused, "Megatron-LM is not planned", "{}"},

    // FSDP
    {"fsdp_config.fsdp_version", kTaken, "--framework fsdp1, fsdp2"},
    {"fsdp_config.fsdp_sharding_strategy", kTaken, "--fsdp1-strategy"},
    {"fsdp_config.fsdp_reshard_after_forward", kTaken, "--reshard"},
    {"fsdp_config.fsdp_auto_wrap_policy", kTaken, "--wrap"},
    {"fsdp_config.fsdp_transformer_layer_cls_to_wrap", kTaken, "--wrap modules:CLASSES"},
    {"fsdp_config.fsdp_min_num_params", kTaken, "--wrap size:N"},
    {"fsdp_config.fsdp_offload_params", kTaken, "--offload params"},
    {"fsdp_config.fsdp_backward_prefetch", kTaken, "--fsdp1-backward-prefetch"},
    {"fsdp_config.fsdp_forward_prefetch", kTaken, "--fsdp1-forward-prefetch"},
    {"fsdp_config.fsdp_use_orig_params", kTaken, "--fsdp1-use-orig-params"},
    {"fsdp_config.fsdp_activation_checkpointing", kTaken, "--checkpoint full"},
    {"fsdp_config.fsdp_activation_checkpointing_offload", kRefused,
     "activations in host memory are not planned", "false|\"false\""},
    {"fsdp_config.fsdp_ignored_modules", kRefused,
     "a pattern of module names; --fsdp1-ignored-modules takes names"},
    {"fsdp_config.fsdp_state_dict_type", kSamePlan, kSaving},
    {"fsdp_config.fsdp_cpu_ram_efficient_loading", kSamePlan, kSaving},
    {"fsdp_config.fsdp_sync_module_states", kSamePlan, "construction"},

    // DeepSpeed
    {"deepspeed_config.deepspeed_config_file", kTaken, "DeepSpeed's file, read as such"},
    {"deepspeed_config.zero_stage", kTaken, kOfDeepSpeed},
    {"deepspeed_config.offload_optimizer_device", kTaken, kOfDeepSpeed},
    {"deepspeed_config.offload_param_device", kTaken, kOfDeepSpeed},
    {"deepspeed_config.gradient_accumulation_steps", kTaken, "--accumulate"},
    {"deepspeed_config.gradient_clipping", kTaken, "--clip"},
    {"deepspeed_config.zero3_init_flag", kTaken, "--zero-init"},
    {"deepspeed_config.deepspeed_moe_layer_cls_names", kTaken, "--zero-leaf-classes"},
    {"deepspeed_config.zero3_save_16bit_model", kSamePlan, kSaving},
    {"deepspeed_config.offload_optimizer_nvme_path", kSamePlan, "NVMe only"},
    {"deepspeed_config.offload_param_nvme_path", kSamePlan, "NVMe only"},
    {"deepspeed_config.deepspeed_hostfile", kSamePlan, kLaunch},
    {"deepspeed_config.deepspeed_exclusion_filter", kSamePlan, kLaunch},
    {"deepspeed_config.deepspeed_inclusion_filter", kSamePlan, kLaunch},
    {"deepspeed_config.deepspeed_multinode_launcher", kSamePlan, kLaunch},

    // Compilation and other parallelism
    {"dynamo_config.dynamo_backend", kTaken, "--compile"},
    {"dynamo_backend", kTaken, "old for dynamo_config.dynamo_backend"},
    {"dynamo_config.dynamo_use_regional_compilation", kTaken,
     "--compile: each block, or the model"},
    {"dynamo_config.dynamo_mode", kNotModelled, "kernels chosen by trying, CUDA graphs",
     "\"default\""},
    {"dynamo_config.dynamo_use_fullgraph", kSamePlan, "a check"},
    {"dynamo_config.dynamo_use_dynamic", kNotModelled,
     "compiled kernels are planned for one length", "false"},
    {"parallelism_config.parallelism_config_dp_replicate_size", kTaken, "--replicate"},
    {"parallelism_config.parallelism_config_dp_shard_size", kTaken, "--shard"},
    {"parallelism_config.parallelism_config_tp_size", kRefused, "tensor parallelism is not planned",
     "1"},
    {"parallelism_config.parallelism_config_cp_size", kRefused,
     "context parallelism is not planned", "1"},
    {"parallelism_config.parallelism_config_sp_size", kRefused,
     "sequence parallelism is not planned", "1"},
    {"parallelism_config.parallelism_config_cp_backend", kSamePlan, kParallelismConfigRest},
    {"parallelism_config.parallelism_config_cp_comm_strategy", kSamePlan, kParallelismConfigRest},
    {"parallelism_config.parallelism_config_sp_attn_implementation", kSamePlan,
     kParallelismConfigRest},
    {"parallelism_config.parallelism_config_sp_backend", kSamePlan, kParallelismConfigRest},
    {"parallelism_config.parallelism_config_sp_seq_length", kSamePlan, kParallelismConfigRest},
    {"parallelism_config.parallelism_config_sp_seq_length_is_variable", kSamePlan,
     kParallelismConfigRest},
};

}  // namespace

std::span<const KeyRow> key_table() { return kRows; }

const std::map<std::string, std::string>& other_names() {
  static const std::map<std::string, std::string> names = [] {
    std::map<std::string, std::string> out;
    for (const KeyRow& row : kRows) {
      for (const std::string_view prefixed : {"fsdp_config.fsdp_", "dynamo_config.dynamo_",
                                              "parallelism_config.parallelism_config_"}) {
        if (row.key.substr(0, prefixed.size()) != prefixed) continue;
        const std::string section(prefixed.substr(0, prefixed.find('.') + 1));
        out[section + std::string(row.key.substr(prefixed.size()))] = row.key;
      }
    }
    return out;
  }();
  return names;
}

}  // namespace foreshard::cli::accelerate
