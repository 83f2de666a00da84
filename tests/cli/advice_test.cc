// What tune, suggestions and the memory study print can be added to the command line as it stands,
// and gives there what they say it gives: for every framework, and whatever was on the line before.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/job_options.h"
#include "cli/option_scope.h"
#include "cli/parse.h"
#include "schedules/planner/framework_table.h"
#include "study/evaluate.h"
#include "study/memory_study.h"
#include "study/suggest.h"
#include "study/tune.h"

namespace foreshard::cli {
namespace {

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string w; in >> w;) words.push_back(w);
  return words;
}

/// The job of "foreshard simulate LINE". InputError as the program reports it.
Job job_of(const std::string& line) {
  std::vector<std::string> words = words_of("simulate " + line);
  const CommandSpec& command = find_command(words);
  Arguments arguments = parse_arguments(command, words);
  Job job = read_job(arguments);
  arguments.check();
  return job;
}

Evaluation simulate(const std::string& line) {
  SimulationOptions options;
  options.detail = Detail::kTimesOnly;
  return evaluate(job_of(line), options);
}

/// Options that a line of this framework may have had already: advice must not contradict them.
std::string line_of(const FrameworkRow& framework, bool with_options) {
  const int gpus = framework.ranks == RankLayout::kOneDevice ? 1 : 16;
  std::string line = fmt::format(
      "gpt2 --seq 256 --micro-batch 4 --gpus {} --on dgx-h100 --optimizer adamw-foreach "
      "--framework {}",
      gpus, framework.name);
  if (!with_options) return line;
  line += " --accumulate 2";
  if (!framework.whole_copies()) line += " --shard 16";
  if (framework.ranks == RankLayout::kMesh) line += " --replicate 1";
  if (framework.sync_choice) line += " --sync-each-micro-batch no";
  if (framework.reshard == ReshardChoice::kReshard) line += " --reshard false --wrap every:3";
  if (framework.reshard == ReshardChoice::kStrategy) line += " --fsdp1-strategy shard_grad_op";
  return line;
}

class Advice : public testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  const FrameworkRow& framework() const { return *find_framework(std::get<0>(GetParam())); }
  std::string line() const { return line_of(framework(), std::get<1>(GetParam())); }
};

TEST_P(Advice, MemoryStudySaysWhatTheLineGives) {
  const Job job = job_of(line());
  const MemoryStudy study = study_memory(job, evaluate(job));
  EXPECT_GT(study.changes.size(), 3u);
  for (const MemoryChange& c : study.changes) {
    SCOPED_TRACE(c.change);
    Evaluation e;
    ASSERT_NO_THROW(e = simulate(line() + " " + c.change));
    EXPECT_EQ(e.result.memory.device_peak, c.device);
    EXPECT_EQ(e.result.step_time, c.step);
  }
}

TEST_P(Advice, SuggestionsSayWhatTheLineGives) {
  const Job job = job_of(line());
  const std::vector<Suggestion> suggestions = suggest(job, evaluate(job), 100);
  ASSERT_FALSE(suggestions.empty());
  for (const Suggestion& s : suggestions) {
    SCOPED_TRACE(s.change);
    Evaluation e;
    ASSERT_NO_THROW(e = simulate(line() + " " + s.change));
    EXPECT_EQ(e.result.step_time, s.step);
  }
}

/// A job that fits nowhere near: several options at once, host memory, 16-bit states, more GPUs.
TEST_P(Advice, RescuesSayWhatTheLineGives) {
  const std::string large =
      fmt::format("gpt2-xl --seq 512 --micro-batch 8 --gpus {} --on 8x-rtx4090 --framework {}{}",
                  framework().ranks == RankLayout::kOneDevice ? 1 : 2, framework().name,
                  framework().whole_copies() || !std::get<1>(GetParam()) ? "" : " --shard 2");
  const Job job = job_of(large);
  const std::vector<Suggestion> suggestions = suggest(job, evaluate(job), 100);
  ASSERT_FALSE(suggestions.empty());
  for (const Suggestion& s : suggestions) {
    SCOPED_TRACE(s.change);
    Evaluation e;
    ASSERT_NO_THROW(e = simulate(large + " " + s.change));
    EXPECT_EQ(e.result.step_time, s.step);
    EXPECT_EQ(e.result.memory.fits, s.fits);
  }
}

TEST_P(Advice, TuneChoosesOptionsOfTheFrameworkOrSaysThatThereAreNone) {
  const Job job = job_of(line());
  if (!framework().forms_units()) {
    try {
      tune(job);
      FAIL() << "there is nothing to choose";
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find(framework().name), std::string::npos);
    }
    return;
  }
  const TuneResult r = tune(job);
  for (const WrapChoice& c : r.choices) {
    if (!c.pareto && !c.chosen) continue;
    SCOPED_TRACE(c.options);
    Evaluation e;
    ASSERT_NO_THROW(e = simulate(line() + " " + c.options));
    EXPECT_EQ(e.result.step_time, c.step);
    EXPECT_EQ(e.result.memory.device_peak, c.memory);
  }
}

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const FrameworkRow& row : frameworks()) out.emplace_back(row.name);
  return out;
}

std::string test_name(const testing::TestParamInfo<std::tuple<std::string, bool>>& info) {
  std::string name = std::get<0>(info.param) + (std::get<1>(info.param) ? "_with_options" : "");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Frameworks, Advice,
                         testing::Combine(testing::ValuesIn(names()), testing::Bool()), test_name);

// ------------------------------------------------------------------------------------------------
// the table of frameworks behind the command line

TEST(Frameworks, AreFoundByName) {
  std::set<std::string_view> seen;
  for (const FrameworkRow& row : frameworks()) {
    EXPECT_TRUE(seen.insert(row.name).second) << row.name;
    EXPECT_EQ(job_of(fmt::format("gpt2 --gpus 1 --on dgx-h100 --framework {}", row.name))
                  .config.framework,
              row.kind);
  }
  EXPECT_EQ(find_framework("fsdp3"), nullptr);
}

/// --offload is refused by scope where the framework keeps nothing in host memory, by the planner
/// where it keeps something else, and taken otherwise: as the table says.
TEST(Frameworks, OffloadWhatTheirRowSays) {
  for (const FrameworkRow& row : frameworks()) {
    for (const auto& [kind, text] :
         {std::pair(OffloadKind::kParameters, "params"),
          std::pair(OffloadKind::kOptimizer, "optimizer"), std::pair(OffloadKind::kBoth, "both")}) {
      const std::string line = fmt::format(
          "gpt2 --seq 64 --gpus 1 --on dgx-h100 --framework {} --offload {}", row.name, text);
      if (row.can_offload(kind))
        EXPECT_NO_THROW(simulate(line)) << line;
      else
        EXPECT_THROW(simulate(line), InputError) << line;
    }
  }
}

TEST(Frameworks, EveryScopedOptionExistsAndHasAnOwner) {
  std::set<std::string> known;
  for (const OptionGroup& group : job_options())
    for (const OptionSpec& o : group.options) known.insert(o.name);
  for (const OptionScope& scope : option_scopes()) {
    EXPECT_EQ(known.count(scope.option), 1u) << scope.option;
    EXPECT_FALSE(scope.frameworks.empty()) << scope.option;
  }
}

}  // namespace
}  // namespace foreshard::cli
