// What the columns of a measured row say: shapes by the stated size, links measured in the run.

#include "study/run_model.h"

#include <gtest/gtest.h>

#include "study/run_job.h"
#include "study/score_memory.h"

namespace foreshard {
namespace {

MeasuredRun llama(std::int64_t layers, std::int64_t width, std::int64_t heads, std::int64_t kv,
                  std::int64_t ffn, std::int64_t vocabulary, double billions) {
  MeasuredRun r;
  r.source_id = r.row_id = r.model = "Llama";
  r.n_layers = layers;
  r.d_model = width;
  r.n_heads = heads;
  r.n_kv_heads = kv;
  r.d_ff = ffn;
  r.vocab = vocabulary;
  r.params_b = billions;
  r.seq_len = 512;
  r.n_gpus = 8;
  r.gpu = "H100-80GB";
  r.strategy = "FSDP2";
  r.precision = "bf16";
  return r;
}

std::int64_t parameters(const MeasuredRun& run) {
  std::vector<std::string> assumptions;
  return model_of_run(run, assumptions)->parameter_count().value;
}

// Llama-3-8B: 8.03 B with a head of its own. nanotron's 1.34 B: 16 * (4 * 2048^2 + 3 * 2048 * 8192)
// + 131072 * 2048 = 1.3422 B only if embedding and head are one; its norms are 33 * 2048 more.
TEST(RunModel, TheStatedSizeSaysWhetherTheHeadIsTied) {
  EXPECT_EQ(parameters(llama(32, 4096, 32, 8, 14336, 128256, 8.03)), 8'030'261'248);
  EXPECT_EQ(parameters(llama(16, 2048, 32, 32, 8192, 131072, 1.34218)),
            16 * (4LL * 2048 * 2048 + 3LL * 2048 * 8192) + 131072LL * 2048 + 33 * 2048);
}

// Qwen3-32B: 64 heads of 128 on a width of 5120 (config.json of the model): 32.76 B.
TEST(RunModel, TheStatedSizeSaysHowWideHeadsAre) {
  const double b =
      static_cast<double>(parameters(llama(64, 5120, 64, 8, 25600, 151936, 32.761))) / 1e9;
  EXPECT_NEAR(b, 32.76, 0.01);
}

TEST(RunModel, WithoutAStatedSizeTheShapeIsTheUsualOne) {
  MeasuredRun r = llama(16, 2048, 32, 32, 8192, 131072, 0);
  r.params_b.reset();
  EXPECT_EQ(parameters(r),
            16 * (4LL * 2048 * 2048 + 3LL * 2048 * 8192) + 2 * 131072LL * 2048 + 33 * 2048);
}

TEST(RunJob, ReadsLinksMeasuredInTheRun) {
  MeasuredRun r = llama(16, 2048, 32, 32, 8192, 131072, 1.34218);
  r.inter_node_link = "measured in run: AG 126.89 GB/s RS 124.79 AR 160.45";
  const LinkParameters::MeasuredBus bus = job_of_run(r, {}).parameters.links.measured;
  EXPECT_DOUBLE_EQ(bus.all_gather, 126.89e9);
  EXPECT_DOUBLE_EQ(bus.reduce_scatter, 124.79e9);
  EXPECT_DOUBLE_EQ(bus.all_reduce, 160.45e9);
  r.inter_node_link = "RoCE 4x100 Gb/s per node";
  EXPECT_EQ(job_of_run(r, {}).parameters.links.measured.all_gather, 0);
}

// 280 of 350 W: 0.95 on a GeForce part (Puget Systems' measurement), whose tensor cores run at half
// rate; 210 of 300 W on the professional board of the same chip: 0.7^0.4 = 0.867. "(8x" is no power,
// and neither moves a GPU without a limit below its own.
TEST(RunJob, ReadsThePowerThatARowStates) {
  MeasuredRun r = llama(32, 4096, 32, 32, 11008, 32000, 6.74);
  r.gpu = "RTX3090 (no NVLink)";
  const double usual = job_of_run(r, {}).job.hardware.gpu.find_efficiency("matmul_training")->value;
  r.gpu = "RTX3090 (280 W, PCIe, no NVLink)";
  const double held = job_of_run(r, {}).job.hardware.gpu.find_efficiency("matmul_training")->value;
  EXPECT_NEAR(held / usual, 0.95, 1e-3);
  r.gpu = "RTX-A6000";
  const double board = job_of_run(r, {}).job.hardware.gpu.find_efficiency("matmul_training")->value;
  r.gpu = "RTX-A6000 (210 W)";
  const double capped = job_of_run(r, {}).job.hardware.gpu.find_efficiency("matmul_training")->value;
  EXPECT_NEAR(capped / board, 0.867, 1e-3);
  const HardwareProfile h100 = load_hardware("hgx-h100-96");
  r.gpu = "H100 (8x, variant not stated)";
  EXPECT_EQ(job_of_run(r, {}).job.hardware.gpu.find_efficiency("matmul_training")->value,
            h100.gpu.find_efficiency("matmul_training")->value);
}

TEST(RunJob, ReadsSlowLanes) {
  MeasuredRun r = llama(32, 4096, 32, 32, 11008, 32000, 6.74);
  r.gpu = "RTX3090 (280 W, PCIe, no NVLink)";
  const double usual = job_of_run(r, {}).job.hardware.node.peer_bandwidth.value;
  r.notes = "older motherboard, slow PCIe lanes";
  const RunJob job = job_of_run(r, {});
  EXPECT_LT(job.job.hardware.node.peer_bandwidth.value, usual / 2);
  EXPECT_GT(job.job.hardware.node.peer_bandwidth.uncertainty, 0.3);
}

MeasuredRun run_of(const std::string& strategy, std::int64_t gpus = 16) {
  MeasuredRun r = llama(16, 2048, 32, 32, 8192, 131072, 1.34218);
  r.strategy = strategy;
  r.n_gpus = gpus;
  r.gpus_per_node = 8;
  return r;
}

TEST(RunJob, ReadsDeepSpeedsStages) {
  EXPECT_EQ(job_of_run(run_of("DeepSpeed ZeRO-2"), {}).job.config.framework, FrameworkKind::kZero2);
  const ParallelConfig c = job_of_run(run_of("zero stage 3"), {}).job.config;
  EXPECT_EQ(c.framework, FrameworkKind::kZero3);
  EXPECT_EQ(c.shard, 16);
  EXPECT_EQ(job_of_run(run_of("DeepSpeed ZeRO-3 (Megatron)"), {}).job.config.framework,
            FrameworkKind::kZero3);
  EXPECT_EQ(job_of_run(run_of("ZeRO-1"), {}).job.config.framework,
            FrameworkKind::kShardedOptimizer);
}

TEST(RunJob, ReadsThePartsOfZeroPlusPlus) {
  const ZeroOptions all =
      job_of_run(run_of("DeepSpeed ZeRO++ (qwZ int8 + hpZ 16 + qgZ int4)", 32), {}).job.config.zero;
  EXPECT_TRUE(all.quantised_weights);
  EXPECT_TRUE(all.quantised_gradients);
  EXPECT_EQ(all.hpz_partition_size, 16);
  const ZeroOptions node = job_of_run(run_of("DeepSpeed ZeRO++ (hpZ)"), {}).job.config.zero;
  EXPECT_FALSE(node.quantised_weights);
  EXPECT_EQ(node.hpz_partition_size, 8);  // GPUs of a node.
}

TEST(RunJob, ReadsWhatIsOffloaded) {
  const auto kind = [](const char* strategy) {
    return job_of_run(run_of(strategy, 8), {}).job.config.offload;
  };
  EXPECT_EQ(kind("DeepSpeed ZeRO-3 + optimizer CPU offload"), OffloadKind::kOptimizer);
  EXPECT_EQ(kind("DeepSpeed ZeRO-3 + CPU offload of params and optimizer"), OffloadKind::kBoth);
  EXPECT_EQ(kind("FSDP2 + CPU offload"), OffloadKind::kParameters);
  EXPECT_EQ(kind("FSDP1 FULL_SHARD + CPU offload QLoRA"), OffloadKind::kParameters);
  MeasuredRun r = run_of("FSDP2 + activation CPU offload");
  EXPECT_FALSE(job_of_run(r, {}).refusal.empty());
  r.ac_mode = "full";  // Only the inputs of blocks move.
  EXPECT_TRUE(job_of_run(r, {}).refusal.empty());
  EXPECT_FALSE(job_of_run(r, {}).compares_memory);
}

// One group of all ranks has nothing to reduce between groups.
TEST(RunJob, ReadsHybridSharding) {
  MeasuredRun r = run_of("FSDP1 HYBRID_SHARD");
  const ParallelConfig c = job_of_run(r, {}).job.config;
  EXPECT_EQ(c.shard, 8);
  EXPECT_EQ(c.replicate, 2);
  EXPECT_EQ(c.fsdp1.strategy, Fsdp1Options::Strategy::kHybrid);
  r = run_of("FSDP1 FULL_SHARD (HYBRID on one node)", 8);
  EXPECT_EQ(job_of_run(r, {}).job.config.fsdp1.strategy, Fsdp1Options::Strategy::kFullShard);
}

TEST(RunJob, ReadsPrecisions) {
  MeasuredRun r = run_of("DDP", 8);
  r.precision = "bf16 mixed";
  EXPECT_TRUE(job_of_run(r, {}).job.config.autocast);
  EXPECT_EQ(job_of_run(r, {}).job.config.model_dtype, DType::kFloat32);
  r.precision = "fp32 (default, assumed)";
  EXPECT_EQ(job_of_run(r, {}).job.config.precision.param, DType::kFloat32);
  r.precision = "int8";
  EXPECT_NE(job_of_run(r, {}).refusal.find("column precision: found \"int8\""), std::string::npos);
}

TEST(RunJob, RefusesWordsThatItDoesNotKnow) {
  const auto refusal = [](const MeasuredRun& r) { return job_of_run(r, {}).refusal; };
  EXPECT_EQ(refusal(run_of("JAX FSDP")), "JAX is not one of the frameworks");
  EXPECT_NE(refusal(run_of("GShard")).find("column strategy: found \"GShard\""), std::string::npos);
  MeasuredRun r = run_of("FSDP2");
  r.ac_mode = "sometimes";
  EXPECT_NE(refusal(r).find("column ac_mode: found \"sometimes\""), std::string::npos);
  r = run_of("FSDP2");
  r.gpu = "TPU v4";
  EXPECT_NE(refusal(r).find("column gpu: found \"TPU v4\""), std::string::npos);
}

TEST(RunJob, ReadsGpusAsTheCatalogueDoes) {
  const auto gpu = [](const char* name) {
    MeasuredRun r = run_of("FSDP2", 4);
    r.gpu = name;
    return job_of_run(r, {}).job.hardware.gpu.name;
  };
  EXPECT_EQ(gpu("A10G-24GB (PCIe4)"), "a10g");
  EXPECT_EQ(gpu("A40-48GB"), "a40");
  EXPECT_EQ(gpu("A100-80GB-PCIe"), "a100-pcie-80");
  EXPECT_EQ(gpu("H200-141GB"), "h200");
}

// 2 nodes of 4: eight ranks on nodes of four GPUs, whatever the usual box holds.
TEST(RunJob, ReadsTheSizeOfNodes) {
  MeasuredRun r = run_of("FSDP2", 8);
  r.gpus_per_node = 4;
  EXPECT_EQ(job_of_run(r, {}).job.hardware.gpus_per_node(), 4);
  r.n_gpus = 4;  // One node, of which four GPUs are used.
  EXPECT_EQ(job_of_run(r, {}).job.hardware.gpus_per_node(), 8);
}

TEST(RunJob, ReadsThatPeersHaveNoAccess) {
  MeasuredRun r = run_of("DDP", 2);
  r.gpu = "TITAN RTX-24GB";
  EXPECT_EQ(job_of_run(r, {}).job.hardware.node.fabric, FabricKind::kNvLinkPairs);
  r.inter_node_link = "intra-node: no P2P (NCCL_P2P_DISABLE=1, through host)";
  const NodeProfile node = job_of_run(r, {}).job.hardware.node;
  EXPECT_EQ(node.fabric, FabricKind::kPcie);
  EXPECT_EQ(node.peer_to_peer.value, 0);
}

TEST(RunJob, ReadsNetworks) {
  const auto rate = [](const char* link) {  // GB/s of a node.
    MeasuredRun r = run_of("FSDP2");
    r.inter_node_link = link;
    const NetworkProfile n = job_of_run(r, {}).job.hardware.network;
    return n.nics.value * n.nic_rate.value / 1e9;
  };
  EXPECT_DOUBLE_EQ(rate("RDMA 800 Gb/s per node"), 100);
  EXPECT_DOUBLE_EQ(rate("RDMA 400 Gb/s per GPU (CX-7)"), 400);
  EXPECT_DOUBLE_EQ(rate("InfiniBand 100 Gb/s per node (IB1 100 Gb/s)"), 12.5);
  EXPECT_DOUBLE_EQ(rate("HDR InfiniBand 8x200 Gb/s per node"), 200);
  EXPECT_DOUBLE_EQ(rate("EFA 3.2 Tb/s per node (p5.48xlarge)"), 400);
}

// Lightning-AI/lightning-minGPT: gpt2-xxl has 96 layers of 25 heads on a width of 1600, 2951 M
// parameters without the head; a block has 12 d^2 + 13 d.
TEST(RunModel, ReadsMinGptsPresets) {
  MeasuredRun r = run_of("FSDP1 FULL_SHARD", 4);
  r.model = "minGPT gpt2-xxl 3B";
  r.params_b = 3;
  r.n_layers = r.d_model = r.n_heads = r.n_kv_heads = r.d_ff = r.vocab = std::nullopt;
  r = with_shape_of_name(r);
  const std::int64_t d = 1600, blocks = 96 * (12 * d * d + 13 * d);
  EXPECT_NEAR(static_cast<double>(blocks), 2951e6, 1e6);
  EXPECT_EQ(parameters(r), blocks + 2 * d + 2 * 65 * d + 512 * d);  // Final norm, tables.
}

TEST(RunModel, KnowsModelsOfTheCatalogueByName) {
  MeasuredRun r = run_of("FSDP1 LoRA", 2);
  r.model = "Llama-2-7B LoRA";
  r.d_model = r.n_heads = std::nullopt;
  EXPECT_TRUE(states_shape(r));
  EXPECT_EQ(parameters(r), 6'738'415'616);  // meta-llama/Llama-2-7b-hf.
  r.model = "Unheard-of 9B";
  EXPECT_FALSE(states_shape(r));
}

// 100 bytes live throughout, 40 more in the optimizer's phase, 400 more in backward.
TEST(ScoreMemory, LivePeakOfAPhase) {
  Schedule s;
  s.world = 1;
  s.program_of_rank = {0};
  s.programs.emplace_back();
  RankProgram& p = s.programs[0];
  for (const std::int64_t bytes : {100, 400, 40}) {
    Buffer b;
    b.bytes = Bytes(bytes);
    p.buffers.push_back(b);
  }
  for (const Phase phase : {Phase::kBackward, Phase::kOptimizer}) {
    Launch l;
    l.phase = phase;
    p.launches.push_back(l);
  }
  const auto add = [&](InstructionKind kind, std::uint32_t id) {
    Instruction in;
    in.kind = kind;
    in.id = id;
    p.instructions.push_back(in);
  };
  add(InstructionKind::kAlloc, 0);
  add(InstructionKind::kLaunch, 0);
  add(InstructionKind::kAlloc, 1);
  add(InstructionKind::kFree, 1);
  add(InstructionKind::kLaunch, 1);
  add(InstructionKind::kAlloc, 2);
  add(InstructionKind::kFree, 2);
  EXPECT_EQ(live_peak(s, Phase::kOptimizer), Bytes(140));
  EXPECT_EQ(live_peak(s, Phase::kBackward), Bytes(500));
}

}  // namespace
}  // namespace foreshard
