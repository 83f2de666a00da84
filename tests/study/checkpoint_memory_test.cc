// Device memory while a checkpoint is saved or loaded: recorded with PyTorch 2.15 on a stand-in
// H100 (get_model_state_dict and get_optimizer_state_dict with full_state_dict and cpu_offload,
// set_model_state_dict with broadcast_from_rank0) after two steps of a plain Llama.

#include "study/checkpoint_memory.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/plain/plain_models.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

PlainModelOptions llama() {
  PlainModelOptions o;
  o.layers = 2;
  o.hidden = 256;
  o.heads = 4;
  o.kv_heads = 2;
  o.ffn = 700;
  o.vocabulary = 3001;
  return o;
}

ParallelConfig saved_config(std::int64_t shard) {
  ParallelConfig c;
  c.shard = shard;
  c.sequence = 128;
  c.optimizer = OptimizerKind::kAdamWFused;
  return c;
}

std::vector<CheckpointRow> rows_of(const Model& model, const ParallelConfig& c, std::int64_t rank) {
  PlanOptions o;
  o.ranks = {rank};
  o.executable = false;
  const Schedule s = plan(model, c, o);
  CheckpointSetting setting;
  setting.device_memory = Bytes(std::int64_t{80} << 30);
  setting.ranks_per_node = 2;
  return study_checkpoints(model, c, s.programs.at(0), setting);
}

CheckpointRow row(const std::vector<CheckpointRow>& rows, const std::string& way,
                  const std::string& phase = "save") {
  const auto at = std::find_if(rows.begin(), rows.end(), [&](const CheckpointRow& r) {
    return r.way == way && r.phase == phase;
  });
  return at == rows.end() ? CheckpointRow{} : *at;
}

constexpr const char* kGathered = "whole, gathered to rank 0";

TEST(CheckpointMemory, OneTensorIsWholeAtATime) {
  const Model model = plain_llama(llama());
  const auto rows = rows_of(model, saved_config(4), 0);
  const CheckpointRow whole = row(rows, kGathered);
  EXPECT_EQ(whole.allocated, Bytes(14'211'072));
  EXPECT_EQ(whole.reserved, Bytes(98'566'144));
  EXPECT_TRUE(whole.fits);
  // Recorded: 12,024,832 of the model, 24,049,748 of the optimizer with 21 steps of 4 bytes.
  EXPECT_EQ(whole.host, Bytes(12'024'832 + 24'049'748 - 84));
  EXPECT_EQ(whole.host_node, whole.host);
  EXPECT_EQ(row(rows, "sharded").allocated, Bytes(11'134'976));
  // Without cpu_offload.
  EXPECT_EQ(row(rows, "model alone, whole on every device").allocated, Bytes(23'165'952));
}

/// 3,001 rows over three ranks: the last holds 999 and pads them to 1,001 before it gathers.
TEST(CheckpointMemory, ARankWithFewerRowsPadsThem) {
  const auto rows = rows_of(plain_llama(llama()), saved_config(3), 2);
  EXPECT_EQ(row(rows, kGathered).allocated, Bytes(18'201'600));
  EXPECT_EQ(row(rows, "sharded").allocated, Bytes(14'101'504));
}

TEST(CheckpointMemory, OffloadedShardsComeUpFirst) {
  ParallelConfig c = saved_config(4);
  c.offload = OffloadKind::kParameters;
  const auto rows = rows_of(plain_llama(llama()), c, 0);
  EXPECT_EQ(row(rows, kGathered).allocated, Bytes(5'942'272));
  EXPECT_EQ(row(rows, "sharded").allocated, Bytes(2'097'152));
}

TEST(CheckpointMemory, Fsdp1UnshardsOneFlatParameterAtATime) {
  ParallelConfig c = saved_config(4);
  c.framework = FrameworkKind::kFsdp1;
  c.fsdp1.use_orig_params = true;
  c.wrap.root_split = false;
  const auto rows = rows_of(plain_llama(llama()), c, 0);
  EXPECT_EQ(row(rows, "sharded").allocated, Bytes(14'128'128));
  EXPECT_EQ(row(rows, kGathered).allocated, Bytes(17'268'736));
}

