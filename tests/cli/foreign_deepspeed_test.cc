// DeepSpeed's job files as options: against DeepSpeed's own reading and its recordings.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "cli/foreign/deepspeed_keys.h"
#include "conformance/zero_case.h"
#include "core/json.h"
#include "core/text.h"
#include "tests/cli/foreign_job_helpers.h"

namespace foreshard::cli {
namespace {

using Settings = std::map<std::string, std::string>;

ForeignJob deepspeed_job(const std::string& text, std::int64_t gpus = 8) {
  return import_deepspeed(text, "ds.json", gpus);
}

TEST(ForeignDeepSpeed, EveryKeyThatDeepSpeedReadsIsInTheTable) {
  // What stands below params belongs to torch.optim's classes.
  expect_table_of("deepspeed_keys.txt", 299, deepspeed::key_table(), deepspeed::other_names(),
                  {"optimizer.params.momentum", "optimizer.params.amsgrad", "optimizer.params.*"});
}

/// 180 combinations of the three numbers, as DeepSpeed completed or refused them.
TEST(ForeignDeepSpeed, BatchesAreCompletedAsDeepSpeedCompletesThem) {
  int stopped = 0;
  for (const std::string& line : data_lines("deepspeed_batches.csv")) {
    std::vector<std::int64_t> n;
    for (const std::string& part : parts_of(line, ',')) n.push_back(std::stoll(part));
    Json file = {{"bf16", {{"enabled", true}}}, {"zero_optimization", {{"stage", 2}}}};
    const char* keys[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                          "gradient_accumulation_steps"};
    for (int i = 0; i < 3; ++i)
      if (n[1 + i] > 0) file[keys[i]] = n[1 + i];
    if (n[4] == 0) {
      EXPECT_THROW(deepspeed_job(file.dump(), n[0]), InputError) << line;
      ++stopped;
      continue;
    }
    const Settings s = settings_of(deepspeed_job(file.dump(), n[0]));
    EXPECT_EQ(s.at("micro-batch"), std::to_string(n[4])) << line;
    EXPECT_EQ(s.at("accumulate"), std::to_string(n[5])) << line;
  }
  EXPECT_EQ(stopped, 129);
}

TEST(ForeignDeepSpeed, TheGpusFollowFromAWholeBatch) {
  const std::string file =
      R"({"train_batch_size": 96, "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 4,
          "zero_optimization": {"stage": 1}, "bf16": {"enabled": true}})";
  EXPECT_EQ(settings_of(deepspeed_job(file, 0)).at("gpus"), "8");  // 96 / (3 x 4)
  EXPECT_EQ(
      problems([&] { deepspeed_job(file, 4); }),
      "ds.json: train_batch_size: 96 sequences are not 3 (micro-batch) x 4 (accumulation) x 4 "
      "GPUs (DeepSpeed stops here, too)\n");
  EXPECT_NE(problems([] {
              deepspeed_job(R"({"train_batch_size": 96, "zero_optimization": {"stage": 1}})", 0);
            }).find("--gpus"),
            std::string::npos);
}

/// What the recorder of golden/zero hands to DeepSpeed for a case (its ds_config).
Json recorded_file(const Json& options) {
  Json c = {{"train_micro_batch_size_per_gpu", 2},
            {"gradient_accumulation_steps", options.value("gradient_accumulation_steps", 1)},
            {"zero_allow_untested_optimizer", true},
            {"zero_force_ds_cpu_optimizer", false},
            {"wall_clock_breakdown", false},
            {"zero_optimization", options.at("zero")}};
  const std::string precision = options.value("precision", "bf16");
  if (precision == "bf16") c["bf16"] = {{"enabled", true}};
  if (precision == "fp16") c["fp16"] = {{"enabled", true}, {"initial_scale_power", 4}};
  for (const char* key : {"gradient_clipping", "communication_data_type", "data_types"})
    if (options.contains(key)) c[key] = options.at(key);
  return c;
}

