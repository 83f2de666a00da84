// Facts of known models. Source: the real modules of transformers 5.24 built on the meta device,
// and the published counts.

#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "core/json.h"
#include "models/catalogue.h"
#include "models/describe.h"
#include "models/graph_file.h"
#include "models/load_model.h"

namespace foreshard {
namespace {

struct Count {
  const char* name;
  std::int64_t total, active;
};

TEST(Catalogue, ParameterCountsAreThePublishedOnes) {
  const Count counts[] = {{"llama2-7b", 6738415616, 6738415616},
                          {"llama3-8b", 8030261248, 8030261248},
                          {"llama3.1-70b", 70553706496, 70553706496},
                          {"llama3.1-405b", 405853388800, 405853388800},
                          {"llama3.2-1b", 1235814400, 1235814400},
                          {"mistral-7b", 7241732096, 7241732096},
                          {"mixtral-8x7b", 46702792704, 12879925248},
                          {"qwen2.5-7b", 7615616512, 7615616512},
                          {"qwen2.5-32b", 32763876352, 32763876352},
                          {"qwen3-4b", 4022468096, 4022468096},
                          {"qwen3-32b", 32762123264, 32762123264},
                          {"gemma2-2b", 2614341888, 2614341888},
                          {"gemma2-9b", 9241705984, 9241705984},
                          {"phi-3.5-mini", 3821079552, 3821079552},
                          {"gpt2", 124439808, 124439808},
                          {"gpt2-large", 774030080, 774030080},
                          {"gpt-neox-20b", 20554567680, 20554567680},
                          {"bert-base", 109483778, 109483778},
                          {"vit-b16", 86567656, 86567656},
                          {"phi-1.5", 1418270720, 1418270720},
                          {"phi-2", 2779683840, 2779683840},
                          {"stablelm-3b", 2795443200, 2795443200},
                          {"qwen3-30b-a3b", 30532122624, 3353032704},
                          {"qwen3-235b-a22b", 235093634560, 22190763520},
                          {"mpt-7b", 6658859008, 6658859008},
                          {"mpt-70b", 64862437376, 64862437376}};
  for (const Count& c : counts) {
    const ModelFacts facts = model_facts(load_model(c.name));
    EXPECT_EQ(facts.total.value, c.total) << c.name;
    EXPECT_EQ(facts.active_per_token.value, c.active) << c.name;
  }
}

// A name that is a file's own reads that file alone: it must be the model that the whole catalogue
// knows under it.
TEST(Catalogue, EachNameFindsItsModel) {
  for (const CatalogueModel& m : model_catalogue()) {
    const CatalogueModel* const found = find_catalogue_model(m.name);
    ASSERT_NE(found, nullptr) << m.name;
    EXPECT_EQ(found->name, m.name);
    EXPECT_EQ(found->aliases, m.aliases);
    EXPECT_EQ(found->config, m.config);
    for (const std::string& alias : m.aliases) {
      ASSERT_NE(find_catalogue_model(alias), nullptr) << alias;
      EXPECT_EQ(find_catalogue_model(alias)->name, m.name) << alias;
    }
  }
}

TEST(Catalogue, UnknownNameNamesTheNearest) {
  try {
    load_model("lama3-8b");
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("llama3-8b"), std::string::npos);
  }
}

TEST(Import, TensorsOfMixtralAreThreeDimensional) {
  const ModelFacts facts = model_facts(load_model("mixtral-8x7b"));
  const auto it = std::find_if(facts.tensors.begin(), facts.tensors.end(), [](const TensorFact& t) {
    return t.name == "model.layers.0.mlp.experts.gate_up_proj";
  });
  ASSERT_NE(it, facts.tensors.end());
  EXPECT_EQ(it->shape, (std::vector<std::int64_t>{8, 28672, 4096}));
}

TEST(Import, NullIsNotAbsent) {
  const auto window = [](const char* text) { return model_from_json(parse_json(text, "t"), "t"); };
  EXPECT_THROW(window(R"({"model_type":"mistral","num_key_value_heads":null})"), InputError);
  EXPECT_NO_THROW(window(R"({"model_type":"llama","num_key_value_heads":null})"));
}

TEST(Import, WrongInputIsRefusedByName) {
  for (const char* text :
       {R"({"model_type":"minicpm"})", R"({"hidden_size":64})", R"([1])",
        R"({"model_type":"llama","hidden_size":-1})",
        R"({"model_type":"llama","hidden_size":100,"num_attention_heads":3})",
        R"({"model_type":"llama","vocab_size":9e18})", R"({"model_type":"gpt2","n_embd":"x"})",
        R"({"model_type":"llama","architectures":["LlamaForTokenClassification"]})"}) {
    EXPECT_THROW(model_from_json(parse_json(text, "t"), "t"), InputError) << text;
  }
}

/// A misspelled key and what is taken in its place; the sizes that are missing as well.
TEST(Import, UnknownAndMissingKeysAreWarnedAbout) {
  std::vector<std::string> warnings;
  model_from_json(parse_json(R"({"model_type":"llama","num_hiden_layers":2,"hidden_size":4096,
                                 "num_attention_heads":32,"vocab_size":32000})",
                             "t"),
                  "t", &warnings);
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_EQ(warnings[0], "num_hidden_layers is absent: 32 is taken, the library's default");
  EXPECT_NE(warnings[1].find("did you mean num_hidden_layers?"), std::string::npos);
}

TEST(GraphFile, WrittenAndReadAgain) {
  for (const char* name : {"gpt2", "llama3.2-1b", "mixtral-8x7b"}) {
    const Model model = load_model(name);
    const Json written = write_graph_file(model);
    const Model again = read_graph_file(written, "t");
    EXPECT_EQ(write_graph_file(again), written) << name;
    EXPECT_EQ(again.parameter_count(), model.parameter_count()) << name;
  }
}

TEST(GraphFile, CirclesAreShownWithTheirPath) {
  const char* text =
      R"({"format":"foreshard-model","version":1,"arguments":[{"name":"x","vocabulary":4}],
    "root":{"inputs":"x","outputs":"x","children":{
      "a":{"inputs":"x","outputs":"x","children":{"b":{"alias":"c"}},"forward":[{"call":"b","in":"x","out":"x"}]},
      "c":{"inputs":"x","outputs":"x","children":{"d":{"alias":"a"}},"forward":[{"call":"d","in":"x","out":"x"}]}},
     "forward":[{"call":"a","in":"x","out":"x"}]}})";
  try {
    read_graph_file(parse_json(text, "t"), "t");
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("a -> c -> a"), std::string::npos) << e.what();
  }
}

// A library's module calls its children; frameworks' hooks are of these calls.
TEST(ModelBuilder, RefusesAProgramThatReadsAChildsParameter) {
  ModelBuilder b("Root");
  const ModuleId table = b.embedding(b.root(), "table", 8, 4);
  b.set_signature(b.root(), {"ids"}, {"y"});
  b.add_statement(b.root(), Function::kEmbedding, {"ids"}, {"y"}).parameters = {
      b.model().at(table).parameters[0].id};
  EXPECT_THROW(b.take(), InternalError);
}

}  // namespace
}  // namespace foreshard
