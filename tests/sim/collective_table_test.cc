#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.h"
#include "core/json.h"
#include "sim/cost/collective_table.h"
#include "tests/shared_folder.h"

namespace foreshard {
namespace {

// Layouts of the programs' printf calls: 2017 (no units, times in ms), 2019 (no root column,
// "error"), 2022 on ("#wrong").
constexpr const char* k2017 =
    R"(# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
# NCCL Tests compiled with NCCL 2.2
# Using devices
#   Rank  0 on    node-a device  0 [0x0a] Tesla P100-SXM2-16GB
#   Rank  1 on    node-a device  1 [0x0b] Tesla P100-SXM2-16GB

#                                                 out-of-place                    in-place
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
    67108864      16777216   float     sum    3.700  18.14  18.14    0e+00    3.690  18.19  18.19    0e+00
   134217728      33554432   float     sum    7.300  18.39  18.39    0e+00    7.290  18.41  18.41    0e+00
)";

constexpr const char* k2019 =
    R"(# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid  11 on     node-a device  0 [0x1b] Tesla V100-SXM2-32GB
#   Rank  1 Pid  12 on     node-a device  1 [0x1c] Tesla V100-SXM2-32GB
#   Rank  2 Pid  13 on     node-b device  0 [0x1b] Tesla V100-SXM2-32GB
#   Rank  3 Pid  14 on     node-b device  1 [0x1c] Tesla V100-SXM2-32GB
#
#                                                       out-of-place                       in-place
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
   134217728       8388608     float     sum  20000.0    6.71    5.03  0e+00  20100.0    6.68    5.01  0e+00
# Out of bounds values : 0 OK
)";

constexpr const char* k2024 = R"(# nccl-tests version 2.18.3 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_gather_perf
# nThread 1 nGpus 8 minBytes 1024 maxBytes 1048576 step: 2(factor) warmup iters: 10 iters: 50 agg iters: 1 validation: 1 graph: 0 unalign: 0
#
# Using devices
#  Rank  0 Group  0 Pid 548419 on node-a device  0 [000f:01:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 548419 on node-a device  1 [001f:01:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
     1048576        131072     float    none      -1    30.00   34.95   17.48       0    29.00   36.16   18.08       0
        1024           128     float    none      -1    12.00    0.09    0.04     N/A    11.90    0.09    0.04       0
# Avg bus bandwidth    : 8.76
)";