/// A replica gathers nothing; rank 0 writes its copy.
TEST(CheckpointMemory, ReplicasAddNothingOnTheDevice) {
  ParallelConfig c = saved_config(1);
  c.framework = FrameworkKind::kDdp;
  c.replicate = 4;
  c.precision.param.reset();
  const auto rows = rows_of(plain_llama(llama()), c, 0);
  EXPECT_EQ(row(rows, "whole, by rank 0").allocated, Bytes(50'207'232));
  EXPECT_EQ(row(rows, "whole, by rank 0").host, Bytes(12'024'832 + 24'049'664));
  EXPECT_EQ(row(rows, "whole file in every process", "load").host_node, Bytes(2 * 12'024'832));
}

/// Recorded on ranks that hold the model alone: the largest tensor, 3,073,024 bytes, passes
/// through; a tied head is in the file under both names.
TEST(CheckpointMemory, LoadingBroadcastsTensorByTensor) {
  const auto rows = rows_of(plain_llama(llama()), saved_config(4), 0);
  const CheckpointRow broadcast = row(rows, "whole file in rank 0, broadcast", "load"),
                      sharded = row(rows, "sharded", "load");
  EXPECT_EQ(broadcast.allocated - sharded.allocated, Bytes(14'208'000 - 11'134'976));
  EXPECT_EQ(broadcast.host, Bytes(12'024'832));
  PlainModelOptions o = llama();
  o.tied = true;
  EXPECT_EQ(row(rows_of(plain_llama(o), saved_config(4), 0), kGathered).host,
            Bytes(12'024'832 + 2 * (12'024'832 - 3'073'024)));
}

/// By hand from DeepSpeed 0.19.8 (engine.py, torch_checkpoint_engine.py). Elements: two blocks of
/// 2 * 256 * 256 + 2 * 128 * 256 + 3 * 700 * 256 + 2 * 256 = 734,720, embedding and head 2 * 3,001
/// * 256, norm 256: 3,006,208, which eight divides. One flat bf16 tensor of them in stages 1 and 2,
/// fp32 parts of a quarter.
TEST(CheckpointMemory, ZeroRanksWriteTheirParts) {
  ParallelConfig c = saved_config(4);
  c.precision.param = DType::kBFloat16;
  for (const FrameworkKind stage : {FrameworkKind::kZero1, FrameworkKind::kZero2}) {
    c.framework = stage;
    const auto rows = rows_of(plain_llama(llama()), c, 0);
    const CheckpointRow parts = row(rows, "parts, by every rank");
    EXPECT_EQ(parts.host, Bytes(2 * 3'006'208));
    EXPECT_EQ(parts.host_node, Bytes(2 * 3'006'208 + 3'006'208));
  }
  c.framework = FrameworkKind::kZero3;
  const auto rows = rows_of(plain_llama(llama()), c, 0);
  const CheckpointRow parts = row(rows, "parts, by every rank"),
                      whole = row(rows, "model alone, whole, gathered to rank 0");
  EXPECT_EQ(parts.host, Bytes(3'006'208));
  EXPECT_EQ(parts.host_node, Bytes(2 * 3'006'208));
  // The head's or the embedding's 3,001 * 256 bf16 elements pass through the device, once those
  // that stay gathered between steps are gone: up to 100,000 elements, in each block two of 256 *
  // 256, two of 128 * 256 and two norms, and the last norm.
  EXPECT_EQ(whole.allocated - parts.allocated, Bytes(2 * (3'001 * 256 - 2 * 197'120 - 256)));
  EXPECT_EQ(whole.host, Bytes(2 * 3'006'208));
}

TEST(CheckpointMemory, SaysWhatDoesNotFit) {
  const Model model = plain_llama(llama());
  const ParallelConfig c = saved_config(4);
  PlanOptions o;
  o.executable = false;
  const Schedule s = plan(model, c, o);
  CheckpointSetting setting;
  setting.device_memory = Bytes(40 << 20);  // Less than a step needs, enough for the model.
  for (const CheckpointRow& r : study_checkpoints(model, c, s.programs.at(0), setting))
    EXPECT_EQ(r.fits, r.phase == "load") << r.way;
  EXPECT_TRUE(study_checkpoints(
                  model,
                  [&] {
                    ParallelConfig z = c;
                    z.framework = FrameworkKind::kShardedOptimizer;
                    return z;
                  }(),
                  s.programs.at(0), setting)
                  .empty());
}

}  // namespace
}  // namespace foreshard
