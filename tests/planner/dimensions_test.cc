// Functions of a graph file that make a sixth dimension or ask for one that their input does not
// have: the plan ends with the module and the function.

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "core/json.h"
#include "models/load_model.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

/// Of a model that reshapes [micro-batch, 16] to `shape`, runs `statement` on h and takes the
/// outputs' sum.
std::string refusal(const std::string& shape, const std::string& statement) {
  const std::string text =
      R"({"format":"foreshard-model","version":1,"name":"shapes","arguments":[{"name":"x",
"kind":"float","shape":[-1,16]}],"root":{"class":"N","inputs":["x"],"outputs":["y"],
"children":{"l":{"leaf":"linear","in":16,"out":16}},"forward":[{"call":"l","in":"x","out":"h"},
{"do":"reshape","in":"h","out":"h","ints":)" +
      shape + "}," + statement + "]}}";
  ParallelConfig c;
  c.framework = FrameworkKind::kUnsharded;
  c.micro_batch = 2;
  c.loss = LossKind::kMeanSquareOutput;
  PlanOptions options;
  options.executable = false;
  try {
    plan(model_from_json(parse_json(text, "shapes.json"), "shapes.json"), c, options);
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

std::string applied(const std::string& function, const std::string& ints) {
  return R"({"do":")" + function + R"(","in":"h","out":"y","ints":[)" + ints + "]}";
}

TEST(Dimensions, AreThoseThatATensorHas) {
  EXPECT_EQ(refusal("[0,4,4]", applied("unsqueeze", "1")), "");
  EXPECT_EQ(refusal("[0,4,4]", applied("transpose", "-1,1")), "");
  for (const char* dim : {"3", "7", "-4", "-9", "4294967296", "-9223372036854775808"}) {
    const std::string d = dim;
    for (const std::string& statement :
         {applied("transpose", "0," + d), applied("transpose", d + ",0"),
          applied("slice", d + ",0,1"), applied("select", d + ",0"), applied("sum", d + ",0"),
          applied("cat", d), applied("pad", d + ",1")}) {
      EXPECT_NE(refusal("[0,4,4]", statement), "") << statement;
    }
  }
  for (const char* dim : {"4", "-5", "9", "9223372036854775807"})
    EXPECT_NE(refusal("[0,4,4]", applied("unsqueeze", dim)), "") << dim;
}

TEST(Dimensions, ASixthIsRefusedWhereItIsMade) {
  const std::string said = refusal("[0,4,4,1,1]", applied("unsqueeze", "1"));
  EXPECT_NE(said.find("unsqueeze"), std::string::npos) << said;
  EXPECT_NE(said.find("at most 5"), std::string::npos) << said;
  EXPECT_NE(refusal("[0,4,4,1]", applied("expand", "-1,-1")), "");
  EXPECT_NE(refusal("[0,4,4,1]", applied("expand", "-1,4,5,1")), "");
  EXPECT_EQ(refusal("[0,4,4,1]", applied("expand", "-1,4,4,3")), "");
}

}  // namespace
}  // namespace foreshard