std::string error_of(const std::string& text) {
  try {
    parse_nccl_log(text, "log.txt");
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(NcclLog, FirstGenerationHasMillisecondsAndNoUnits) {
  const auto table = parse_nccl_log(k2017, "log.txt");
  EXPECT_EQ(table.ranks, 2);
  EXPECT_EQ(table.nodes, 1);
  EXPECT_EQ(table.gpus_per_process, 2);
  EXPECT_EQ(table.gpu, "Tesla P100-SXM2-16GB");
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_DOUBLE_EQ(table.rows[1].out_of_place_s, 7.3e-3);
  EXPECT_EQ(table.kind,
            CollectiveKind::kAllReduce);  // two ranks: 2 (n-1)/n = 1 = busbw / algbw, and it sums
  EXPECT_FALSE(table.notes.empty());
}

TEST(NcclLog, SecondGenerationNamesUnits) {
  const auto table = parse_nccl_log(k2019, "log.txt");
  EXPECT_EQ(table.ranks, 4);
  EXPECT_EQ(table.nodes, 2);
  EXPECT_EQ(table.kind, CollectiveKind::kReduceScatter);  // 3/4 of algbw, and it sums
  EXPECT_DOUBLE_EQ(table.rows[0].out_of_place_s, 0.02);
}

TEST(NcclLog, ThirdGenerationNamesItsTest) {
  const auto table = parse_nccl_log(k2024, "log.txt");
  EXPECT_EQ(table.kind, CollectiveKind::kAllGather);
  EXPECT_EQ(table.gpus_per_process, 8);
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[0].bytes.value, 1024);  // sorted by size
  EXPECT_DOUBLE_EQ(table.rows[1].in_place_s, 29e-6);
  EXPECT_EQ(table.gpu, "NVIDIA H100 80GB HBM3");
}

// The ratio of an all-gather is that of a reduce-scatter: the log's last line names it, too.
TEST(NcclLog, TheLastLineNamesTheTest) {
  const auto table = parse_nccl_log(
      std::string(k2019) + "#\n# Collective test concluded: all_gather_perf\n#\n", "x.log");
  EXPECT_EQ(table.kind, CollectiveKind::kAllGather);
  EXPECT_TRUE(table.notes.empty());
}

// Two tests in one file are not one test on twice the ranks.
TEST(NcclLog, SeveralTestsAreRefused) {
  EXPECT_EQ(error_of(k2019), "no error");
  EXPECT_NE(error_of(std::string(k2019) + k2019).find("a second test begins"), std::string::npos);
}

// A test that found wrong data was not the collective that it timed, one that failed may not be.
TEST(NcclLog, WrongResultsAndFailedCallsAreTold) {
  EXPECT_TRUE(parse_nccl_log(k2024, "x.log").faults.empty());
  EXPECT_TRUE(parse_nccl_log(k2019, "x.log").faults.empty());  // "error" is a deviation, not wrong.
  const auto fault = [](const std::string& text) {
    const auto faults = parse_nccl_log(text, "x.log").faults;
    return faults.size() == 1 ? faults[0] : fmt::format("{} faults", faults.size());
  };
  EXPECT_EQ(fault(replaced(k2019, "0 OK", "12 FAILED")),
            "line 13: # Out of bounds values : 12 FAILED");
  EXPECT_EQ(fault(replaced(k2024, "17.48       0", "17.48       7")),
            "line 12: 7 values were wrong (#wrong)");
  EXPECT_EQ(fault(replaced(k2024, "#\n", "#\nnode-a: Test CUDA failure common.cu:1030 'peer'\n")),
            "line 5: node-a: Test CUDA failure common.cu:1030 'peer'");
  EXPECT_EQ(
      fault(std::string(k2024) + "node-a: Test NCCL failure common.cu:501 'internal error'\n"),
      "line 15: node-a: Test NCCL failure common.cu:501 'internal error'");
}

// nccl-tests' doc/PERFORMANCE.md: busbw = algbw x 2 (n - 1) / n of all-reduce, (n - 1) / n of
// all-gather, reduce-scatter and all-to-all, 1 of broadcast and reduce.
TEST(NcclLog, AKindThatTheLogContradictsIsRefused) {
  const auto refusal = [](const std::string& text, CollectiveKind kind) -> std::string {
    try {
      parse_nccl_log(text, "x.log", kind);
    } catch (const InputError& e) {
      return e.what();
    }
    return "accepted";
  };
  // The log of four ranks: 5.03 / 6.71 = 3 / 4.
  for (const auto kind :
       {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll})
    EXPECT_EQ(refusal(k2019, kind), "accepted");
  for (const auto kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kBroadcast, CollectiveKind::kReduce}) {
    const std::string text = refusal(k2019, kind);
    EXPECT_NE(text.find("busbw / algbw = 0.750 contradicts " + std::string(name_of(kind))),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("reduce-scatter, by the ratio"), std::string::npos) << text;
  }
  EXPECT_NE(refusal(k2024, CollectiveKind::kReduceScatter).find("the log is of all-gather"),
            std::string::npos);
  // Two ranks cannot tell all-reduce from broadcast, and the first generation not its gathers.
  EXPECT_EQ(refusal(k2017, CollectiveKind::kBroadcast), "accepted");
  EXPECT_EQ(refusal(k2017, CollectiveKind::kAllGather), "accepted");
  // Bandwidths printed with few digits say little: 0.04 / 0.05 of two ranks is any ratio near 1/2.
  EXPECT_EQ(refusal(replaced(k2019, "20000.0    6.71    5.03", "2684354.0  0.05    0.03"),
                    CollectiveKind::kAllGather),
            "accepted");
}

TEST(NcclLog, ATimeOfZeroIsNone) {
  EXPECT_NE(error_of(replaced(k2024, "   30.00", "    0.00")).find("\"0.00\" is no time of"),
            std::string::npos);
  EXPECT_NE(error_of(replaced(k2024, "29.00", "0    ")).find("is no time of"), std::string::npos);
  // An empty call (a size below one element a rank) took no time that can be printed.
  const std::string empty =
      replaced(replaced(replaced(k2024, "        1024           128", "           0             0"),
                        "12.00", "0.00"),
               "11.90", " 0.00");
  EXPECT_EQ(parse_nccl_log(empty, "x.log").rows.size(), 1u);
}

