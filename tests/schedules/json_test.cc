#include "schedules/json.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>

#include "core/error.h"
#include "schedules/text.h"
#include "tests/schedules/toy_schedule.h"

namespace foreshard {
namespace {

std::string text_of(const Schedule& s) {
  std::string out;
  write_schedule(s, out);
  return out;
}

/// The issues of reading `text`, joined; fails if it is accepted.
std::string issues_of(const std::string& text) {
  try {
    parse_schedule(text, "plan.json");
  } catch (const InputError& e) {
    return e.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

/// The toy's file with the first `from` replaced.
std::string with(const std::string& from, const std::string& to) {
  std::string text = text_of(fixture::toy_schedule());
  const auto at = text.find(from);
  if (at == std::string::npos)
    ADD_FAILURE() << "no \"" << from << "\" in\n" << text;
  else
    text.replace(at, from.size(), to);
  return text;
}

TEST(ScheduleJson, ReadsBackWhatItWrites) {
  Schedule s = fixture::toy_schedule();
  RankProgram& p = s.programs[0];
  p.names.push_back("a \"quoted\" name\n");
  p.attributes = {0.1, -1e-8, std::numeric_limits<double>::infinity()};
  p.launches[1].first_attribute = 0;
  p.launches[1].attributes = 3;
  p.launches[1].dims = {3, 0, -1, 5, 0, 0};
  p.marks.push_back({MarkKind::kUnitAction, true, Phase::kForward, 7, ScopeId(0), UnitId(0), 1});
  p.instructions.push_back({InstructionKind::kMark, 0, 0, 0});
  p.parameters.push_back(
      {"layers.0.weight", {64, 4}, DType::kBFloat16, false, TensorId(0), 3, 64, GroupId(0), 64, 0});
  p.inputs.push_back({"tokens", InputKind::kTokens, {1, 16}, DType::kInt64, 100});
  p.copies.push_back({CopyDirection::kHostToDevice, 0, Phase::kInput, true, Bytes(64), TensorId(),
                      TensorId(2), 0, 1, true});
  p.host_work.push_back({1500, 1});
  p.carries.push_back({BufferId(0), BufferId(2)});
  s.not_modelled = {"weather"};
  const std::string text = text_of(s);
  const Schedule back = parse_schedule(text, "plan.json");
  EXPECT_EQ(text_of(back), text);
  const RankProgram& q = back.programs[0];
  EXPECT_EQ(q.names[1], "a \"quoted\" name\n");
  EXPECT_EQ(q.attributes, p.attributes);
  EXPECT_EQ(q.launches[1].dims, p.launches[1].dims);
  EXPECT_EQ(q.instructions.size(), p.instructions.size());
  EXPECT_EQ(q.parameters[0].first_element, 3);
  EXPECT_EQ(q.copies[0].blocks_host, true);
  EXPECT_EQ(q.copies[0].pageable, true);
  EXPECT_EQ(q.tensors[1].shape, p.tensors[1].shape);
  EXPECT_EQ(q.units[0].shard_numel.value, 64);
  EXPECT_FALSE(q.copies[0].source.valid());
}

TEST(ScheduleJson, RefusesOtherFormatsAndVersions) {
  EXPECT_NE(issues_of("{}").find("format"), std::string::npos);
  EXPECT_NE(issues_of("[1,2]").find("object"), std::string::npos);
  EXPECT_NE(
      issues_of(with("\"version\": 1", "\"version\": 9")).find("found 9, this program reads 1"),
      std::string::npos);
}

TEST(ScheduleJson, NamesThePlaceOfEachFault) {
  EXPECT_NE(issues_of(with("[\"collective\", 0]", "[\"colective\", 0]")).find("\"collective\""),
            std::string::npos);
  EXPECT_NE(issues_of(with("[\"alloc\", 0]", "[\"alloc\", 99]"))
                .find("programs[0].instructions[0]: buffer 99 does not exist"),
            std::string::npos);
  EXPECT_NE(
      issues_of(with("[256, 0, \"device\"", "[-1, 0, \"device\"")).find("programs[0].buffers[0]"),
      std::string::npos);
  EXPECT_NE(issues_of(with("[256, 0, \"device\"", "[255, 0, \"device\""))
                .find("reaches byte 256 of buffer 0, which has 255"),
            std::string::npos);
  EXPECT_NE(issues_of(with("\"world\": 4", "\"world\": 4000000000000")).find("world"),
            std::string::npos);
  EXPECT_NE(issues_of(with("\"world\": 4", "\"world\": 4.5")).find("world"), std::string::npos);
  EXPECT_NE(issues_of(with("\"world\": 4", "\"world\": 6")).find("does not divide the world"),
            std::string::npos);
  EXPECT_NE(issues_of(with("\"events\": 2", "\"evens\": 2")).find("events"), std::string::npos);
  EXPECT_NE(issues_of(with("\"program_of_rank\": [0]", "\"program_of_rank\": [3]"))
                .find("program_of_rank"),
            std::string::npos);
  EXPECT_NE(issues_of(with("\"program_of_rank\": [0]", "\"program_of_rank\": [0, 0]"))
                .find("program_of_rank"),
            std::string::npos);
}

TEST(ScheduleJson, HostileSizesDoNotOverflow) {
  EXPECT_NE(issues_of(with("[64], [1]", "[9223372036854775807], [1]")), "");
  EXPECT_NE(issues_of(with("[64], [1]", "[1000000000000], [1000000000000]")), "");
  // Each is allowed alone, 2^50 x 2^50 is not; nothing multiplies them in 64 bits before.
  EXPECT_NE(issues_of(with("[64], [1]", "[1125899906842624, 1125899906842624], [1, 1]"))
                .find("shape is too large"),
            std::string::npos);
  EXPECT_NE(issues_of(with("[64], [1]", "[1, 1, 1, 1, 1, 1], [1]")), "");
  EXPECT_NE(issues_of(with("[64], [1]", "[64], [-1]")), "");
  EXPECT_NE(issues_of(with("[64], [1]", "[64], [1e3]")), "");
  EXPECT_NE(issues_of(with("\"size\": 4", "\"size\": 0")), "");
}

TEST(ScheduleJson, TruncatedAtEveryPlace) {
  const std::string text = text_of(fixture::toy_schedule());
  for (std::size_t n = 0; n + 2 < text.size(); n += 7)
    EXPECT_THROW(parse_schedule(text.substr(0, n), "plan.json"), InputError);
}

TEST(ScheduleText, OneLineForEachInstruction) {
  const Schedule s = fixture::toy_schedule();
  const std::string step = describe_step(s);
  EXPECT_EQ(std::count(step.begin(), step.end(), '\n'), 10);
  EXPECT_NE(step.find("[all_gather] all-gather layers.0  1.02 kB float32 over shard(4)"),
            std::string::npos)
      << step;
  EXPECT_NE(describe_schedule(s).find("layers.0"), std::string::npos);
}

// 64 ranks of one plan are one line, and the one that differs is another.
TEST(ScheduleText, EqualProgramsAreOneLine) {
  Schedule s = fixture::toy_schedule();
  s.programs.assign(64, s.programs[0]);
  s.programs[63].buffers.emplace_back();
  const std::string text = describe_schedule(s);
  EXPECT_NE(text.find("\nprograms 0 to 62, each: "), std::string::npos) << text;
  EXPECT_NE(text.find("\nprogram 63: "), std::string::npos) << text;
  EXPECT_EQ(text.find("on each rank"), text.rfind("on each rank"));  // One table of units.
}

}  // namespace
}  // namespace foreshard