void expect_same(const ZeroOptions& a, const ZeroOptions& b) {
  EXPECT_EQ(a.reduce_bucket_size, b.reduce_bucket_size);
  EXPECT_EQ(a.allgather_bucket_size, b.allgather_bucket_size);
  EXPECT_EQ(a.prefetch_bucket_size, b.prefetch_bucket_size);
  EXPECT_EQ(a.param_persistence_threshold, b.param_persistence_threshold);
  EXPECT_EQ(a.model_persistence_threshold, b.model_persistence_threshold);
  EXPECT_EQ(a.max_live_parameters, b.max_live_parameters);
  EXPECT_EQ(a.max_reuse_distance, b.max_reuse_distance);
  EXPECT_EQ(a.sub_group_size, b.sub_group_size);
  EXPECT_EQ(a.overlap_comm, b.overlap_comm);
  EXPECT_EQ(a.contiguous_gradients, b.contiguous_gradients);
  EXPECT_EQ(a.reduce_scatter, b.reduce_scatter);
  EXPECT_EQ(a.round_robin_gradients, b.round_robin_gradients);
  EXPECT_EQ(a.multi_rank_all_reduce, b.multi_rank_all_reduce);
  EXPECT_EQ(a.hpz_partition_size, b.hpz_partition_size);
  EXPECT_EQ(a.module_granularity_threshold, b.module_granularity_threshold);
  EXPECT_EQ(a.offload_ratio, b.offload_ratio);
  EXPECT_EQ(a.wall_clock_breakdown, b.wall_clock_breakdown);
  EXPECT_EQ(a.grad_accum_dtype, b.grad_accum_dtype);
  EXPECT_EQ(a.communication_dtype, b.communication_dtype);
}

/// The file of each recording, imported, asks for the job that golden_check plans and compares with
/// DeepSpeed event by event.
TEST(ForeignDeepSpeed, TheFilesOfTheRecordingsAskForTheJobsThatMatchThem) {
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(FORESHARD_SOURCE_DIR) +
                                                               "/tests/conformance/data/zero")) {
    SCOPED_TRACE(entry.path().filename().string());
    const Json golden = read_json_file(entry.path()).at("case");
    const ParallelConfig wanted = read_zero_case(golden).config;
    const Json file = recorded_file(golden.at("options"));
    const ParallelConfig found =
        job_of(deepspeed_job(file.dump(), wanted.shard), "llama-tiny --on dgx-h100 --seq 32")
            .config;
    EXPECT_EQ(found.framework, wanted.framework);
    EXPECT_EQ(found.world(), wanted.world());
    EXPECT_EQ(found.accumulate, wanted.accumulate);
    EXPECT_EQ(found.precision.param, wanted.precision.param);
    EXPECT_EQ(found.offload, wanted.offload);
    expect_same(found.zero, wanted.zero);
    ++cases;
  }
  EXPECT_EQ(cases, 20);
}

TEST(ForeignDeepSpeed, WhatTheTrainerFillsStaysOpenOrTakesItsRule) {
  const ForeignJob job = deepspeed_job(
      R"({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto", "loss_scale": 0},
          "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "overlap_comm": "auto",
                                "stage3_prefetch_bucket_size": "auto", "sub_group_size": 1e9,
                                "stage3_param_persistence_threshold": "auto"},
          "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
          "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"})");
  const Settings wanted{
      {"framework", "zero3"},
      {"gpus", "8"},
      {"zero-reduce-bucket-size", "auto"},
      {"zero-prefetch-bucket-size", "auto"},
      {"zero-param-persistence-threshold", "auto"},
      {"zero-sub-group-size", "1000000000"},
      {"zero-leaf-classes", "MixtralSparseMoeBlock,Qwen2MoeSparseMoeBlock,Qwen3MoeSparseMoeBlock"},
      {"clip", "yes"}};
  EXPECT_EQ(settings_of(job), wanted);
  std::set<std::string> open;
  for (const OpenSetting& o : job.open) open.insert(o.option);
  EXPECT_EQ(open, (std::set<std::string>{"micro-batch", "accumulate", "param-dtype", "optimizer",
                                         "seq", "checkpoint", "zero-init"}));
  EXPECT_EQ(job.keys.size(), 13u);  // Every key of the file, once.
}

