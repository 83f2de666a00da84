#include "study/tune.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

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
  // Resharding and root split of each; the whole model as one unit is never freed after forward.
  EXPECT_EQ(r.choices.size(), 6u * 4 + 1);
  ASSERT_LT(r.chosen, r.choices.size());
  for (const WrapChoice& c : r.choices) {
    EXPECT_FALSE(c.verdict.empty());
    if (c.fits) {
      EXPECT_LE(r.choices[0].step, c.step);
    }
  }
}

// The rule by exhaustive search: of what leaves 5 % of the device free, the least memory within 1 %
// of the fastest.
TEST(Tune, ChoiceIsTheLeastMemoryNextToTheFastestThatLeavesHeadroom) {
  for (const double gib : {79.6, 2.1, 1.9}) {
    SCOPED_TRACE(gib);
    Job job = gpt2_job();
    if (gib < 79) job.hardware.gpu.usable_memory.value = gib * (1 << 30);
    const TuneResult r = tune(job);
    std::vector<const WrapChoice*> roomy;
    for (const WrapChoice& c : r.choices)
      if (c.fits_well() &&
          static_cast<double>(c.memory.value) <= 0.95 * static_cast<double>(r.capacity.value))
        roomy.push_back(&c);
    if (roomy.empty()) continue;
    const WrapChoice* best = roomy[0];
    for (const WrapChoice* c : roomy)
      if (c->step < best->step) best = c;
    const Time fastest = best->step;
    for (const WrapChoice* c : roomy)
      if (c->step / fastest <= 1.01 && c->memory < best->memory) best = c;
    ASSERT_LT(r.chosen, r.choices.size());
    EXPECT_EQ(r.choices[r.chosen].memory, best->memory);
    EXPECT_LE(r.choices[r.chosen].step / fastest, 1.01);
    EXPECT_NE(r.reason.find("5 % of the device free"), std::string::npos) << r.reason;
  }
}

// What simulate suggests for the job that tune chose must not undo the choice.
TEST(Tune, SuggestionsDoNotContradictTheChoice) {
  for (const bool keep : {false, true}) {
    Job job = catalogue_job("llama3.2-1b", "dgx-a100-80", 16);
    if (keep) job.config.reshard = Reshard::no();
    const TuneResult r = tune(job);
    ASSERT_LT(r.chosen, r.choices.size());
    const Job chosen = with_choice(job, r.choices[r.chosen]);
    const std::vector<Suggestion> suggestions = suggest(chosen, evaluate(chosen), 100);
    ASSERT_FALSE(suggestions.empty());
    for (const Suggestion& s : suggestions) {
      const bool wrapping = s.change.find("--wrap") == 0 || s.change.find("--reshard") == 0 ||
                            s.change.find("--root-split") == 0;
      EXPECT_FALSE(wrapping && s.fits) << s.change << " against " << r.choices[r.chosen].options;
    }
  }
}

TEST(Suggest, EverySuggestionIsWhatItsOptionGives) {
  const Job job = gpt2_job();
  const Evaluation base = evaluate(job);
  const std::vector<Suggestion> suggestions = suggest(job, base);
  const auto larger = std::find_if(suggestions.begin(), suggestions.end(), [](const Suggestion& s) {
    return s.change.rfind("--micro-batch ", 0) == 0;
  });
  ASSERT_NE(larger, suggestions.end());
  Job changed = job;
  changed.config.micro_batch = std::stoll(larger->change.substr(14));
  EXPECT_EQ(larger->change, "--micro-batch " + std::to_string(changed.config.micro_batch));
  EXPECT_EQ(evaluate(changed).result.step_time, larger->step);
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
