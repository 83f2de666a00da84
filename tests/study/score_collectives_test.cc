#include "study/score_collectives.h"

#include <gtest/gtest.h>

#include "core/atomic_file.h"
#include "core/error.h"
#include "core/json.h"
#include "tests/shared_folder.h"

namespace foreshard {
namespace {

std::filesystem::path shared_index() {
  return shared_folder() / "data" / "nccl-tests" / "index.json";
}

CollectiveTable table(std::string gpu, std::string machine, std::string network, int ranks,
                      int nodes) {
  CollectiveTable t;
  t.gpu = std::move(gpu);
  t.machine = std::move(machine);
  t.network = std::move(network);
  t.ranks = ranks;
  t.nodes = nodes;
  return t;
}

TEST(ScoreCollectives, DescriptionsNameCatalogueMachines) {
  const auto name = [](const CollectiveTable& t) { return machine_of_table(t).hardware; };
  EXPECT_EQ(name(table("A100 SXM 80GB", "AWS p4de.24xlarge x2", "4x 100 Gb/s EFA per node", 16, 2)),
            "aws-p4de@4x100g");
  EXPECT_EQ(name(table("H200", "some server", "8x 400 Gb/s SuperNIC per node (RoCE)", 16, 2)),
            "h200@8x400g-roce");
  EXPECT_EQ(name(table("H100 SXM", "two servers", "8x 400 Gb/s InfiniBand NDR", 16, 2)),
            "h100-80@8x400g-ib");
  EXPECT_EQ(name(table("RTX 4090", "two boxes", "10 GbE", 8, 2)), "rtx4090@1x10g-tcp");
  EXPECT_EQ(name(table("A100 SXM 40GB", "8x A100 node", "NVSwitch", 8, 1)), "a100-40");
  EXPECT_EQ(name(table("V100 SXM", "2 GPUs of one 8-GPU node", "NVLink 2", 2, 1)), "v100-32");
  EXPECT_THROW(machine_of_table(table("Voodoo 2", "", "", 8, 1)), InputError);
}

TEST(ScoreCollectives, RacksAreOneNvLinkDomain) {
  const auto rack = machine_of_table(table("GB200", "GB200 NVL72, 2 trays", "NVLink 5", 8, 2));
  EXPECT_EQ(rack.placement.nodes, 1);
  EXPECT_EQ(machine_of_table(
                table("GB200", "GB200 NVL72, 20 racks", "NVLink 5 + InfiniBand NDR", 1440, 360))
                .placement.nodes,
            20);
}

TEST(ScoreCollectives, UnclearDescriptionsAreDoubts) {
  EXPECT_TRUE(machine_of_table(table("H100 SXM", "8x H100", "NVSwitch", 8, 1)).doubts.empty());
  EXPECT_FALSE(
      machine_of_table(table("A100 or H100", "4 nodes", "see source", 32, 4)).doubts.empty());
}

TEST(ScoreCollectives, UnknownTablesAreSkippedWithTheReason) {
  const auto folder = std::filesystem::temp_directory_path() / "foreshard_score_collectives_test";
  std::filesystem::create_directories(folder);
  write_file_atomically(folder / "t.csv",
                        "size_bytes,time_us_out_of_place\n1024,20\n2048,20\n1048576,50\n");
  const auto entry = [](const char* id, const char* coll, const char* gpu) {
    return std::string(R"({"id": ")") + id + R"(", "coll": ")" + coll +
           R"(", "ranks": 8, "nodes": 1, "gpu": ")" + gpu + R"(", "csv": "t.csv"})";
  };
  write_file_atomically(folder / "index.json", "[" + entry("a", "all_reduce", "H100") + "," +
                                                   entry("b", "gather", "H100") + "," +
                                                   entry("c", "all_reduce", "Voodoo 2") + "]");
  const auto score = score_collectives(folder / "index.json", CollectiveScoring::kCalibrated);
  std::filesystem::remove_all(folder);
  ASSERT_EQ(score.tables.size(), 1u);
  EXPECT_EQ(score.tables[0].rows.size(), 1u);
  ASSERT_EQ(score.skipped.size(), 2u);
  EXPECT_NE(score.skipped[0].reason.find("gather"), std::string::npos);
  EXPECT_NE(score.skipped[1].reason.find("Voodoo"), std::string::npos);
}

TEST(ScoreCollectives, VisibleTablesMeetTheTargets) {
  FORESHARD_NEEDS(shared_index());
  const auto plain = score_collectives(shared_index(), CollectiveScoring::kCatalogue);
  EXPECT_EQ(plain.tables.size(), 39u);
  EXPECT_LE(plain.mape, 0.10);
  const auto fitted = score_collectives(shared_index(), CollectiveScoring::kCalibrated);
  EXPECT_LE(fitted.mape, 0.04);
  for (std::size_t i = 0; i < plain.tables.size(); ++i) {
    EXPECT_EQ(fitted.tables[i].rows.size(), plain.tables[i].rows.size() / 2);  // the odd rows
  }
  const auto json = to_json(plain);
  EXPECT_EQ(json["tables"].size(), json["summary"]["tables"].get<std::size_t>());
}

}  // namespace
}  // namespace foreshard
