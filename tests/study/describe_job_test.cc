// What the header says of a job.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <utility>

#include "schedules/planner/framework_table.h"
#include "schedules/planner/planner.h"
#include "tests/catalogue_job.h"

namespace foreshard {
namespace {

Job job_of(FrameworkKind framework, std::int64_t gpus) {
  Job job = catalogue_job("gpt2", "dgx-h100", gpus, framework);
  job.config.sequence = 64;
  if (row_of(framework).whole_copies()) {
    job.config.shard = 1;
    job.config.replicate = gpus;
  }
  return job;
}

/// The dtype that carries most bytes of reducing collectives.
DType reduced_in(const Job& job) {
  PlanOptions options;
  options.executable = false;
  const Schedule s = plan(*job.model, job.config, options);
  std::map<DType, std::int64_t> bytes;
  for (const Collective& c : s.programs[0].collectives) {
    if (c.kind == CollectiveKind::kReduceScatter || c.kind == CollectiveKind::kAllReduce ||
        c.kind == CollectiveKind::kReduce)
      bytes[c.dtype] += c.bytes.value;
  }
  DType best = DType::kFloat64;
  for (const auto& [dtype, n] : bytes)
    if (n > bytes[best]) best = dtype;
  return best;
}

// What was said of another framework's precision says nothing about this one.
TEST(DescribeJob, ComputeIsOfTheFramework) {
  for (const FrameworkRow& row : frameworks()) {
    ParallelConfig c;
    c.framework = row.kind;
    c.model_dtype = DType::kFloat32;
    c.precision.param = DType::kBFloat16;
    EXPECT_EQ(compute_dtype(c), DType::kBFloat16) << row.name;
    c.ddp.mixed_precision.emplace().param = DType::kFloat16;
    EXPECT_EQ(compute_dtype(c),
              row.kind == FrameworkKind::kDdp ? DType::kFloat16 : DType::kBFloat16)
        << row.name;
    EXPECT_EQ(row.compute_dtype(c), compute_dtype(c)) << row.name;
  }
}

// READMEs of flash-attention 1 to 3 and its ROCm port, torch/backends/cuda (cuDNN: sm80).
TEST(DescribeJob, AttentionKernelsOfEachGeneration) {
  using enum AttentionKernel;
  const std::map<std::string, std::set<AttentionKernel>> kernels = {
      {"v100-32", {}},
      {"t4", {kFlash1}},
      {"a100-80", {kFlash1, kFlash2, kCudnn}},
      {"rtx4090", {kFlash1, kFlash2, kCudnn}},
      {"h100-80", {kFlash1, kFlash2, kFlash3, kCudnn}},
      {"b200", {kFlash1, kFlash2, kCudnn}},
      {"mi300x", {kFlash1, kFlash2}}};
  for (const auto& [gpu, has] : kernels) {
    for (const AttentionKernel kernel : {kFlash1, kFlash2, kFlash3, kCudnn})
      EXPECT_EQ(lacks_attention_kernel(kernel, load_gpu(gpu)).empty(), has.contains(kernel))
          << gpu << " " << name_in(kAttentionKernelNames, kernel);
  }
}

TEST(DescribeJob, ReductionIsWhatThePlanIssues) {
  for (const FrameworkKind kind :
       {FrameworkKind::kFsdp2, FrameworkKind::kFsdp1, FrameworkKind::kZero1, FrameworkKind::kZero2,
        FrameworkKind::kZero3}) {
    const Job job = job_of(kind, 4);
    EXPECT_EQ(reduction_dtype(job.config), reduced_in(job)) << row_of(kind).name;
  }
  Job ddp = job_of(FrameworkKind::kDdp, 4);
  ddp.config.precision = {DType::kFloat32, DType::kFloat32, std::nullopt, std::nullopt, true};
  EXPECT_EQ(reduction_dtype(ddp.config), reduced_in(ddp));
  ddp.config.ddp.comm_hook = DdpCommHook::kBf16Compress;
  EXPECT_EQ(reduction_dtype(ddp.config), reduced_in(ddp));
  EXPECT_EQ(reduction_dtype(ddp.config), DType::kBFloat16);
}

// Units compute in 16 bits by themselves; autocast around them is worth a word.
TEST(DescribeJob, AutocastAroundUnitsIsSaid) {
  Job job = job_of(FrameworkKind::kFsdp1, 4);
  EXPECT_EQ(describe_precision(job).find("autocast"), std::string::npos);
  job.config.autocast = true;
  EXPECT_NE(describe_precision(job).find("autocast"), std::string::npos);
}

// PEFT keeps adapters in fp32 over a 16-bit base; "throughout" is then not true.
TEST(DescribeJob, AdaptersInFloat32AreNotThroughoutInSixteenBits) {
  const auto precision = [](const char* model) {
    Job job = catalogue_job(model, "dgx-h100", 4);
    Model m = *job.model;
    m.set_dtype(DType::kBFloat16);
    job.model = std::make_shared<const Model>(std::move(m));
    job.config.model_dtype = DType::kBFloat16;
    job.config.precision.param = DType::kBFloat16;
    return describe_precision(job);
  };
  EXPECT_TRUE(precision("llama-tiny").starts_with("bf16 throughout"));
  EXPECT_TRUE(precision("llama-tiny?lora_rank=4").starts_with("bf16, fp32 adapters"));
  EXPECT_TRUE(precision("llama-tiny?lora_rank=4&lora_dtype=base").starts_with("bf16 throughout"));
}

// DeepSpeed's communication_data_type is the compute dtype unless it is set.
TEST(DescribeJob, ZeroReducesInTheComputeDtype) {
  Job job = job_of(FrameworkKind::kZero3, 4);
  EXPECT_EQ(describe_precision(job).find("reduce"), std::string::npos);
  job.config.zero.communication_dtype = DType::kFloat32;
  EXPECT_NE(describe_precision(job).find("fp32 reduce"), std::string::npos);
  EXPECT_EQ(reduced_in(job), DType::kFloat32);
}

TEST(DescribeJob, Batch) {
  Job job = job_of(FrameworkKind::kFsdp2, 8);
  job.config.sequence = 4096;
  EXPECT_EQ(describe_batch(job),
            "seq 4096 · micro-batch 1 · global batch 8 sequences (32,768 tokens)");
  job.config.accumulate = 4;
  EXPECT_EQ(describe_batch(job),
            "seq 4096 · micro-batch 1 · accumulate 4 · global batch 32 sequences (131,072 tokens)");
  Job images = catalogue_job("vit-b16", "dgx-h100", 8);
  images.config.micro_batch = 64;
  EXPECT_EQ(describe_batch(images),
            "micro-batch 64 · global batch 512 samples · each 1 image of 224 x 224");
}

TEST(DescribeJob, Training) {
  Job job = job_of(FrameworkKind::kFsdp2, 8);
  job.config.optimizer = OptimizerKind::kAdamWFused;
  EXPECT_EQ(describe_training(job),
            "AdamW fused, clipping · flash attention (flash2) · loss float32");
  job.config.clip = false;
  job.attention_kernel = AttentionKernel::kCudnn;
  EXPECT_EQ(describe_training(job), "AdamW fused · flash attention (cudnn) · loss float32");
}

}  // namespace
}  // namespace foreshard
