// Every form in which a plan can be asked for holds: with and without tensors, compiled, and where
// ranks hold nothing of a parameter. The validator is the independent judge; files must come back
// as they were written.

#include <gtest/gtest.h>

#include <string>

#include "models/plain/plain_models.h"
#include "schedules/json.h"
#include "schedules/planner/planner.h"
#include "schedules/validate.h"

namespace foreshard {
namespace {

struct Form {
  const char* name;
  std::int64_t world;
  bool compile, executable;
  FrameworkKind framework;
};

class PlanForms : public testing::TestWithParam<Form> {
 protected:
  Schedule make() const {
    PlainModelOptions shape;
    shape.hidden = 32;
    shape.heads = 2;
    shape.vocabulary = 64;
    shape.max_sequence = 32;
    ParallelConfig config;
    config.framework = GetParam().framework;
    config.shard = GetParam().world;
    config.sequence = 16;
    config.compile = GetParam().compile;
    PlanOptions options;
    options.executable = GetParam().executable;
    return plan(plain_llama(shape), config, options);
  }
};

TEST_P(PlanForms, Holds) {
  const Schedule schedule = make();
  for (const ScheduleFinding& f : validate(schedule)) ADD_FAILURE() << text_of(schedule, f);
}

TEST_P(PlanForms, SurvivesItsFile) {
  const Schedule schedule = make();
  std::string text, again;
  write_schedule(schedule, text);
  write_schedule(parse_schedule(text, "plan.json"), again);
  EXPECT_EQ(text, again);
}

INSTANTIATE_TEST_SUITE_P(
    All, PlanForms,
    testing::Values(Form{"Plain", 4, false, true, FrameworkKind::kFsdp2},
                    Form{"WithoutTensors", 4, false, false, FrameworkKind::kFsdp2},
                    Form{"Compiled", 4, true, true, FrameworkKind::kFsdp2},
                    Form{"CompiledWithoutTensors", 4, true, false, FrameworkKind::kFsdp2},
                    Form{"RanksWithoutElements", 100, false, true, FrameworkKind::kFsdp2},
                    Form{"Zero3RanksWithoutElements", 1000, false, true, FrameworkKind::kZero3},
                    Form{"Zero1RanksWithoutElements", 1000, false, true, FrameworkKind::kZero1}),
    [](const auto& form) { return form.param.name; });

}  // namespace
}  // namespace foreshard
