// torchtitan's job files as options.

#include <gtest/gtest.h>

#include "cli/foreign/toml_json.h"
#include "cli/foreign/torchtitan_keys.h"
#include "core/json.h"
#include "tests/cli/foreign_job_helpers.h"

namespace foreshard::cli {
namespace {

using Settings = std::map<std::string, std::string>;

ForeignJob torchtitan_job(const std::string& text, std::int64_t gpus = 0) {
  return import_torchtitan(text, "job.toml", gpus);
}

TEST(ForeignTorchtitan, EveryKeyIsInTheTable) {
  expect_table_of("torchtitan_keys.txt", 149, torchtitan::key_table(), torchtitan::other_names(),
                  {"training.compile", "training.seed", "parallelism.enable_compiled_autograd",
                   "parallelism.pipeline_parallel_split_points"});  // Earlier versions.
}

/// The plan of an empty file: torchtitan's defaults (job_config.py).
TEST(ForeignTorchtitan, Defaults) {
  const Settings wanted{
      {"framework", "fsdp2"},    {"reshard", "true"},     {"micro-batch", "8"},
      {"seq", "2048"},           {"param-dtype", "bf16"}, {"reduce-dtype", "fp32"},
      {"checkpoint", "every:2"}, {"optimizer", "adamw"},  {"clip", "yes"}};
  EXPECT_EQ(settings_of(torchtitan_job("")), wanted);
}

/// A file in the manner of torchtitan's own for Llama 3 8B, by hand from parallelize.py: FSDP2 of
/// each block, the embedding, and norm with output, which are not resharded.
TEST(ForeignTorchtitan, ABlockwiseShardedJob) {
  const ForeignJob job = torchtitan_job(R"(
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "8B"
converters = ["float8"]
[training]
local_batch_size = 1
global_batch_size = 64
seq_len = 8_192
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[compile]
enable = true
components = ["model"]
[quantize.linear.float8]
enable_fsdp_float8_all_gather = true
precompute_float8_dynamic_scale_for_fsdp = true
filter_fqns = ["output"]
)",
                                        16);
  const Job read = job_of(job, "--on dgx-h100");
  const ParallelConfig& c = read.config;
  EXPECT_EQ(settings_of(job).at("model"), "llama3.1-8b");
  EXPECT_EQ(c.framework, FrameworkKind::kFsdp2);
  EXPECT_EQ(c.replicate, 2);
  EXPECT_EQ(c.shard, 8);
  EXPECT_EQ(c.accumulate, 4);  // 64 / (1 x 16)
  EXPECT_EQ(c.sequence, 8192);
  EXPECT_EQ(c.checkpoint, CheckpointKind::kSelectiveOp);
  EXPECT_TRUE(c.compile && c.float8_all_gather && c.float8_precompute_scales && c.wrap.root_split);
  EXPECT_EQ(c.float8, Float8Kind::kTensorwise);
}

/// One rank a copy: DDP with torchtitan's buckets of 100 MiB, under autocast.
TEST(ForeignTorchtitan, CopiesAreDdp) {
  const std::string file = "[parallelism]\ndata_parallel_replicate_degree = 8\n";
  for (const auto& [text, gpus] :
       {std::pair{file + "data_parallel_shard_degree = 1\n", 0}, std::pair{file, 8}}) {
    const ParallelConfig c =
        job_of(torchtitan_job(text, gpus), "llama-tiny --on dgx-h100 --seq 32").config;
    EXPECT_EQ(c.framework, FrameworkKind::kDdp);
    EXPECT_EQ(c.replicate, 8);
    EXPECT_EQ(c.ddp.bucket_cap_mib, 100);
    EXPECT_TRUE(c.autocast);
  }
}

TEST(ForeignTorchtitan, AllProblemsAtOnce) {
  const std::string said = problems([] {
    torchtitan_job(R"([model]
converters = ["mx"]
[training]
local_batch_sise = 3
global_batch_size = 10
[parallelism]
tensor_parallel_degree = 8
pipeline_parallel_degree = 2
context_parallel_degree = 4
expert_parallel_degree = 8
data_parallel_shard_degree = 3
fsdp_reshard_after_forward = "sometimes"
[activation_checkpoint]
mode = "memory_budget"
)",
                   8);
  });
  for (const char* part :
       {"training.local_batch_sise: unknown key (nearest is \"local_batch_size\")",
        "model.converters: the converter \"mx\"", "tensor parallelism is not planned",
        "pipeline parallelism is not planned", "context parallelism is not planned",
        "expert parallelism is not planned", "1 copies x 3 ranks are not the 8 GPUs",
        "fsdp_reshard_after_forward: found \"sometimes\"", "global_batch_size: 10 sequences",
        "memory budget"})
    EXPECT_NE(said.find(part), std::string::npos) << part << "\n" << said;
  EXPECT_NE(problems([] {
              torchtitan_job("[training]\nseq_len = 1\nseq_len = 2\n");
            }).find("job.toml: line 3"),
            std::string::npos);
  EXPECT_NE(problems([] { torchtitan_job("x = nan"); }).find("no finite number"),
            std::string::npos);
}

TEST(ForeignTorchtitan, TomlKeepsTheOrderOfLines) {
  EXPECT_EQ(parse_toml("b = 1\n[z]\ny = [1, 2.5]\n[a]\nd = 1979-05-27\n", "x.toml").dump(),
            R"({"b":1,"z":{"y":[1,2.5]},"a":{"d":"1979-05-27"}})");
}

}  // namespace
}  // namespace foreshard::cli
