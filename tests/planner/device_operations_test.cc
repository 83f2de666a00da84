// How many kernels and memory sets a call gives to the device, and the small allocations around
// them, as counted in the logs of PyTorch 2.15 on a stand-in for an H100.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "models/plain/plain_models.h"
#include "schedules/planner/foreach.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

/// Tensors of so many chunks of 65,536 elements.
std::int64_t kernels(const std::vector<std::int64_t>& chunks, int depth, bool scalars = false) {
  const Model model;
  const ParallelConfig config;
  Host host(model, config, {});
  TensorList list;
  for (const std::int64_t n : chunks)
    list.push_back(host.empty({n * 65536}, DType::kFloat32, BufferCategory::kOptimizerTemporary));
  return multi_tensor_kernels(list, depth, scalars);
}

// The largest numbers of small tensors that one kernel took: 770 for one list (672 with a scalar
// each), 448 for two, 336 for three, 252 for four (fused AdamW).
TEST(DeviceOperations, TensorsOfOneListKernel) {
  const std::vector<std::pair<int, std::size_t>> most{{1, 770}, {2, 448}, {3, 336}, {4, 252}};
  for (const auto& [depth, n] : most) {
    EXPECT_EQ(kernels(std::vector<std::int64_t>(n, 1), depth), 1) << depth;
    EXPECT_EQ(kernels(std::vector<std::int64_t>(n + 1, 1), depth), 2) << depth;
  }
  EXPECT_EQ(kernels(std::vector<std::int64_t>(672, 1), 1, true), 1);
  EXPECT_EQ(kernels(std::vector<std::int64_t>(673, 1), 1, true), 2);
}

// 2,240 chunks fill a kernel whatever the depth; a tensor that did not fit goes on in the next one.
TEST(DeviceOperations, ChunksOfOneListKernel) {
  EXPECT_EQ(kernels({2240}, 3), 1);
  EXPECT_EQ(kernels({2241}, 1), 2);
  EXPECT_EQ(kernels({2239, 2}, 2), 2);
  EXPECT_EQ(kernels({2241, 2239}, 2), 2);
  EXPECT_EQ(kernels({2241, 2240}, 2), 3);
  EXPECT_EQ(kernels({0, 0, 5}, 2), 1);
}

TEST(DeviceOperations, ConcatenationsTake128Tensors) {
  EXPECT_EQ(cat_kernels(1), 1);
  EXPECT_EQ(cat_kernels(128), 1);
  EXPECT_EQ(cat_kernels(129), 2);
}

struct Job {
  PlainModelOptions model;
  ParallelConfig config;
};

/// One block, 64 tokens, on one device.
Job small(std::int64_t hidden, std::int64_t heads = 2) {
  Job j;
  j.model.layers = 1;
  j.model.hidden = hidden;
  j.model.heads = heads;
  j.model.ffn = 2 * hidden;
  j.model.vocabulary = 1000;
  j.model.max_sequence = 64;
  j.config.framework = FrameworkKind::kUnsharded;
  j.config.sequence = 64;
  j.config.clip = false;
  return j;
}

RankProgram program_of(const Job& j, int steps = 1) {
  PlanOptions options;
  options.steps = steps;
  options.executable = false;
  return plan(plain_llama(j.model), j.config, options).programs[0];
}

/// Kernels of the first launch of `op` in the last step.
int kernels_of(const Job& j, OpKind op, int steps = 1) {
  const RankProgram p = program_of(j, steps);
  const auto& last = p.steps.back();
  for (std::uint32_t i = last.begin; i < last.end; ++i) {
    const Instruction& in = p.instructions[i];
    if (in.kind == InstructionKind::kLaunch && p.launches[in.id].op == op)
      return static_cast<int>(p.launches[in.id].kernels);
  }
  return -1;
}

