#include "study/tune.h"

#include <gtest/gtest.h>

#include <set>

#include "models/load_model.h"
#include "study/evaluate.h"
#include "study/size.h"
#include "study/suggest.h"
#include "tests/catalogue_job.h"

namespace foreshard {
namespace {

Job gpt2_job() {
  Job job = catalogue_job("gpt2", "dgx-a100-80", 8);
  job.config.sequence = 256;
  return job;
}

TEST(Tune, TriesEveryNumberOfUnits) {
  const TuneResult r = tune(gpt2_job());
  // 12 blocks: ceil(12 / K) is 12, 6, 4, 3, 2, 1 for K = 1, 2, 3, 4, 6, 12, and the whole model.
  std::set<std::int64_t> tried;
  for (const WrapChoice& c : r.choices) tried.insert(c.blocks_per_unit);
  EXPECT_EQ(tried, (std::set<std::int64_t>{0, 1, 2, 3, 4, 6, 12}));
  EXPECT_EQ(r.choices.size(), 6u * 4 + 2);
  ASSERT_LT(r.chosen, r.choices.size());
  for (const WrapChoice& c : r.choices) {
    EXPECT_FALSE(c.verdict.empty());
    if (c.fits) {
      EXPECT_LE(r.choices[0].step, c.step);
    }
  }
}

TEST(Tune, ChoiceIsCloseToTheFastest) {
  const TuneResult r = tune(gpt2_job());
  const WrapChoice& chosen = r.choices[r.chosen];
  for (const WrapChoice& c : r.choices)
    if (c.fits && c.step / r.choices[0].step <= 1.03) {
      EXPECT_LE(chosen.memory, c.memory);
    }
  EXPECT_LE(chosen.step / r.choices[0].step, 1.03);
}

TEST(Suggest, EverySuggestionIsWhatItsOptionGives) {
  const Job job = gpt2_job();
  const Evaluation base = evaluate(job);
  for (const Suggestion& s : suggest(job, base)) {
    if (s.change != "--micro-batch 2") continue;
    Job changed = job;
    changed.config.micro_batch = 2;
    EXPECT_EQ(evaluate(changed).result.step_time, s.step);
  }
}

// 1.6 billion parameters with Adam in fp32 are 25.9 GB of states: more than one 24 GB card holds,
// whatever the activations.
TEST(Suggest, WhereNoSingleOptionFitsSeveralOrMoreGpusDo) {
  Job job = gpt2_job();
  job.model = std::make_shared<const Model>(load_model("gpt2-xl"));
  job.hardware = load_hardware("8x-rtx4090");
  job.gpus = job.config.shard = 1;
  job.config.micro_batch = 32;
  const Evaluation base = evaluate(job);
  ASSERT_FALSE(base.result.memory.fits);
  const std::vector<Suggestion> found = suggest(job, base);
  ASSERT_FALSE(found.empty());
  for (const Suggestion& s : found) {
    EXPECT_TRUE(s.fits) << s.change;
    EXPECT_NE(s.change.find("--micro-batch 1"), std::string::npos) << s.change;
  }
}

TEST(Size, DaysFollowFromTokens) {
  SizeQuestion q;
  q.job = gpt2_job();
  q.hardware = {q.job.hardware};
  q.gpus = {8};
  q.micro_batches = {1, 2};
  q.tokens = 1e9;
  q.prices = {{"a100", 2.0}};
  const SizeResult r = size(q);
  ASSERT_EQ(r.rows.size(), 1u);
  const SizeRow& row = r.rows[0];
  EXPECT_TRUE(row.fits);
  EXPECT_NEAR(row.days * 86400 * row.tokens_per_s_per_gpu * 8, 1e9, 1);
  ASSERT_TRUE(row.price.has_value());
  EXPECT_NEAR(*row.price, 2.0 * row.gpu_hours, 1e-6);
}

}  // namespace
}  // namespace foreshard
