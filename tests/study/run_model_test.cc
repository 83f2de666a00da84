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

// 280 of 350 W: 0.8^0.4 = 0.9146. "(8x" is no power, and neither moves a GPU without a limit below
// its own.
TEST(RunJob, ReadsThePowerThatARowStates) {
  MeasuredRun r = llama(32, 4096, 32, 32, 11008, 32000, 6.74);
  r.gpu = "RTX3090 (no NVLink)";
  const double usual = job_of_run(r, {}).job.hardware.gpu.find_efficiency("matmul_training")->value;
  r.gpu = "RTX3090 (280 W, PCIe, no NVLink)";
  const double held = job_of_run(r, {}).job.hardware.gpu.find_efficiency("matmul_training")->value;
  EXPECT_NEAR(held / usual, 0.9146, 1e-4);
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
