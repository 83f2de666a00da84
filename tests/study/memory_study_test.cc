#include "study/memory_study.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/catalogue_job.h"

namespace foreshard {
namespace {

Job small_job() {
  Job job = catalogue_job("gpt2", "dgx-h100", 8);
  job.config.sequence = 512;
  job.config.micro_batch = 4;
  job.config.optimizer = OptimizerKind::kAdamWForeach;
  return job;
}

const MemoryChange* find(const MemoryStudy& s, const std::string& change) {
  const auto at = std::find_if(s.changes.begin(), s.changes.end(),
                               [&](const MemoryChange& c) { return c.change == change; });
  return at == s.changes.end() ? nullptr : &*at;
}

TEST(MemoryStudy, EachChangeIsWhatTheChangedJobNeeds) {
  const Job job = small_job();
  const Evaluation base = evaluate(job);
  const MemoryStudy study = study_memory(job, base);
  Job changed = job;
  changed.config.checkpoint = CheckpointKind::kFull;
  const MemoryResult full = evaluate(changed).result.memory;
  const MemoryChange* c = find(study, "--checkpoint full");
  ASSERT_NE(c, nullptr);
  EXPECT_EQ(c->device, full.device_peak);
  EXPECT_EQ(c->device_change, full.device_peak - base.result.memory.device_peak);
  EXPECT_LT(c->device_change.value, 0);
  for (const char* change : {"--micro-batch 2", "--loss fused", "--loss chunked",
                             "--optimizer adamw", "--alloc-conf expandable_segments:True"}) {
    EXPECT_NE(find(study, change), nullptr) << change;
  }
  EXPECT_TRUE(std::is_sorted(study.changes.begin(), study.changes.end(),
                             [](const MemoryChange& a, const MemoryChange& b) {
                               return a.device_change < b.device_change;
                             }));
}

TEST(MemoryStudy, OptimizerStatesAppearInTheFirstStep) {
  const Job job = small_job();
  const MemoryStudy study = study_memory(job, evaluate(job));
  std::int64_t first = 0, later = 0;  // Before the first step's optimizer, and after it.
  for (const PhaseRow& row : study.phases) {
    if (row.phase == "input") (row.step == 0 ? first : later) = row.allocated.value;
  }
  const std::int64_t states =
      8 * job.model->parameter_count().value /
      8;  // Two moments of 4 bytes over 8 ranks; the allocator leaves rests below 1 MiB unsplit.
  EXPECT_NEAR(static_cast<double>(later - first), static_cast<double>(states),
              0.04 * static_cast<double>(states));
}

/// The phase table is of the run that gave the answer: its highest row is the headline's peak, in
/// the step that the headline names, whatever the device's size does to the allocator.
TEST(MemoryStudy, PhasesReachThePeaksOfTheAnswer) {
  for (const FrameworkKind kind :
       {FrameworkKind::kFsdp2, FrameworkKind::kZero2, FrameworkKind::kZero3}) {
    Job job = small_job();
    job.config.framework = kind;
    job.config.optimizer = OptimizerKind::kAdamWFused;
    const Bytes needed = evaluate(job).result.memory.device_peak;
    for (const Bytes device : {needed * 4, needed - Bytes(64 << 20)}) {
      SimulationOptions options;
      options.device_memory = device;
      const Evaluation base = evaluate(job, options);
      const MemoryResult& m = base.result.memory;
      Bytes allocated(0), reserved(0);
      bool named = false;
      for (const auto study = study_memory(job, base, options);
           const PhaseRow& row : study.phases) {
        allocated = std::max(allocated, row.allocated);
        reserved = std::max(reserved, row.reserved);
        named = named || (row.allocated == m.allocated_peak && row.step == m.peak_at.step);
      }
      EXPECT_EQ(allocated, m.allocated_peak);
      EXPECT_EQ(reserved, m.reserved_peak);
      EXPECT_TRUE(named);
    }
  }
}

TEST(MemoryStudy, LiveSetAddsUpToThePeakInBothViews) {
  const MemoryResult m = evaluate(small_job()).result.memory;
  std::int64_t by_unit = 0, by_module = 0;
  for (const Owner& o : m.owners) by_unit += o.bytes.value;
  for (const Owner& o : m.owners_by_module) by_module += o.bytes.value;
  EXPECT_EQ(by_unit, m.allocated_peak.value);
  EXPECT_EQ(by_module, m.allocated_peak.value);
}

}  // namespace
}  // namespace foreshard
