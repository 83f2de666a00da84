// The planner's allocator requests against those of real PyTorch 2.15 (golden/memory/alloc),
// request by request.

#include <gtest/gtest.h>

#include "schedules/planner/planner.h"
#include "tests/planner/memory_support.h"
#include "tests/shared_folder.h"

namespace foreshard::fixture {
namespace {

class MemoryStreams : public ::testing::TestWithParam<const char*> {};

TEST_P(MemoryStreams, SameRequestsInTheSameOrder) {
  const std::string folder = memory_goldens();
  FORESHARD_NEEDS(folder);
  const MemoryCase c = read_memory_case(folder, GetParam());
  PlanOptions o;
  o.executable = false;
  o.steps = c.steps;
  o.ranks = {c.rank};
  const Schedule s = plan(c.model, c.config, o);
  EXPECT_EQ(first_difference(c.recorded, requests_of(s.programs[0])), "");
}

std::string name_of_case(const ::testing::TestParamInfo<const char*>& i) { return i.param; }

INSTANTIATE_TEST_SUITE_P(Unsharded, MemoryStreams,
                         ::testing::Values("l1b_none", "l1b_none_autocast"), name_of_case);

INSTANTIATE_TEST_SUITE_P(Ddp, MemoryStreams,
                         ::testing::Values("toy_ddp", "toy_ddp_cap1", "toy_ddp_noview",
                                           "toy_ddp_sync", "l1b_ddp", "l1b_ddp_accum2",
                                           "l1b_ddp_cap100", "l1b_ddp_cap5", "l1b_ddp_noview",
                                           "l1b_ddp_static"),
                         name_of_case);

INSTANTIATE_TEST_SUITE_P(
    Fsdp1, MemoryStreams,
    ::testing::Values("toy_fsdp1", "toy_fsdp1_accum2_nosync", "toy_fsdp1_fwdpref",
                      "toy_fsdp1_hybrid", "toy_fsdp1_nolimit_sync", "toy_fsdp1_nopref",
                      "toy_fsdp1_offload", "toy_fsdp1_origparams", "toy_fsdp1_post",
                      "toy_fsdp1_sgo", "toy_fsdp1_sync", "gpt2_fsdp1", "gpt2_fsdp1_offload",
                      "gpt2xl_fsdp1", "l1b_fsdp1", "l1b_fsdp1_sync", "l8b_fsdp1", "l8b_fsdp1_flat",
                      "l8b_fsdp1_nolimit_sync", "l8b_fsdp1_sgo", "l8b_fsdp1_sync"),
    name_of_case);

INSTANTIATE_TEST_SUITE_P(
    Fsdp2, MemoryStreams,
    ::testing::Values("toy_fsdp2_ac", "toy_fsdp2_accum2", "toy_fsdp2_accum2_nosync",
                      "toy_fsdp2_async", "toy_fsdp2_bf16_model", "toy_fsdp2_bp0", "toy_fsdp2_bp2",
                      "toy_fsdp2_clip", "toy_fsdp2_fp1", "toy_fsdp2_fp16", "toy_fsdp2_fp2",
                      "toy_fsdp2_fp32", "toy_fsdp2_hsdp", "toy_fsdp2_hsdp_bf16",
                      "toy_fsdp2_offload", "toy_fsdp2_raf_2", "toy_fsdp2_raf_false",
                      "toy_fsdp2_reduce_bf16", "toy_fsdp2_reduce_none", "toy_fsdp2_root",
                      "toy_fsdp2_root_reshard", "toy_fsdp2_rs2", "toy_fsdp2_split",
                      "toy_fsdp2_uneven_r0", "toy_fsdp2_uneven_r6", "toy_fsdp2_w1",
                      "toy_fsdp2_wrap_none", "gpt2_fsdp2", "gpt2_dropout", "gpt2_offload",
                      "gpt2xl_fsdp2", "l1b_base", "l1b_ac_mb4", "l1b_accum4_nosync", "l8b_base",
                      "l8b_ce_bf16", "l8b_fused", "l8b_ac_every2", "l8b_ac_hsdp8x8", "l70b_w64",
                      "l70b_w64_raf_8", "q32b_w8_mb1"),
    name_of_case);

}  // namespace
}  // namespace foreshard::fixture
