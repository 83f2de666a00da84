#include "report/answer.h"

#include <gtest/gtest.h>

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
      {"--micro-batch 2", milliseconds(15), Bytes(std::int64_t{1} << 30), 100, 1.33, true});
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

TEST(AnswerText, SaysWhatDoesNotFit) {
  StepAnswer a = answer();
  a.memory.fits = false;
  EXPECT_NE(text_of(a, TextStyle{}).find("Does not fit: needs 60.0, has 80.0 GiB"),
            std::string::npos);
}

TEST(AnswerJson, KeysOfTheContract) {
  const Json j = to_json(answer());
  for (const char* key : {"step_time_s", "tokens_per_s_per_gpu", "mfu", "hfu", "breakdown",
                          "communication", "memory", "critical_path", "not_modelled", "provenance"})
    EXPECT_TRUE(j.contains(key)) << key;
  EXPECT_DOUBLE_EQ(j["breakdown"]["compute_s"].get<double>(), 0.007);
  EXPECT_EQ(j["communication"][0]["group_size"], 8);
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
