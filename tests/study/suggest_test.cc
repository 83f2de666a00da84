// Advice compares what a user pays for: samples per second. And it is no advice if it needs luck.

#include "study/suggest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "core/error.h"
#include "core/json.h"
#include "models/load_model.h"
#include "study/evaluate.h"
#include "study/job_change.h"
#include "study/needed_memory.h"
#include "tests/catalogue_job.h"

namespace foreshard {
namespace {

const Suggestion* find(const std::vector<Suggestion>& all, const std::string& change) {
  const auto it =
      std::find_if(all.begin(), all.end(), [&](const Suggestion& s) { return s.change == change; });
  return it == all.end() ? nullptr : &*it;
}

Job vision_job(std::int64_t micro_batch) {
  Job job = catalogue_job("vit-b16", "dgx-a100-80", 8, FrameworkKind::kDdp);
  job.config.shard = 1;
  job.config.replicate = 8;
  job.config.micro_batch = micro_batch;
  job.config.sequence = 197;
  return job;
}

// Half the batch in more than half the time is slower, however short the step.
TEST(Suggest, ComparesThroughputOfModelsWithoutTokens) {
  const Job job = vision_job(16);
  const Evaluation base = evaluate(job);
  EXPECT_EQ(base.tokens_per_second_per_gpu(), 0);
  const double per_second = 16 / to_seconds(base.result.step_time);
  EXPECT_DOUBLE_EQ(base.samples_per_second_per_gpu(job), per_second);
  for (const Suggestion& s : suggest(job, base, 100)) {
    const double batch = s.change == "--micro-batch 8"    ? 8
                         : s.change == "--micro-batch 32" ? 32
                                                          : 16;
    EXPECT_NEAR(s.speedup, batch / to_seconds(s.step) / per_second, 1e-9) << s.change;
    EXPECT_NEAR(s.samples_per_s_per_gpu, batch / to_seconds(s.step), 1e-6) << s.change;
  }
  const Job half = vision_job(8);
  if (evaluate(half).samples_per_second_per_gpu(half) < per_second) {
    EXPECT_EQ(find(suggest(job, base, 100), "--micro-batch 8"), nullptr);
  }
}

// DDP reduces 8 times what one reduction would do.
TEST(Suggest, OneReductionForSeveralMicroBatches) {
  Job job = catalogue_job("gpt2-xl", "8x-l40s", 8, FrameworkKind::kDdp);
  job.config.shard = 1;
  job.config.replicate = 8;
  job.config.sequence = 512;
  job.config.accumulate = 8;
  const std::vector<Suggestion> all = suggest(job, evaluate(job), 100);
  const Suggestion* s = find(all, "--sync-each-micro-batch no");
  ASSERT_NE(s, nullptr);
  EXPECT_GT(s->speedup, 1.02);
}

// Profiles have rates of the third generation for H100 (arXiv 2407.08608) and none for A100.
TEST(Suggest, AttentionKernelsThatTheGpuHas) {
  const auto offered = [](const char* machine, const char* kernel) {
    Job job = catalogue_job("llama3.2-3b", machine, 8);
    job.config.sequence = 8192;
    return find(suggest(job, evaluate(job), 100), std::string("--attention-kernel ") + kernel) !=
           nullptr;
  };
  EXPECT_TRUE(offered("dgx-h100", "flash3"));
  EXPECT_FALSE(offered("dgx-a100-80", "flash3"));
  for (const char* blackwell : {"dgx-b200", "dgx-b300", "gb200-nvl72"}) {
    EXPECT_FALSE(offered(blackwell, "flash3")) << blackwell;  // Their chips do not run it.
    EXPECT_TRUE(offered(blackwell, "cudnn")) << blackwell;
  }
}

// Slow network: stage 3 gains from gathers inside the node and from int8 weights; on one node
// neither is advised.
TEST(Suggest, ZeroPlusPlusBetweenNodes) {
  const auto found = [](const char* machine, int gpus, const char* change) {
    Job job = catalogue_job("llama2-7b", machine, gpus, FrameworkKind::kZero3);
    return find(suggest(job, evaluate(job), 100), change) != nullptr;
  };
  const char* secondary = "--zero-hpz-partition-size 8";
  const char* both = "--zero-hpz-partition-size 8 --zero-quantized-weights yes";
  EXPECT_TRUE(found("dgx-a100-80@1x100g", 32, secondary));
  EXPECT_TRUE(found("dgx-a100-80@1x100g", 32, both));
  EXPECT_FALSE(found("dgx-a100-80@1x100g", 8, secondary));
}

TEST(Suggest, NoneNeedsRetries) {
  Job job = catalogue_job("gpt2-xl", "8x-rtx4090", 8);
  job.config.sequence = 1024;
  for (const std::int64_t batch : {2, 3, 4}) {
    job.config.micro_batch = batch;
    for (const Suggestion& s : suggest(job, evaluate(job), 100)) {
      if (s.change.rfind("--micro-batch ", 0) != 0 || s.change.find(" --") != std::string::npos)
        continue;
      Job changed = job;
      changed.config.micro_batch = std::stoll(s.change.substr(14));
      EXPECT_FALSE(is_borderline(evaluate(changed).result.memory)) << s.change;
    }
  }
}

// Mixtral-8x7B: 32 blocks of 8 experts with three matrices of 14336 x 4096 are 45.10 of its 46.70
// billion parameters. Their 8 rows over 64 ranks are cut to one row each: 8 times as many elements.
TEST(Suggest, SaysWhatUnevenRowsCost) {
  const Job job = catalogue_job("mixtral-8x7b", "dgx-h100", 64);
  PlanOptions options;
  options.executable = false;
  const Schedule schedule = plan(*job.model, job.config, options);
  const double experts = 45.097e9, all = 46.703e9;
  EXPECT_NEAR(padded_share(schedule), 1 - all / (all + 7 * experts), 0.002);
  EXPECT_NE(remark_on(job, schedule).find("87 %"), std::string::npos) << remark_on(job, schedule);
  const Job even = catalogue_job("llama3.2-1b", "dgx-h100", 64);
  EXPECT_EQ(remark_on(even, plan(*even.model, even.config, options)), "");
}

// 1.6 billion parameters in fp32 with gradients and two AdamW states are 16 bytes each: 24.9 GB at
// least, more than one RTX 4090 has.
TEST(NeededMemory, IsEnoughAndNotMuchMore) {
  Job job = catalogue_job("gpt2-xl", "8x-rtx4090", 1, FrameworkKind::kUnsharded);
  job.config.sequence = 256;
  SimulationOptions options;
  options.detail = Detail::kTimesOnly;
  const Evaluation e = evaluate(job, options);
  ASSERT_FALSE(e.result.memory.fits);
  const std::optional<Bytes> needed = needed_memory(job, e);
  ASSERT_TRUE(needed);
  EXPECT_GT(needed->value, 24'900'000'000);
  options.device_memory = *needed;
  EXPECT_TRUE(evaluate(job, options).result.memory.fits);
  options.device_memory = Bytes(needed->value / 100 * 97);
  EXPECT_FALSE(evaluate(job, options).result.memory.fits);
}

TEST(NeededMemory, OfAJobThatFitsIsNothing) {
  Job job = catalogue_job("gpt2", "dgx-h100", 8);
  job.config.sequence = 1024;
  EXPECT_FALSE(needed_memory(job, evaluate(job)));
}

// What the model asks for does not follow from the kernel: products and a softmax compute the half
// behind the causal mask as well, which is work but not the model's.
TEST(ModelFlops, AreTheSameForEveryAttentionKernel) {
  Job job = catalogue_job("llama3-8b", "dgx-h100", 8);
  job.config.sequence = 4096;
  const Schedule flash = evaluate(job).schedule;
  job.config.attention = AttentionKind::kMath;
  const Evaluation math = evaluate(job);
  EXPECT_NEAR(math.schedule.model_flops_per_step / flash.model_flops_per_step, 1, 1e-9);
  // Two products forward and four backward of 2 s^2 x 4096 in full, half of each masked.
  EXPECT_NEAR(math.result.executed_flops_per_step - math.schedule.model_flops_per_step,
              8 * 32 * 6 * 4096.0 * 4096 * 4096, 1e-3 * math.schedule.model_flops_per_step);
}

// 16,384 GPUs x 8 x 8,192 tokens x 6 x 405e9: 2.6e21 FLOPs, which 64 bits do not hold.
TEST(ModelFlops, OfLargeJobsDoNotOverflow) {
  Job job = catalogue_job("llama3.1-405b", "dgx-h100", 16384);
  job.config.sequence = 8192;
  job.config.micro_batch = 8;
  job.config.checkpoint = CheckpointKind::kFull;
  PlanOptions options;
  options.executable = false;
  const double flops = plan(*job.model, job.config, options).model_flops_per_step;
  EXPECT_NEAR(flops / (16384.0 * 8 * 8192 * 6 * 405e9), 1, 0.2);
}

TEST(ModelFlops, OfOneLaunchMustBeCountable) {
  Job job = catalogue_job("llama3-8b", "dgx-h100", 8);
  job.config.sequence = 1 << 26;
  EXPECT_THROW(evaluate(job), InputError);
}

// Host memory of the eight ranks of a node against the node's. Of each rank two AdamW states, four
// bytes for each of 70.55e9 / 8 parameters: 35.277 GB each; parameters and gradients page-locked,
// each shard in a power of two: in each of 80 blocks 2 x 2^25 (8192 x 8192) + 2 x 2^22 (1024 x
// 8192)
// + 3 x 2^27 (28672 x 8192, 117 MB) + 2 x 2^12, and 2 x 2^29 for embedding and head (525 MB each):
// 39.326 GB each. 1.194 TB in all; 512 GiB do not hold them, 2 TiB do.
TEST(HostMemory, OfANodeIsPartOfTheVerdict) {
  Job job = catalogue_job("llama3-70b", "dgx-h100", 8);
  job.config.sequence = 2048;
  job.config.checkpoint = CheckpointKind::kFull;
  job.config.offload = OffloadKind::kParameters;
  job.config.optimizer = OptimizerKind::kAdamWFused;  // Without temporaries.
  const MemoryResult large = evaluate(job).result.memory;
  EXPECT_NEAR(static_cast<double>(large.host_node_peak.value), 8 * 2 * (35.277e9 + 39.326e9),
              0.002 * 1.194e12);
  EXPECT_TRUE(large.fits_host());
  EXPECT_TRUE(large.fits);
  job.hardware.node.host_memory.value = 512.0 * (1 << 30);
  const MemoryResult small = evaluate(job).result.memory;
  EXPECT_FALSE(small.fits_host());
  EXPECT_TRUE(small.fits_device);
  EXPECT_FALSE(small.fits);
}

// Llama 3 8B: 7,504,658,432 weights in products (blocks and head), 6 FLOPs each a token; causal
// attention of 32 layers, 4096 wide: 3 x 2 x s x 4096 x 32 a token.
TEST(ModelFlops, AreThreeTimesForward) {
  Job job = catalogue_job("llama3-8b", "dgx-h100", 8);
  job.config.sequence = 8192;
  const Evaluation e = evaluate(job);
  const double per_token = e.schedule.model_flops_per_step / (8 * 8192);
  EXPECT_NEAR(per_token, 6 * 7'504'658'432.0 + 3 * 2 * 8192.0 * 4096 * 32, 1e-3 * per_token);
  // Backward computes the scores again: one product of two in forward.
  EXPECT_GT(e.hardware_flops_utilisation(job), e.model_flops_utilisation(job));
  EXPECT_NEAR(e.result.executed_flops_per_step / (8 * 8192) - per_token, 8192.0 * 4096 * 32,
              1e-3 * per_token);
}

// Linear attention alone, no checkpoint: nothing is computed twice, so what is executed is what the
// model asks for, depthwise convolutions included.
TEST(ModelFlops, AreAllExecutedWhereNothingIsComputedTwice) {
  Job job = catalogue_job("gpt2", "dgx-h100", 1, FrameworkKind::kUnsharded);
  const Json config = parse_json(R"({"model_type": "qwen3_next", "num_hidden_layers": 2,
      "layer_types": ["linear_attention", "linear_attention"], "hidden_size": 64,
      "vocab_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
      "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
      "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "num_experts": 4,
      "num_experts_per_tok": 2, "moe_intermediate_size": 32,
      "shared_expert_intermediate_size": 32})",
                                 "config.json");
  job.model = std::make_shared<const Model>(model_from_json(config, "config.json"));
  job.config.sequence = 128;
  const Evaluation e = evaluate(job);
  EXPECT_GT(e.result.executed_flops_per_step, 0);
  EXPECT_DOUBLE_EQ(e.result.executed_flops_per_step, e.schedule.model_flops_per_step);
}

TEST(Peak, IsNamed) {
  Job job = catalogue_job("gpt2", "dgx-a100-80", 8);
  EXPECT_EQ(peak_name(job), "bf16");
  job.config.float8 = Float8Kind::kTensorwise;
  EXPECT_EQ(peak_name(job), "bf16");
  job.config.precision.param = DType::kFloat32;
  EXPECT_EQ(peak_name(job), "fp32");  // PyTorch's default: no tensor cores.
  job.tf32 = true;
  EXPECT_EQ(peak_name(job), "TF32");
}

// NVIDIA A100: 19.5 TFLOP/s in fp32, 156 in TF32, 8 times as much; a step that is nearly all products
// takes between a fifth and an eighth.
TEST(Peak, Tf32IsAskedFor) {
  Job job = catalogue_job("llama3-8b", "dgx-a100-80", 64);
  job.config.sequence = 2048;
  job.config.precision.param = job.config.precision.reduce = DType::kFloat32;
  const double fp32 = to_seconds(evaluate(job).result.step_time);
  job.tf32 = true;
  const double tf32 = to_seconds(evaluate(job).result.step_time);
  EXPECT_GT(fp32 / tf32, 4);
  EXPECT_LT(fp32 / tf32, 8);
}

}  // namespace
}  // namespace foreshard
