// Memory of FSDP1 depends on time: frees wait for streams, the rate limiter makes the host wait.
// The simulator knows time, so its value lies between the recordings of an infinitely fast and an
// infinitely slow device.

#include <gtest/gtest.h>

#include "models/plain/plain_models.h"
#include "schedules/planner/planner.h"
#include "sim/hardware_cost.h"
#include "sim/simulator.h"

namespace foreshard {
namespace {

/// Llama-8B, 8 ranks, full checkpointing, 4,096 tokens, clipping, AdamW foreach, original
/// parameters.
SimulationResult simulated(bool limit_all_gathers) {
  PlainModelOptions o;
  o.layers = 32;
  o.hidden = 4096;
  o.heads = 32;
  o.kv_heads = 8;
  o.ffn = 14336;
  o.vocabulary = 128256;
  o.max_sequence = 8192;
  const Model model = plain_llama(o);
  ParallelConfig c;
  c.framework = FrameworkKind::kFsdp1;
  c.shard = 8;
  c.sequence = 4096;
  c.wrap.root_split = false;
  c.checkpoint = CheckpointKind::kFull;
  c.fsdp1.use_orig_params = true;
  c.fsdp1.limit_all_gathers = limit_all_gathers;
  PlanOptions plan_options;
  plan_options.executable = false;
  plan_options.steps = 3;
  const Schedule s = plan(model, c, plan_options);
  return simulate(s, make_cluster(load_hardware("dgx-h100"), 8), SimulationOptions{});
}

// Recorded with PyTorch 2.15, last of three steps (allocated; reserved instant, sync; reserved sync
// without limiter): 22,368,847,360; 36,953,915,392, 50,329,550,848; 78,064,386,048.
TEST(Fsdp1Memory, LimitedRunLiesBetweenTheRecordedBounds) {
  const MemoryResult m = simulated(true).memory;
  EXPECT_EQ(m.allocated_peak, Bytes(22'368'847'360));
  EXPECT_GE(m.reserved_peak, Bytes(36'953'915'392));
  EXPECT_LE(m.reserved_peak, Bytes(50'329'550'848));
}

TEST(Fsdp1Memory, WithoutTheLimiterMoreIsHeldButNoMoreThanRecorded) {
  const MemoryResult limited = simulated(true).memory, free_running = simulated(false).memory;
  EXPECT_EQ(free_running.allocated_peak, limited.allocated_peak);
  EXPECT_GE(free_running.reserved_peak, limited.reserved_peak);
  EXPECT_LE(free_running.reserved_peak, Bytes(78'064'386'048));
}

}  // namespace
}  // namespace foreshard
