// Frozen modules, counted by hand. GPT-2: 124,439,808 parameters; the embedding, tied to the head,
// has 50,257 x 768 = 38,597,376; a block 12 x 768^2 + 13 x 768 = 7,087,872.

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "models/load_model.h"

namespace foreshard {
namespace {

std::int64_t trained(const std::string& model) { return load_model(model).trainable_count().value; }

TEST(Freeze, TakesModulesByPathOrItsEnd) {
  EXPECT_EQ(trained("gpt2"), 124439808);
  EXPECT_EQ(trained("gpt2?freeze=wte"), 124439808 - 38597376);
  EXPECT_EQ(trained("gpt2?freeze=transformer.wte"), 124439808 - 38597376);
  EXPECT_EQ(trained("gpt2?freeze=h.0,h.11"), 124439808 - 2 * 7087872);
  EXPECT_EQ(trained("gpt2?freeze=h.1"), 124439808 - 7087872) << "not h.10 and h.11";
  EXPECT_EQ(load_model("gpt2?freeze=h.0").parameter_count().value, 124439808);
}

TEST(Freeze, RefusesWhatIsNotThereAndAll) {
  for (const auto& [model, said] :
       {std::pair<std::string, std::string>{"gpt2?freeze=wtee", "wte"},
        {"gpt2?freeze=wte,", "\"\""},
        {"gpt2?freeze=transformer", "nothing to train"}}) {
    try {
      load_model(model);
      ADD_FAILURE() << model;
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find(said), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace foreshard