/// Old spellings ask for what the new ones ask for.
TEST(ForeignDeepSpeed, OldSpellings) {
  const std::string batch = R"("train_micro_batch_size_per_gpu": 1, )";
  const auto of = [&](const std::string& rest) {
    return settings_of(deepspeed_job("{" + batch + rest + "}"));
  };
  EXPECT_EQ(
      of(R"("bfloat16": {"enabled": true}, "zero_optimization": {"stage": 3, "cpu_offload": true,
                   "cpu_offload_param": true, "max_live_parameters": 7})"),
      of(R"("bf16": {"enabled": true}, "zero_optimization": {"stage": 3,
                   "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"},
                   "stage3_max_live_parameters": 7})"));
  EXPECT_EQ(
      of(R"("fp16": {"enabled": true}, "zero_optimization": true, "allgather_size": 9)"),
      of(R"("fp16": {"enabled": true}, "zero_optimization": {"stage": 1, "allgather_bucket_size": 9})"));
}

/// Host memory is page-locked unless the file says otherwise (offload_config.py of 0.19.8).
TEST(ForeignDeepSpeed, OffloadedMemoryIsPinnedByDefault) {
  const auto pinned = [](const std::string& more) {
    return settings_of(
               deepspeed_job(R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu")" +
                             more + "}}}"))
        .at("zero-pin-memory");
  };
  EXPECT_EQ(pinned(""), "yes");
  EXPECT_EQ(pinned(R"(, "pin_memory": false)"), "no");
}

/// A row that refuses does so by its path, wherever it stands, and lets its neutral value pass.
TEST(ForeignDeepSpeed, EveryRefusedKeyIsRefusedByName) {
  int refused = 0;
  for (const KeyRow& row : deepspeed::key_table()) {
    if (row.rule != KeyRule::kRefused) continue;
    std::string path(row.key);
    if (path.ends_with(".*")) path.resize(path.size() - 2);
    const auto file_with = [&](const Json& value) {
      Json file = {{"train_micro_batch_size_per_gpu", 1},
                   {"bf16", {{"enabled", true}}},
                   {"zero_optimization", {{"stage", 3}}},
                   {"optimizer", {{"type", "AdamW"}}}};
      Json* at = &file;
      for (const std::string& part : parts_of(path, '.')) at = &(*at)[part];
      *at = value;
      return file.dump();
    };
    const std::string said = problems([&] { deepspeed_job(file_with({{"x", 1}})); });
    EXPECT_EQ(said.find("ds.json: " + path + ": "), 0u) << path << ": " << said;
    EXPECT_NE(said.find(row.says), std::string::npos) << path;
    for (const std::string& neutral : parts_of(std::string(row.neutral), '|')) {
      if (neutral.empty()) continue;
      EXPECT_EQ(problems([&] { deepspeed_job(file_with(Json::parse(neutral))); }), "") << path;
    }
    ++refused;
  }
  EXPECT_GT(refused, 25);
}

TEST(ForeignDeepSpeed, EachKeyWithAnyValueIsReadOrRefused) {
  for (int stage = 1; stage <= 3; ++stage)
    expect_each_key_answered(
        "deepspeed_keys.txt",
        {{"train_micro_batch_size_per_gpu", 1}, {"zero_optimization", {{"stage", stage}}}},
        [](const std::string& text) { return deepspeed_job(text); });
}

TEST(ForeignDeepSpeed, AllProblemsAtOnce) {
  const std::string said = problems([] {
    deepspeed_job(
        R"({"train_micro_batch_size_per_gpu": 0, "overlap_comm": true, "zero_optimisation": {},
                 "zero_optimization": {"stage": 3, "overlap_com": true, "sub_group_size": "big",
                                       "mics_shard_size": 4, "offload_param": {"device": "nvme"}},
                 "optimizer": {"type": "OneBitAdam"}, "bf16": {"enabled": true}})");
  });
  for (const char* part :
       {"train_micro_batch_size_per_gpu: found 0",
        "overlap_comm: unknown key (there is zero_optimization.overlap_comm)",
        "zero_optimisation: unknown key (nearest is \"zero_optimization\")",
        "zero_optimization.overlap_com: unknown key (nearest is \"overlap_comm\")",
        "zero_optimization.sub_group_size: found \"big\"", "mics_shard_size: found 4",
        "zero_optimization.offload_param.device: NVMe offload is not planned",
        "optimizer.type: the optimizer \"OneBitAdam\" is not planned"})
    EXPECT_NE(said.find(part), std::string::npos) << part << "\n" << said;
}

}  // namespace
}  // namespace foreshard::cli
