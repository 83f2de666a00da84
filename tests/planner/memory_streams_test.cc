// The planner's allocator requests against those of real PyTorch 2.15 (golden/memory/alloc), request by request.

#include <gtest/gtest.h>

#include <cstdlib>

#include "schedules/planner/planner.h"
#include "tests/planner/memory_support.h"

namespace foreshard::testing {
namespace {

class MemoryStreams : public ::testing::TestWithParam<const char*> {};

TEST_P(MemoryStreams, SameRequestsInTheSameOrder) {
  const std::string folder = memory_goldens();
  if (folder.empty()) GTEST_SKIP() << "recordings are not there";
  const MemoryCase c = read_memory_case(folder, GetParam());
  PlanOptions o;
  o.executable = false;
  o.steps = c.steps;
  o.ranks = {c.rank};
  const Schedule s = plan(c.model, c.config, o);
  EXPECT_EQ(first_difference(c.recorded, requests_of(s.programs[0])), "");
}

INSTANTIATE_TEST_SUITE_P(Unsharded, MemoryStreams, ::testing::Values("l1b_none", "l1b_none_autocast"),
                         [](const auto& i) { return std::string(i.param); });

}  // namespace
}  // namespace foreshard::testing