// dot(do, o), the products, dq to 16 bits; with grouped heads dk and dv are added up.
TEST(DeviceOperations, FlashAttention) {
  Job j = small(128);
  j.config.model_dtype = j.model.dtype = DType::kBFloat16;
  EXPECT_EQ(kernels_of(j, OpKind::kFlashAttentionBackward), 3);
  EXPECT_EQ(kernels_of(j, OpKind::kFlashAttention), 1);
  j.model.kv_heads = 1;
  EXPECT_EQ(kernels_of(j, OpKind::kFlashAttentionBackward), 5);
  // Four tiles of 256 keys for 2 x 16 tiles of 64 queries: keys are split, and the parts combined.
  j.config.sequence = j.model.max_sequence = 1024;
  EXPECT_EQ(kernels_of(j, OpKind::kFlashAttention), 2);
}

// fp32: product, sum and copy of delta before the kernel; a workspace that several splits of 64
// keys share is set to zero first.
TEST(DeviceOperations, EfficientAttention) {
  Job j = small(128);
  EXPECT_EQ(kernels_of(j, OpKind::kEfficientAttentionBackward), 4);
  j.config.sequence = j.model.max_sequence = 128;
  EXPECT_EQ(kernels_of(j, OpKind::kEfficientAttentionBackward), 5);
}

// Rows that are not read four elements at a time: statistics first, then the result.
TEST(DeviceOperations, Norms) {
  EXPECT_EQ(kernels_of(small(128), OpKind::kRmsNorm), 1);
  EXPECT_EQ(kernels_of(small(250, 5), OpKind::kRmsNorm), 2);
}

// The first step copies the gradients into the momentum and updates; later ones scale, add, update.
TEST(DeviceOperations, Sgd) {
  Job j = small(128);
  j.config.optimizer = OptimizerKind::kSgd;
  j.config.momentum = 0.9;
  EXPECT_EQ(kernels_of(j, OpKind::kSgdUpdate, 1), 1);
  EXPECT_EQ(kernels_of(j, OpKind::kSgdUpdate, 2), 3);
  j.config.momentum = 0;
  EXPECT_EQ(kernels_of(j, OpKind::kSgdUpdate, 2), 1);
}

/// Sizes of the device's allocations before the first step, in order.
std::vector<std::int64_t> construction(const Job& j) {
  const RankProgram p = program_of(j);
  std::vector<std::int64_t> sizes;
  for (std::uint32_t i = 0; i < p.steps[0].begin; ++i)
    if (p.instructions[i].kind == InstructionKind::kAlloc)
      sizes.push_back(p.buffers[p.instructions[i].id].bytes.value);
  return sizes;
}

// _flat_param.py, _construct_padding_tensor: torch.ones(n) * 42, two tensors for each run of
// padding. Parameters begin at multiples of 4 elements (16 bytes), so 2 elements follow each norm
// of 250; all matrices are multiples of 4.
TEST(Fsdp1Construction, PaddingIsMadeOnTheDevice) {
  Job j = small(250, 5);
  j.config.framework = FrameworkKind::kFsdp1;
  j.config.shard = 7;
  j.config.wrap.kind = WrapPolicy::Kind::kRootOnly;
  j.config.wrap.root_split = false;
  j.config.precision = {};
  j.config.fsdp1.use_orig_params = false;
  const auto runs = [&](std::int64_t bytes) {
    const auto sizes = construction(j);
    return std::count(sizes.begin(), sizes.end(), bytes);
  };
  EXPECT_EQ(runs(8), 0);
  j.config.fsdp1.use_orig_params = true;
  // attention_norm, ffn_norm, norm: three runs, ones and product each. (The sum of 1,125,756
  // elements is 5 short of a multiple of 7 ranks: one run of 20 bytes more.)
  EXPECT_EQ(runs(8), 2 * 3);
  EXPECT_EQ(runs(20), 2);
}

// A weight that two units share stays with their modules until both have flattened it: the tied
// embedding, 1000 x 128 in fp32, is made twice (and tied again), flattened twice.
TEST(Fsdp1Construction, TiedWeightsOutliveTheFirstUnit) {
  Job j = small(128);
  j.model.tied = true;
  j.config.framework = FrameworkKind::kFsdp1;
  j.config.shard = 4;
  j.config.wrap.root_split = true;
  j.config.fsdp1.use_orig_params = false;
  const auto sizes = construction(j);
  EXPECT_EQ(std::count(sizes.begin(), sizes.end(), 1000 * 128 * 4), 2 + 2);
}

}  // namespace
}  // namespace foreshard
