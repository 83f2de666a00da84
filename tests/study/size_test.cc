#include "study/size.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "study/evaluate.h"
#include "tests/catalogue_job.h"

namespace foreshard {
namespace {

SizeQuestion question() {
  SizeQuestion q;
  q.job = catalogue_job("gpt2", "dgx-h100", 8);
  q.job.config.sequence = 256;
  q.hardware = {q.job.hardware};
  q.micro_batches = {4};
  return q;
}

const SizeRow& row_of(const SizeResult& r, std::int64_t gpus) {
  for (const SizeRow& row : r.rows)
    if (row.gpus == gpus) return row;
  throw std::runtime_error("no such row");
}

// Every number of whole nodes up to the first doubling that is fast enough, one by one, against the
// bisection.
TEST(Size, BisectionFindsTheFewestNodesThatMeetTheDeadline) {
  SizeQuestion each = question();
  each.tokens = 1e12;
  for (std::int64_t gpus = 8; gpus <= 64; gpus += 8) each.gpus.push_back(gpus);
  const SizeResult all = size(each);
  for (const std::int64_t enough : {16, 40, 56, 64}) {
    SCOPED_TRACE(enough);
    SizeQuestion q = question();
    q.tokens = each.tokens;
    q.deadline_days = row_of(all, enough).days * 1.000001;
    const SizeResult r = size(q);
    std::int64_t fewest = 0;
    for (const SizeRow& row : all.rows)
      if (fewest == 0 && row.days <= *q.deadline_days) fewest = row.gpus;
    ASSERT_TRUE(r.smallest.has_value());
    EXPECT_EQ(r.rows[*r.smallest].gpus, fewest);
    for (std::size_t i = 0; i + 1 < r.rows.size(); ++i)
      EXPECT_LT(r.rows[i].gpus, r.rows[i + 1].gpus);
  }
}

// Nobody asked for a mesh: the row is as fast as the best of all of them (each simulated by
// itself), and says which it is; --replicate 1 keeps shards over all GPUs.
TEST(Size, TakesHybridShardingWhereThatIsFaster) {
  SizeQuestion q = question();
  q.job = catalogue_job("llama3-8b", "dgx-h100", 8);
  q.micro_batches = {1};
  q.gpus = {1024};
  const SizeRow row = size(q).rows[0];
  Time best(std::int64_t{1} << 62);
  std::int64_t copies = 0;
  for (std::int64_t n = 1; n <= 128; n *= 2) {
    SizeQuestion one = q;
    one.replicate = n;
    const SizeRow r = size(one).rows[0];
    EXPECT_EQ(r.replicate, n);
    if (r.fits && r.step < best) best = r.step, copies = n;
  }
  EXPECT_GT(copies, 1);
  EXPECT_EQ(row.replicate, copies);
  EXPECT_EQ(row.shard, 1024 / copies);
  EXPECT_EQ(row.step, best);
}

// What simulate says of a job stands beside a purchase, too.
TEST(Size, SaysWhatNobodyCalibratedAndHowFarTheNamedRowsMayBeOff) {
  SizeQuestion q = question();
  q.gpus = {8, 4096};
  q.micro_batches = {1};
  const SizeResult r = size(q);
  EXPECT_TRUE(row_of(r, 8).outside.empty() ||
              row_of(r, 8).outside[0].find("GPUs") == std::string::npos);
  ASSERT_FALSE(row_of(r, 4096).outside.empty());
  EXPECT_NE(row_of(r, 4096).outside[0].find("4096 GPUs"), std::string::npos);
  ASSERT_TRUE(r.fastest.has_value());
  const SizeRow& named = r.rows[*r.fastest];
  EXPECT_LT(named.p10, named.step);
  EXPECT_GT(named.p90, named.step);
}

// The order in which micro-batches are given means nothing: the largest first does not fit.
TEST(Size, TriesSmallMicroBatchesWhereALargeOneDoesNotFit) {
  SizeQuestion q = question();
  q.gpus = {8};
  q.job.config.sequence = 1024;
  q.micro_batches = {1024, 1};
  const SizeResult r = size(q);
  EXPECT_TRUE(r.rows[0].fits);
  EXPECT_EQ(r.rows[0].micro_batch, 1);
}

// Not only powers of two: one sequence more than the answer's leaves too little of the device free,
// or is no faster.
TEST(Size, FindsTheLargestMicroBatchBetweenDoublings) {
  SizeQuestion q = question();
  q.gpus = {8};
  q.job.config.sequence = 1024;
  q.micro_batches.clear();
  const SizeRow row = size(q).rows[0];
  ASSERT_TRUE(row.fits);
  EXPECT_FALSE(row.tight);
  q.micro_batches = {row.micro_batch + 1};
  const SizeRow more = size(q).rows[0];
  EXPECT_TRUE(!more.fits || more.tight || more.retries > 0 ||
              more.samples_per_s_per_gpu < 1.02 * row.samples_per_s_per_gpu);
  EXPECT_GT(row.micro_batch & (row.micro_batch - 1), 0) << "an example that doublings answer";
}

// 24 sequences on 8 GPUs: each has 3, in one micro-batch or in three of one.
TEST(Size, TriesTheDivisorsOfAGlobalBatch) {
  SizeQuestion q = question();
  q.gpus = {8};
  q.micro_batches.clear();
  q.global_batch = 24;
  const SizeRow row = size(q).rows[0];
  EXPECT_EQ(row.micro_batch, 3);
  EXPECT_EQ(row.accumulate, 1);
}

// Accumulation to a global batch: a long step is put together from short ones; the whole of it,
// simulated, takes as long.
TEST(Size, LongStepsTakeWhatTheirSimulationTakes) {
  SizeQuestion q = question();
  q.gpus = {8};
  q.global_batch = 8 * 4 * 9;
  const SizeResult r = size(q);
  const SizeRow& row = r.rows[0];
  ASSERT_TRUE(row.fits);
  EXPECT_EQ(row.accumulate, 9);
  Job job = q.job;
  job.config.micro_batch = 4;
  job.config.accumulate = 9;
  const Evaluation e = evaluate(job);
  EXPECT_NEAR(row.step / e.result.step_time, 1, 0.005);
  EXPECT_NEAR(row.tokens_per_s_per_gpu / e.tokens_per_second_per_gpu(), 1, 0.005);
  EXPECT_NEAR(row.mfu / e.model_flops_utilisation(job), 1, 0.005);
  EXPECT_NEAR(static_cast<double>(row.memory.value),
              static_cast<double>(e.result.memory.device_peak.value), 64 << 20);
}

// 8 GPUs x 4 sequences = 32 do not divide 100: refused by name, not rounded.
TEST(Size, GlobalBatchThatDoesNotDivideIsRefusedInItsRow) {
  SizeQuestion q = question();
  q.gpus = {8, 25};
  q.global_batch = 100;
  const SizeResult r = size(q);
  EXPECT_FALSE(r.rows[0].fits);
  EXPECT_NE(r.rows[0].note.find("100 is not a multiple of 8 GPUs x micro-batch 4"),
            std::string::npos)
      << r.rows[0].note;
  EXPECT_EQ(r.rows[1].accumulate, 1);
  EXPECT_EQ(r.rows[1].billed_gpus, 32);  // 25 GPUs lie on four nodes of 8.
}

}  // namespace
}  // namespace foreshard
