// Models with images: the catalogue's, and requests for other numbers and sizes of images.

#include <gtest/gtest.h>

#include "core/error.h"
#include "models/load_model.h"

namespace foreshard {
namespace {

std::string refusal_of(const std::string& request) {
  try {
    load_model(request);
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

// Parameters as transformers counts them (PreTrainedModel.num_parameters of the published
// configurations; the hub's own counts for llava-1.5-13b, gemma3-12b, gemma3-27b, qwen2.5-vl-7b).
TEST(Images, CatalogueModelsHaveTheirParameters) {
  const std::pair<const char*, std::int64_t> known[] = {
      {"llava-1.5-7b", 7'063'427'072},       {"llava-1.5-13b", 13'351'494'656},
      {"gemma3-4b", 4'300'079'472},          {"gemma3-12b", 12'187'325'040},
      {"gemma3-27b", 27'432'406'640},        {"qwen2.5-vl-3b", 3'754'622'976},
      {"qwen2.5-vl-7b", 8'292'166'656},      {"llama3.2-11b-vision", 10'670'220'835},
      {"deepseek-v3", 671'026'404'352},      {"dbrx-132b", 131'596'523'520},
      {"qwen1.5-moe-a2.7b", 14'315'784'192}, {"qwen3-next-80b-a3b", 79'674'391'296}};
  for (const auto& [name, parameters] : known) {
    std::vector<std::string> warnings;
    EXPECT_EQ(load_model(name, &warnings).parameter_count().value, parameters) << name;
    EXPECT_TRUE(warnings.empty()) << name << ": " << warnings.front();
  }
}

// (336 / 14)^2 = 576 patches of an image stand among the tokens; Qwen merges 2 x 2 of (896 / 14)^2.
TEST(Images, AreAsManyAndAsLargeAsAsked) {
  const Model one = load_model("llava-1.5-7b"), three = load_model("llava-1.5-7b?images=3");
  EXPECT_EQ(one.arguments[1].shape, (std::vector<std::int64_t>{-1, 3, 336, 336}));
  EXPECT_EQ(three.arguments[1].shape, (std::vector<std::int64_t>{-3, 3, 336, 336}));
  EXPECT_EQ(one.shortest_sequence, 576);
  EXPECT_EQ(three.shortest_sequence, 3 * 576);
  EXPECT_EQ(three.sample, "3 images of 336 x 336 (1728 of the tokens)");
  EXPECT_EQ(load_model("gemma3-4b?images=4").shortest_sequence, 4 * 256);
  const Model large = load_model("qwen2.5-vl-7b?images=2&image_size=896");
  EXPECT_EQ(large.arguments[1].shape[0], -2 * 64 * 64);
  EXPECT_EQ(large.shortest_sequence, 2 * 64 * 64 / 4);
}

TEST(Images, ImpossibleOnesAreRefused) {
  EXPECT_NE(refusal_of("qwen2.5-vl-7b?image_size=900").find("a multiple of 28"), std::string::npos);
  EXPECT_NE(refusal_of("qwen2.5-vl-7b?image_size=0").find("image_size"), std::string::npos);
  EXPECT_NE(refusal_of("llava-1.5-7b?images=0").find("images"), std::string::npos);
  EXPECT_NE(refusal_of("llava-1.5-7b?images=many").find("images"), std::string::npos);
}

}  // namespace
}  // namespace foreshard
