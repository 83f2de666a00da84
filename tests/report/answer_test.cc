#include "report/answer.h"

#include <gtest/gtest.h>

#include <sstream>

#include "core/json.h"
#include "report/html.h"

namespace foreshard {
namespace {

StepAnswer answer() {
  StepAnswer a;
  a.model = "toy </script> model";
  a.model_size = "1 B";
  a.step_time = milliseconds(10);
  a.compute = milliseconds(7);
  a.exposed_communication = milliseconds(2);
  a.optimizer = milliseconds(1);
  a.communication.push_back({"all-gather", "shard", 8, 4, Bytes(1000), milliseconds(5),
                             milliseconds(2), Time(0), "NVLink"});
  a.memory.device_peak = Bytes(std::int64_t{60} << 30);
  a.memory.capacity = Bytes(std::int64_t{80} << 30);
  a.suggestions.push_back(
      {"--micro-batch 2", milliseconds(15), Bytes(std::int64_t{1} << 30), 100, 50, 1.33, true});
  return a;
}

TEST(AnswerText, VerdictFirstAndNoColoursUnlessAsked) {
  const std::string text = text_of(answer(), TextStyle{});
  EXPECT_NE(text.find("Fits: 60.0 of 80.0 GiB"), std::string::npos) << text;
  EXPECT_NE(text.find("exposed all-gather 2.00 ms"), std::string::npos) << text;
  EXPECT_NE(text.find("33 % faster"), std::string::npos) << text;
  EXPECT_EQ(text.find('\033'), std::string::npos);
  EXPECT_LT(text.find("Fits"), text.find("compute"));
  TextStyle colours;
  colours.colour = colours.bars = true;
  EXPECT_NE(text_of(answer(), colours).find('\033'), std::string::npos);
  EXPECT_NE(text_of(answer(), colours).find("█"), std::string::npos);
}

bool says(const StepAnswer& a, const char* words) {
  return text_of(a, TextStyle{}).find(words) != std::string::npos;
}

TEST(AnswerText, SaysWhatDoesNotFitAndWhatWouldBeEnough) {
  StepAnswer a = answer();
  a.memory.fits = a.memory.fits_device = false;
  // The peak of 60 GiB is that without a limit: it is not what the job needs, so it is not said.
  EXPECT_TRUE(says(a, "Does not fit: has 80.0 GiB"));
  EXPECT_FALSE(says(a, "runs with"));
  a.memory.runs_with = Bytes((std::int64_t{90} << 30) + 1);
  EXPECT_TRUE(says(a, "Does not fit: has 80.0 GiB, runs with 90.1 GiB"));  // Rounded up.
}

TEST(AnswerText, RetriesAreBorderline) {
  StepAnswer a = answer();
  a.memory.retries_total = 2;
  EXPECT_TRUE(
      says(a, "Fits, borderline: 60.0 of 80.0 GiB, 2 allocator retries in earlier steps"));
  a.memory.retries = 1;
  EXPECT_TRUE(says(a, "1 allocator retry a step"));
  EXPECT_TRUE(to_json(a)["memory"]["borderline"].get<bool>());
  a.memory.retries = a.memory.retries_total = 0;
  EXPECT_FALSE(says(a, "borderline"));
}

TEST(AnswerText, SamplesWhereThereAreNoTokens) {
  StepAnswer a = answer();
  a.samples_per_s_per_gpu = 312.5;
  EXPECT_TRUE(says(a, "312.5 samples/s/GPU"));
  a.tokens_per_s_per_gpu = 7000;
  EXPECT_TRUE(says(a, "7000 tok/s/GPU"));
  EXPECT_FALSE(says(a, "312.5"));
}

// 584 = 557 + 5.4 + 16.0 + 5.6: two kinds of 2.8 ms are each below half a percent of the step.
TEST(AnswerText, PartsOfTheTimeAddUp) {
  StepAnswer a = answer();
  a.step_time = milliseconds(584);
  a.compute = milliseconds(557);
  a.optimizer = milliseconds(16);
  a.exposed_communication = milliseconds(11);
  a.communication.clear();
  const auto add = [&](const char* kind, std::int64_t us) {
    a.communication.push_back(
        {kind, "shard", 8, 1, Bytes(1), microseconds(us), microseconds(us), Time(0), "NVLink"});
  };
  add("reduce-scatter", 5400);
  add("all-gather", 2800);
  add("all-reduce", 2800);
  EXPECT_TRUE(says(a,
                   "compute 557 ms · exposed reduce-scatter 5.40 ms · optimizer 16.0 ms · other "
                   "5.60 ms"))
      << text_of(a, TextStyle{});
}

TEST(AnswerText, NamesTheJobThePeakAndTheRange) {
  StepAnswer a = answer();
  a.batch = "seq 4096 · micro-batch 1 · global batch 8 sequences (32,768 tokens)";
  a.mfu = 0.4;
  a.peak = "bf16";
  a.step_range = {milliseconds(9), milliseconds(11)};
  EXPECT_TRUE(says(a, "seq 4096 · micro-batch 1 · global batch 8"));
  EXPECT_TRUE(says(a, "MFU 40.0 % of the bf16 peak"));
  EXPECT_TRUE(says(a, "(9.00 ms to 11.0 ms, 80 % range)")) << text_of(a, TextStyle{});
}

// On a slow network kernels take half of the step and are next to nothing of its critical path.
TEST(AnswerText, HiddenComputeIsSaid) {
  StepAnswer a = answer();
  a.critical_path = {{"all-gather (PCIe)", milliseconds(9), false},
                     {"matmul", milliseconds(1), true}};
  // 7 ms compute + 1 ms optimizer, of which 1 ms is on the path.
  EXPECT_TRUE(says(a, "7.00 ms of the kernels run beside it")) << text_of(a, TextStyle{});
  a.critical_path = {{"matmul", milliseconds(8), true}};
  EXPECT_FALSE(says(a, "run beside it"));
}

TEST(AnswerText, NothingGainedHasNoSign) {
  StepAnswer a = answer();
  a.suggestions[0].memory_change = Bytes(-(1 << 20));
  EXPECT_FALSE(says(a, "-0.0"));
  EXPECT_FALSE(says(a, "+0.0"));
}

TEST(AnswerText, ExplainedLinesFitTheScreen) {
  StepAnswer a = answer();
  std::string source;
  while (source.size() < 400) source += "a long story ";
  a.provenance.push_back({"gpu.efficiency.matmul_training", "0.7", source, "calibrated"});
  a.uncertainty.push_back({"gpu.efficiency.matmul_training", 0.05, 0.03, source});
  std::istringstream text(text_of(a, TextStyle{}, true));
  for (std::string line; std::getline(text, line);) EXPECT_LE(line.size(), 110u) << line;
}

TEST(AnswerJson, KeysOfTheContract) {
  const Json j = to_json(answer());
  for (const char* key : {"step_time_s", "tokens_per_s_per_gpu", "mfu", "hfu", "breakdown",
                          "communication", "memory", "critical_path", "not_modelled", "provenance"})
    EXPECT_TRUE(j.contains(key)) << key;
  EXPECT_DOUBLE_EQ(j["breakdown"]["compute_s"].get<double>(), 0.007);
  EXPECT_EQ(j["communication"][0]["group_size"], 8);
}

TEST(AnswerJson, ConfigurationHasNumbersAsNumbers) {
  StepAnswer a = answer();
  a.configuration = {{"model", "llama3-8b"}, {"seq", "4096"}, {"wrap", "every:2"}};
  EXPECT_EQ(to_json(a)["configuration"].dump(),
            R"({"model":"llama3-8b","seq":4096,"wrap":"every:2"})");
}

TEST(Html, DataCannotEndTheScript) {
  HtmlReport r;
  r.answer = answer();
  const std::string page = html_of(r);
  const auto data = page.find("const DATA");
  ASSERT_NE(data, std::string::npos);
  EXPECT_EQ(page.find("toy </script>"), std::string::npos);
  EXPECT_EQ(page.find("src="), std::string::npos);
}

// 10,000 samples of 1 GiB and one of 9 GiB, in no round place: thinning to the picture's columns
// may drop any sample but that one.
TEST(Html, ThinningKeepsTheSpike) {
  constexpr std::size_t kSpike = 7919;
  HtmlReport r;
  r.answer = answer();
  r.memory.categories = {"activations"};
  for (std::size_t i = 0; i < 10'000; ++i) {
    const Bytes held{(i == kSpike ? std::int64_t{9} : std::int64_t{1}) << 30};
    r.memory.points.push_back({Time{static_cast<std::int64_t>(i)}, held, held, {held.value}});
  }
  r.memory.peak = kSpike;
  const std::string page = html_of(r);
  const std::size_t begin = page.find("const DATA = ") + 13;
  const Json data = Json::parse(page.substr(begin, page.find(";\n", begin) - begin));
  const Json& points = data["memory"]["points"];
  EXPECT_LT(points.size(), 5'000u);
  EXPECT_EQ(points[data["memory"]["peak"].get<std::size_t>()][1], std::int64_t{9} << 30);
}

}  // namespace
}  // namespace foreshard
