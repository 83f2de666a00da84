// Memory without a clock.

#include "sim/memory_pass.h"

#include <gtest/gtest.h>

#include "toy.h"

namespace foreshard::sim {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

// 40 MiB hold one of two buffers, each in the pool of its own stream: all but the first alloc give
// the other's segment back. Each new segment lies above all others, yet every step from the second
// on leaves memory as it found it, so only two of a thousand are run.
TEST(MemoryPass, StepsRepeatWhereverTheirSegmentsLie) {
  toy::ToyProgram program;
  program.end_init();
  const std::uint32_t a = program.buffer(22 * kMiB, 0), b = program.buffer(30 * kMiB, 1);
  program.alloc(a).free(a).alloc(b).free(b).end_step();
  MemoryPassOptions options;
  options.capacity = Bytes(40 * kMiB);
  options.steps = 1000;
  options.levels = true;
  const MemoryRequests requests(program.p);
  const MemoryPass pass = run_memory(requests, options);
  EXPECT_EQ(pass.retries, 1 + 999 * 2);
  ASSERT_EQ(pass.calls.size(), 2000u);
  EXPECT_FALSE(pass.calls[0].retry);
  for (std::size_t i = 1; i < pass.calls.size(); ++i) {
    EXPECT_EQ(pass.calls[i].at, (Moment{static_cast<std::int32_t>(i / 2), i % 2 == 0 ? 0u : 2u}));
    EXPECT_EQ(pass.calls[i].allocs, 1);
    EXPECT_EQ(pass.calls[i].frees, 1);
    EXPECT_TRUE(pass.calls[i].retry);
  }
  ASSERT_EQ(pass.step_memory.size(), 1000u);
  EXPECT_EQ(pass.step_memory[999].step, 999);
  EXPECT_EQ(pass.step_memory[999].retries, 2);
  EXPECT_LE(pass.ledger->device_allocs(), 6);

  // The last step's levels: 22 MiB allocated, none, 30, none; reserved stays what was taken last.
  ASSERT_EQ(pass.first_level.size(), 1001u);
  const std::int64_t allocated[] = {22, 0, 30, 0}, reserved[] = {22, 22, 30, 30};
  for (std::size_t i = 0; i < 4; ++i) {
    const MemoryLevel& level = pass.levels[pass.first_level[1000] + i];
    EXPECT_EQ(level.allocated, allocated[i] * kMiB) << i;
    EXPECT_EQ(level.active, allocated[i] * kMiB) << i;
    EXPECT_EQ(level.reserved, reserved[i] * kMiB) << i;
  }
}

}  // namespace
}  // namespace foreshard::sim
