// Bucket assignment of DDP (rules D-2 to D-5). Expected values: by hand for small lists,
// and answers of torch.distributed._compute_bucket_assignment_by_size (PyTorch 2.15) to the same
// tensors.

#include "schedules/planner/frameworks/ddp_buckets.h"

#include <gtest/gtest.h>

#include <vector>

#include "models/plain/plain_models.h"
#include "schedules/planner/host/host.h"

namespace foreshard {
namespace {

using ddp::assign_buckets;
using ddp::Indices;
using Buckets = std::vector<Indices>;
using Limits = std::vector<std::int64_t>;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

class DdpBuckets : public ::testing::Test {
 protected:
  SymTensor tensor(std::int64_t numel, DType dtype = DType::kFloat32) {
    return host_.empty({numel}, dtype, BufferCategory::kParameter);
  }

  Model model_ = plain_llama({.layers = 1, .hidden = 8, .heads = 2, .ffn = 8, .vocabulary = 8});
  ParallelConfig config_;
  Host host_{model_, config_, HostOptions{}};
};

/// 1000, 200000, 300000, 5e6, 3e6 and 100 floats, limits 1 MiB and 25 MiB: a bucket closes when it
/// reaches its limit.
TEST_F(DdpBuckets, CloseWhenTheirLimitIsReached) {
  std::vector<SymTensor> tensors;
  for (const std::int64_t n : {1000, 200000, 300000, 5000000, 3000000, 100})
    tensors.push_back(tensor(n));
  const Limits limits{kMiB, 25 * kMiB};
  EXPECT_EQ(assign_buckets(tensors, limits).buckets, (Buckets{{0, 1, 2}, {3, 4}, {5}}));
  const Indices reversed{5, 4, 3, 2, 1, 0};
  EXPECT_EQ(assign_buckets(tensors, limits, &reversed).buckets, (Buckets{{5, 4}, {3, 2, 1, 0}}));
}

/// Buckets that stay open, in the order of arrival: the dtype that came last is first.
TEST_F(DdpBuckets, OpenOnesOfSeveralDtypes) {
  const std::vector<SymTensor> tensors{tensor(4), tensor(4, DType::kBFloat16),
                                       tensor(4, DType::kFloat16), tensor(4)};
  EXPECT_EQ(assign_buckets(tensors, {1000}).buckets, (Buckets{{0, 3}, {1}, {2}}));
  const Indices forward{0, 1, 2, 3}, backward{3, 2, 1, 0};
  EXPECT_EQ(assign_buckets(tensors, {1000}, &forward).buckets, (Buckets{{2}, {1}, {0, 3}}));
  EXPECT_EQ(assign_buckets(tensors, {1000}, &backward).buckets, (Buckets{{1}, {2}, {3, 0}}));
}

/// D-3 and D-4: one bucket in iteration 0 unless parameters may be unused or sizes are listed; a
/// size of one's own has no small first bucket.
TEST_F(DdpBuckets, Limits) {
  DdpOptions o;
  EXPECT_EQ(ddp::first_limits(o), Limits{INT64_MAX});
  EXPECT_EQ(ddp::rebuild_limits(o), (Limits{kMiB, 25 * kMiB}));
  o.find_unused_parameters = true;
  EXPECT_EQ(ddp::first_limits(o), (Limits{kMiB, 25 * kMiB}));
  o.bucket_cap_mib = 5;
  EXPECT_EQ(ddp::first_limits(o), Limits{5 * kMiB});
  o.static_graph = true;
  EXPECT_EQ(ddp::first_limits(o), Limits{INT64_MAX});
  o.bucket_cap_mib_list = {1, 3, 2};
  EXPECT_EQ(ddp::first_limits(o), (Limits{kMiB, 3 * kMiB, 2 * kMiB}));
  EXPECT_EQ(ddp::bucket_cap_bytes(o), 3 * kMiB);
}

}  // namespace
}  // namespace foreshard
