// Accelerate's configuration files as options: against what its launcher and plugin make of them.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cli/foreign/accelerate_keys.h"
#include "core/json.h"
#include "tests/cli/foreign_job_helpers.h"

namespace foreshard::cli {
namespace {

using Settings = std::map<std::string, std::string>;

ForeignJob accelerate_job(const std::string& text, std::int64_t gpus = 0) {
  return import_accelerate(text, "config.yaml", gpus);
}

TEST(ForeignAccelerate, EveryKeyIsInTheTable) {
  expect_table_of("accelerate_keys.txt", 76, accelerate::key_table(), accelerate::other_names(),
                  {});
}

DType dtype_of(const Json& name) { return *parse_dtype(name.get<std::string>().substr(6)); }

/// Files that Accelerate 1.15's launcher handed to FullyShardedDataParallelPlugin, and what stood
/// in the plugin then.
TEST(ForeignAccelerate, FsdpAsThePluginHasIt) {
  const Json cases =
      read_json_file(std::string(FORESHARD_SOURCE_DIR) + "/tests/cli/data/accelerate_plugins.json");
  ASSERT_EQ(cases.size(), 10u);
  for (const Json& one : cases) {
    SCOPED_TRACE(one.at("file").dump());
    const Json& p = one.at("plugin");
    const ForeignJob job = import_accelerate(one.at("file").dump(), "config.json", 0);
    const ParallelConfig c = job_of(job, "llama-tiny --on dgx-h100 --seq 32").config;
    const bool two = p.at("version") == 2;
    EXPECT_EQ(c.framework, two ? FrameworkKind::kFsdp2 : FrameworkKind::kFsdp1);
    EXPECT_EQ(c.world(), 8);
    EXPECT_EQ(c.offload, p.at("offload") ? OffloadKind::kParameters : OffloadKind::kNone);
    EXPECT_EQ(c.checkpoint, p.at("checkpointing") ? CheckpointKind::kFull : CheckpointKind::kNone);
    const bool mixed = !p.at("param").is_null();
    EXPECT_EQ(c.precision.param, mixed ? dtype_of(p.at("param")) : DType::kFloat32);
    EXPECT_EQ(c.precision.reduce, mixed ? dtype_of(p.at("reduce")) : DType::kFloat32);
    EXPECT_EQ(c.autocast, mixed);
    if (two) {
      EXPECT_EQ(c.reshard.kind, p.at("reshard") ? Reshard::Kind::kYes : Reshard::Kind::kNo);
      continue;
    }
    using S = Fsdp1Options::Strategy;
    using B = Fsdp1Options::BackwardPrefetch;
    const std::map<std::string, S> strategies{{"FULL_SHARD", S::kFullShard},
                                              {"SHARD_GRAD_OP", S::kShardGradOp},
                                              {"NO_SHARD", S::kNoShard}};
    EXPECT_EQ(c.fsdp1.strategy, strategies.at(p.at("strategy")));
    EXPECT_EQ(c.fsdp1.backward_prefetch, p.at("backward").is_null()           ? B::kNone
                                         : p.at("backward") == "BACKWARD_PRE" ? B::kPre
                                                                              : B::kPost);
    EXPECT_EQ(c.fsdp1.forward_prefetch, p.at("forward").get<bool>());
    EXPECT_EQ(c.fsdp1.use_orig_params, p.at("orig").get<bool>());
    using W = WrapPolicy::Kind;
    EXPECT_EQ(c.wrap.kind, p.at("wrap").is_null()                          ? W::kRootOnly
                           : p.at("wrap") == "size_based_auto_wrap_policy" ? W::kSize
                           : p.at("classes").is_null()                     ? W::kBlocks
                                                                           : W::kModules);
    if (!p.at("least").is_null()) {
      EXPECT_EQ(c.wrap.min_elements, p.at("least").get<std::int64_t>());
    }
    if (!p.at("classes").is_null()) {
      EXPECT_EQ(c.wrap.modules, p.at("classes").get<std::vector<std::string>>());
    }
  }
}

/// Units of fsdp2_prepare_model, recorded by running it on a model of two blocks: blocks, embedding
/// and [norm, head] (not resharded) beside the root; with activation checkpointing each block is a
/// unit inside its checkpoint.
TEST(ForeignAccelerate, Fsdp2UnitsAndCheckpoints) {
  const ParallelConfig c =
      job_of(accelerate_job(
                 "distributed_type: FSDP\nnum_processes: 4\nmixed_precision: bf16\nfsdp_config:\n"
                 "  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                 "  fsdp_activation_checkpointing: true\n"),
             "llama-tiny --on dgx-h100 --seq 32")
          .config;
  EXPECT_EQ(c.wrap.kind, WrapPolicy::Kind::kBlocks);
  EXPECT_TRUE(c.wrap.root_split);
  EXPECT_TRUE(c.checkpoint_outside_units);
  EXPECT_EQ(c.model_dtype, DType::kFloat32);
  EXPECT_FALSE(c.sync_each_micro_batch);
}

TEST(ForeignAccelerate, DdpComputesUnderAutocast) {
  const ParallelConfig c =
      job_of(accelerate_job("distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 8\n"
                            "dynamo_config:\n  dynamo_backend: INDUCTOR\n"),
             "llama-tiny --on dgx-h100 --seq 32")
          .config;
  EXPECT_EQ(c.framework, FrameworkKind::kDdp);
  EXPECT_EQ(c.replicate, 8);
  EXPECT_TRUE(c.autocast && c.compile);
}

TEST(ForeignAccelerate, CompiledWithoutMixedPrecisionMultipliesInTf32) {
  const auto options = [](const char* kind) {
    return settings_of(accelerate_job(
        std::string("distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: '") + kind +
        "'\ndynamo_config:\n  dynamo_backend: inductor\n"));
  };
  EXPECT_EQ(options("no").at("tf32"), "yes");
  EXPECT_EQ(options("bf16").count("tf32"), 0u);
}

/// Hybrid sharding keeps a copy on each machine.
TEST(ForeignAccelerate, HybridShardingBetweenMachines) {
  const std::string rest =
      "fsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD\n  fsdp_auto_wrap_policy: "
      "TRANSFORMER_BASED_WRAP\n";
  const ParallelConfig c =
      job_of(accelerate_job("distributed_type: FSDP\nnum_processes: 32\nnum_machines: 4\n" + rest),
             "llama-tiny --on dgx-h100 --seq 32")
          .config;
  EXPECT_EQ(c.replicate, 4);
  EXPECT_EQ(c.fsdp1.strategy, Fsdp1Options::Strategy::kHybrid);
  const Settings alone =
      settings_of(accelerate_job("distributed_type: FSDP\nnum_processes: 8\n" + rest));
  EXPECT_EQ(alone.at("fsdp1-strategy"), "full_shard");
  EXPECT_EQ(alone.count("replicate"), 0u);
}

/// Accelerate's own few keys make the file that DeepSpeedPlugin makes: stage 2 and "auto" by
/// default.
TEST(ForeignAccelerate, DeepSpeedByItsOwnKeys) {
  const Settings s = settings_of(accelerate_job(
      "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\ndeepspeed_config:\n"
      "  gradient_accumulation_steps: 4\n  gradient_clipping: 0\n  offload_optimizer_device: cpu\n"
      "  offload_param_device: cpu\n  zero3_init_flag: false\n  zero_stage: 3\n"));
  for (const auto& [option, value] : Settings{{"framework", "zero3"},
                                              {"gpus", "8"},
                                              {"accumulate", "4"},
                                              {"clip", "no"},
                                              {"offload", "both"},
                                              {"zero-pin-memory", "yes"},
                                              {"zero-init", "no"},
                                              {"param-dtype", "bf16"}})
    EXPECT_EQ(s.at(option), value) << option;
  EXPECT_EQ(settings_of(accelerate_job("distributed_type: DEEPSPEED\ndeepspeed_config: {}\n"))
                .at("framework"),
            "zero2");
}

/// A DeepSpeed file beside the configuration, by its relative name; problems in it are told with
/// its name; keys that Accelerate refuses beside such a file are refused.
TEST(ForeignAccelerate, DeepSpeedsFileBesideIt) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("foreshard-accelerate-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string config = (folder / "config.yaml").string();
  const auto with = [&](const std::string& ds, const std::string& more) {
    std::ofstream(folder / "ds.json") << ds;
    return import_accelerate(
        "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config:\n"
        "  deepspeed_config_file: ds.json\n  zero3_init_flag: true\n" +
            more,
        config, 0);
  };
  const std::string good =
      R"({"train_batch_size": 16, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}})";
  const Settings s = settings_of(with(good, ""));
  EXPECT_EQ(s.at("framework"), "zero3");
  EXPECT_EQ(s.at("micro-batch"), "4");
  EXPECT_EQ(s.at("gpus"), "4");
  EXPECT_EQ(s.at("zero-init"), "yes");
  const std::string wrong = problems([&] {
    with(R"({"train_batch_size": 16, "zero_optimization": {"stage": 3, "overlap_com": true}})",
         "  zero_stage: 3\n");
  });
  EXPECT_NE(wrong.find("ds.json: zero_optimization.overlap_com: unknown key"), std::string::npos)
      << wrong;
  EXPECT_NE(wrong.find("zero_stage: stands beside deepspeed_config_file"), std::string::npos)
      << wrong;
  std::filesystem::remove_all(folder);
}

TEST(ForeignAccelerate, WhatTheFileDoesNotSayStaysOpen) {
  const ForeignJob job = accelerate_job(
      "distributed_type: FSDP\nfsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n");
  std::set<std::string> open;
  for (const OpenSetting& o : job.open) open.insert(o.option);
  EXPECT_EQ(open, (std::set<std::string>{"gpus", "param-dtype", "micro-batch", "accumulate", "seq",
                                         "optimizer", "clip", "checkpoint"}));
}

TEST(ForeignAccelerate, EachKeyWithAnyValueIsReadOrRefused) {
  for (const char* type : {"FSDP", "DEEPSPEED", "MULTI_GPU", "NO"})
    for (const int version : {1, 2})
      expect_each_key_answered(
          "accelerate_keys.txt",
          {{"distributed_type", type},
           {"num_processes", 8},
           {"fsdp_config", {{"fsdp_version", version}}}},
          [](const std::string& text) { return import_accelerate(text, "config.json", 0); });
}

TEST(ForeignAccelerate, AllProblemsAtOnce) {
  const std::string said = problems([] {
    accelerate_job(
        "distributed_type: FSDP\nnum_procesess: 4\nmixed_precision: fp8\nfsdp_config:\n  "
        "fsdp_version: 3\n"
        "  fsdp_auto_wrap_policy: TRANSFORMER\n  fsdp_activation_checkpointing_offload: true\n"
        "parallelism_config:\n  parallelism_config_tp_size: 2\nuse_cpu: true\n");
  });
  for (const char* part :
       {"num_procesess: unknown key (nearest is \"num_processes\")", "mixed_precision: 8-bit",
        "fsdp_config.fsdp_version: found 3", "allowed: TRANSFORMER_BASED_WRAP",
        "activations in host memory", "tensor parallelism is not planned", "use_cpu: found true"})
    EXPECT_NE(said.find(part), std::string::npos) << part << "\n" << said;
  for (const char* type : {"MEGATRON_LM", "XLA", "MULTI_CPU"})
    EXPECT_NE(problems([&] {
                accelerate_job(std::string("distributed_type: ") + type + "\n");
              }).find("is not planned"),
              std::string::npos);
}

}  // namespace
}  // namespace foreshard::cli
