// Graph files whose tensors have more dimensions than schedules hold, or whose functions ask for
// dimensions that a tensor does not have: refused by name, never read from where nothing is.

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "core/json.h"
#include "models/load_model.h"

namespace foreshard {
namespace {

std::string issues_of(const std::string& argument, const std::string& parameter,
                      const std::string& buffer, const std::string& statement) {
  const std::string text =
      R"({"format":"foreshard-model","version":1,"name":"shapes","arguments":[{"name":"x",
"kind":"float","shape":)" +
      argument + R"(}],"root":{"class":"N","inputs":["x"],"outputs":["y"],
"parameters":{"w":)" +
      parameter + R"(},"buffers":{"b":{"shape":)" + buffer + R"(}},"forward":[)" + statement +
      R"(,{"do":"add_param","in":"h","out":"y","parameters":["w"]}]}})";
  try {
    model_from_json(parse_json(text, "shapes.json"), "shapes.json");
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

constexpr const char* kFive = R"({"do":"reshape","in":"x","out":"h","ints":[0,4,4,1,1]})";

TEST(Dimensions, FiveAreTakenAndSixRefusedByName) {
  EXPECT_EQ(issues_of("[-1,1,1,1,16]", "[2,2,2,2,1]", "[1,1,1,1,2]", kFive), "");
  EXPECT_NE(issues_of("[-1,1,1,1,1,16]", "[2]", "[2]", kFive).find("arguments.x"),
            std::string::npos);
  EXPECT_NE(issues_of("[-1,16]", "[2,2,2,2,1,1]", "[2]", kFive).find("w: has 6 dimensions"),
            std::string::npos);
  EXPECT_NE(issues_of("[-1,16]", "[2]", "[2,1,1,1,1,1]", kFive).find("buffers.b"),
            std::string::npos);
  for (const char* function : {"reshape", "view", "expand"}) {
    const std::string said = issues_of(
        "[-1,16]", "[2]", "[2]",
        std::string(R"({"do":")") + function + R"(","in":"x","out":"h","ints":[0,4,4,1,1,1]})");
    EXPECT_NE(said.find("root.forward[0] (" + std::string(function) + ")"), std::string::npos)
        << said;
    EXPECT_NE(said.find("at most 5 dimensions"), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace foreshard
