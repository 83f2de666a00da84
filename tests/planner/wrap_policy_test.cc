#include "schedules/planner/wrap_policy.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "models/catalogue.h"
#include "models/load_model.h"
#include "schedules/planner/framework_table.h"
#include "schedules/planner/planner.h"
#include "schedules/planner/unit_facts.h"

namespace foreshard {
namespace {

WrapPolicy parsed(const std::string& text) {
  WrapPolicy policy;
  parse_wrap(text, policy);
  return policy;
}

TEST(WrapText, IsReadAsItIsWritten) {
  for (const char* text : {"blocks", "blocks+adapters", "root", "every:2", "size:100000000",
                           "modules:a", "modules:model.embed_tokens,LlamaDecoderLayer"}) {
    EXPECT_EQ(wrap_text(parsed(text)), text);
  }
  for (const std::int64_t k : {0, 1, 5})
    EXPECT_EQ(wrap_text(parsed(wrap_text(blocks_together(k)))), wrap_text(blocks_together(k)));
}

TEST(WrapText, FormsAreNamedWithoutOne) {
  EXPECT_EQ(wrap_forms_without("every:K"),
            "blocks | blocks+adapters | root | size:N | modules:a,b,c");
  EXPECT_EQ(wrap_forms_without("size:N"),
            "blocks | blocks+adapters | every:K | root | modules:a,b,c");
  EXPECT_EQ(wrap_forms_without("calls"), kWrapForms);
}

TEST(WrapText, WhatIsNoFormIsRefusedWithTheForms) {
  for (const char* text : {"", "block", "every", "every:", "every:0", "every:-1", "every:2x",
                           "every:99999999999999999999", "size:", "size:1.5", "modules:", "calls",
                           "root:1", "blocks "}) {
    EXPECT_THROW(parsed(text), InputError) << text;
  }
  try {
    parsed("every:none");
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("every:2"), std::string::npos) << e.what();
  }
}

// A T5 of 5 encoder and 4 decoder blocks, in two lists of modules: a person who wraps three at a
// time walks through each list, ceil(5 / 3) + ceil(4 / 3) = 2 + 2.
TEST(WrappedGroups, AreMadeWithinOneList) {
  const Model model = model_from_json(
      parse_json(R"({"model_type": "t5", "num_layers": 5, "num_decoder_layers": 4})", "t5"), "t5");
  ASSERT_EQ(model.roles.blocks.size(), 9u);
  const auto groups = wrapped_groups(model, parsed("every:3"));
  EXPECT_EQ(groups.size(), 4u);
  for (const auto& group : groups) {
    EXPECT_LE(group.size(), 3u);
    const std::string list = model.at(group[0]).name.substr(0, model.at(group[0]).name.rfind('.'));
    for (const ModuleId m : group) EXPECT_TRUE(model.at(m).name.starts_with(list + "."));
  }
}

TEST(WrappedGroups, NamedModulesInnerOnesFirst) {
  const Model model = load_model("llama3.2-1b");
  const auto groups =
      wrapped_groups(model, parsed("modules:LlamaDecoderLayer,LlamaMLP,model.norm"));
  ASSERT_EQ(groups.size(), 16u + 16 + 1);
  EXPECT_EQ(model.at(groups.front()[0]).class_name, "LlamaMLP");
  EXPECT_EQ(model.at(groups.back()[0]).name, "model.norm");
  EXPECT_THROW(wrapped_groups(model, parsed("modules:LlamaDecoderLayers")), InputError);
}

// Sizes by hand from Llama 3 8B's shapes: a block 2 * 4096^2 + 2 * 1024 * 4096 + 3 * 14336 * 4096 +
// 2 * 4096, embedding and head 128256 * 4096 each, norm 4096.
TEST(UnitFacts, OfLlama3) {
  const Model model = load_model("llama3-8b");
  ParallelConfig c;
  c.wrap.root_split = false;
  const auto whole_root = unit_facts(model, c);
  ASSERT_EQ(whole_root.size(), 33u);
  EXPECT_EQ(whole_root[0].name, "root");
  EXPECT_EQ(whole_root[0].numel.value, 2 * 128256LL * 4096 + 4096);
  EXPECT_EQ(whole_root[1].numel.value, 218112000);
  c.wrap.root_split = true;
  const auto split = unit_facts(model, c);
  ASSERT_EQ(split.size(), 35u);
  EXPECT_EQ(split[0].numel.value, 0);
  EXPECT_EQ(split[1].name, "model.embed_tokens");
  EXPECT_EQ(split.back().name, "model.norm + lm_head");
  EXPECT_EQ(split.back().numel.value, 128256LL * 4096 + 4096);
}

/// Every catalogue model under every wrap text that its framework takes: the units are those of a
/// plan, and hold each parameter once.
class CatalogueUnits : public testing::TestWithParam<std::string> {};

TEST_P(CatalogueUnits, AreThoseOfAPlan) {
  const Model model = load_model(GetParam());
  const std::string block = model.at(model.roles.blocks[0]).class_name;
  for (const FrameworkRow& framework : frameworks()) {
    if (!framework.forms_units()) continue;
    for (const std::string& text :
         {std::string("blocks"), std::string("blocks+adapters"), std::string("every:2"),
          std::string("every:3"), std::string("root"), std::string("size:20000000"),
          "modules:" + block}) {
      for (const bool split : {true, false}) {
        SCOPED_TRACE(fmt::format("{} {} {}", framework.name, text, split));
        ParallelConfig c;
        c.framework = framework.kind;
        parse_wrap(text, c.wrap);
        c.wrap.root_split = split;
        std::vector<UnitFact> facts;
        try {
          facts = unit_facts(model, c);
        } catch (const InputError&) {
          EXPECT_NE(framework.units == UnitForm::kModule, text.starts_with("size")) << "refused";
          continue;
        }
        PlanOptions options;
        options.executable = false;
        options.steps = 0;
        c.sequence =
            model.longest_sequence > 0 ? std::min<std::int64_t>(model.longest_sequence, 64) : 64;
        c.sequence = std::max(c.sequence, model.shortest_sequence);
        std::vector<std::int64_t> planned, found;
        for (const Schedule s = plan(model, c, options); const ShardUnit& u : s.programs[0].units)
          planned.push_back(u.numel.value);
        std::int64_t sum = 0;
        for (const UnitFact& f : facts) {
          sum += f.numel.value;
          if (f.numel.value > 0) found.push_back(f.numel.value);
        }
        std::sort(planned.begin(), planned.end());
        std::sort(found.begin(), found.end());
        EXPECT_EQ(found, planned);
        // FSDP1 stores a tensor that is tied across units in each of them (F1-G-6).
        if (framework.units == UnitForm::kModuleGroup)
          EXPECT_EQ(sum, model.parameter_count().value);
        else
          EXPECT_GE(sum, model.parameter_count().value);
      }
    }
  }
}

std::vector<std::string> catalogue_names() {
  std::vector<std::string> names;
  for (const CatalogueModel& m : model_catalogue()) names.push_back(m.name);
  return names;
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, CatalogueUnits, testing::ValuesIn(catalogue_names()), test_name);

}  // namespace
}  // namespace foreshard