TEST(NcclLog, DamagedLogsAreRefused) {
  EXPECT_NE(error_of("").find("no header"), std::string::npos);
  EXPECT_NE(error_of(std::string("\0\1", 2)).find("binary"), std::string::npos);
  EXPECT_NE(error_of("hello\nworld\n").find("no header"), std::string::npos);
  const std::string whole = k2024;
  EXPECT_NE(error_of(whole.substr(0, whole.find("     1048576"))).find("no measured line"),
            std::string::npos);
  EXPECT_NE(error_of(whole.substr(0, whole.find("29.00"))).find("cut off"), std::string::npos);
  EXPECT_NE(error_of(replaced(whole, "(us)", "(fortnights)")).find("unknown unit"),
            std::string::npos);
  EXPECT_NE(error_of(replaced(whole, "(us)", "(ms)")).find("two units"), std::string::npos);
  EXPECT_NE(error_of(replaced(replaced(whole, "(us)", "(ms)"), "(us)", "(ms)")).find("contradict"),
            std::string::npos);
  EXPECT_NE(error_of(replaced(whole, "30.00", "300.0")).find("contradict"), std::string::npos);
  EXPECT_NE(error_of(replaced(whole, "30.00", "-30.0")).find("is no time"), std::string::npos);
  EXPECT_NE(error_of(replaced(whole, "30.00", "nan  ")).find("is no time"), std::string::npos);
}

TEST(CollectiveCsv, ReadsAndRefuses) {
  const auto rows = parse_collective_csv(
      "size_bytes,time_us_out_of_place,time_us_in_place,algbw_GBps_oop,busbw_GBps_oop\n1024,,44.8,,"
      "0.04\n8,12.9,12.8,0,0\n",
      "t.csv");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].bytes.value, 8);
  EXPECT_DOUBLE_EQ(rows[1].seconds(), 44.8e-6);
  const auto refused = [](const std::string& text) {
    try {
      parse_collective_csv(text, "t.csv");
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(refused("size_bytes,time_ms\n8,1\n").find("time_ms"), std::string::npos);
  EXPECT_NE(refused("size_bytes,time_us_in_place\n8\n").find("line 2"), std::string::npos);
  EXPECT_NE(refused("size_bytes,time_us_in_place\n8,fast\n").find("no time"), std::string::npos);
  EXPECT_NE(refused("size_bytes,time_us_in_place\n8,0\n").find("no time"), std::string::npos);
  EXPECT_NE(refused("size_bytes,time_us_in_place\n").find("no rows"), std::string::npos);
  EXPECT_NE(refused(""), "no error");
}

// Whatever happens to a log, it is read or refused, never anything else.
TEST(NcclLog, MutatedLogsAreReadOrRefused) {
  std::uint32_t random = 1;
  const auto next = [&] { return random = random * 1664525u + 1013904223u; };
  const std::string originals[] = {k2017, k2019, k2024};
  for (int round = 0; round < 3000; ++round) {
    std::string text = originals[round % 3];
    for (int i = 0; i < 4; ++i) text[(next() >> 8) % text.size()] = static_cast<char>(next() >> 24);
    if (round % 2 == 0) text.resize((next() >> 8) % text.size());
    try {
      const auto table = parse_nccl_log(text, "log.txt");
      for (const auto& row : table.rows) EXPECT_GE(row.bytes.value, 0);
    } catch (const InputError&) {
    }
  }
}

// Facts from the index of those files: 118.87 / 222.88 GB/s for 16 ranks (factor 1.875); saturation
// at 22.9 GB/s; all-gather of two GB10 at 22.1 GB/s.
TEST(NcclLog, RealPublicLogs) {
  const auto folder = shared_folder() / "data" / "user-files" / "nccl-tests";
  FORESHARD_NEEDS(folder);
  const auto read = [&](const char* name) {
    return parse_nccl_log(read_text_file(folder / name), name);
  };
  const auto a100 = read("all_reduce_2x8_a100_roce_10G.txt");
  EXPECT_EQ(a100.ranks, 16);
  EXPECT_EQ(a100.nodes, 2);
  EXPECT_EQ(a100.kind, CollectiveKind::kAllReduce);
  EXPECT_NEAR(static_cast<double>(a100.rows[0].bytes.value) / a100.rows[0].out_of_place_s * 1e-9,
              118.87, 0.01);
  const auto gh200 = read("all_reduce_2x1_gh200_slingshot_v2.18.txt");
  EXPECT_EQ(gh200.rows.size(), 8u);
  EXPECT_NEAR(
      static_cast<double>(gh200.rows.back().bytes.value) / gh200.rows.back().out_of_place_s * 1e-9,
      22.86, 0.01);
  EXPECT_EQ(read("all_gather_2x1_gb10_qsfp_good.txt").kind, CollectiveKind::kAllGather);
}

}  // namespace
}  // namespace foreshard
