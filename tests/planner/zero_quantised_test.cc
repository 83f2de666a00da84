// ZeRO++: what quantised gathers and reductions send, counted by hand; what is refused. The rules:
// DeepSpeed 0.19.8 zero/partition_parameters.py, comm/coalesced_collectives.py.

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "core/error.h"
#include "models/plain/plain_models.h"
#include "schedules/planner/frameworks/zero.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

Model wide_llama(std::int64_t hidden) {
  PlainModelOptions o;
  o.layers = 2;
  o.hidden = hidden;
  o.heads = 4;
  o.kv_heads = 4;
  o.ffn = 2 * hidden;
  o.vocabulary = 96;
  o.max_sequence = 16;
  return plain_llama(o);
}

/// Four ranks in two nodes; every parameter is fetched alone, for forward and again for backward.
ParallelConfig job() {
  ParallelConfig c;
  c.framework = FrameworkKind::kZero3;
  c.shard = 4;
  c.sequence = 8;
  c.precision.param = DType::kFloat16;
  c.precision.reduce = DType::kFloat16;
  c.zero.param_persistence_threshold = 0;
  c.zero.prefetch_bucket_size = 0;
  c.zero.max_reuse_distance = 0;
  c.zero.gpus_per_node = 2;
  return c;
}

struct Quantised {
  std::int64_t calls = 0, bytes = 0;
  bool operator==(const Quantised&) const = default;
};
using Kind = std::tuple<CollectiveKind, DType, std::string>;  // and the name of the group

/// Collectives of the last of three steps; `bytes` is the larger of input and output.
std::map<Kind, Quantised> sent(const Model& m, const ParallelConfig& c) {
  PlanOptions options;
  options.steps = 3;
  const Schedule s = plan(m, c, options);
  const RankProgram& p = s.programs[0];
  std::map<Kind, Quantised> all;
  for (std::uint32_t i = p.steps.back().begin; i < p.steps.back().end; ++i) {
    if (p.instructions[i].kind != InstructionKind::kCollective) continue;
    const Collective& call = p.collectives[p.instructions[i].id];
    Quantised& kind = all[{call.kind, call.dtype, s.groups[call.group.value].name}];
    ++kind.calls;
    kind.bytes += call.bytes.value;
  }
  return all;
}

// Of wide_llama(64): embedding and head 96 x 64, two blocks of four 64 x 64 and three 64 x 128
// matrices, five norms of 64.
constexpr std::int64_t kMatrices = 2 * 6144 + 2 * (4 * 4096 + 3 * 8192), kVectors = 5 * 64;
constexpr std::int64_t kParameters = 2 + 2 * (7 + 2) + 1;

/// Each part fits into one block: one scale of four bytes from each of four ranks.
TEST(ZeroQuantised, WeightsTravelInBytesAndScales) {
  ParallelConfig c = job();
  c.zero.quantised_weights = true;
  const auto all = sent(wide_llama(64), c);
  using enum CollectiveKind;
  EXPECT_EQ(all.at({kAllGather, DType::kUInt8, "shard"}),
            (Quantised{2 * kParameters, 2 * (kMatrices + kVectors)}));
  EXPECT_EQ(all.at({kAllGather, DType::kFloat32, "shard"}),
            (Quantised{2 * kParameters, 2 * kParameters * 4 * 4}));
  EXPECT_EQ(all.count({kAllGather, DType::kFloat16, "shard"}), 0U);
}

/// A part of 512 x 256 / 4 = 32,768 elements: five blocks of 8,000 or fewer would do, eight is the
/// next number that divides it into multiples of 8. 256 x 256 / 4 = 16,384: three, then four.
TEST(ZeroQuantised, BlocksDivideThePart) {
  ParallelConfig c = job();
  c.zero.quantised_weights = true;
  const auto all = sent(wide_llama(256), c);
  // Embedding and head: 96 x 256 / 4 = 6,144, one block; norms one block.
  const std::int64_t scales = 2 + 2 * (4 * 4 + 3 * 8 + 2) + 1;
  EXPECT_EQ(all.at({CollectiveKind::kAllGather, DType::kFloat32, "shard"}).bytes,
            2 * scales * 4 * 4);
}

/// hpZ: backward gathers from the node's two ranks, quantised as well (their parts are twice as
/// large; still one block).
TEST(ZeroQuantised, SecondaryPartsAreQuantisedToo) {
  ParallelConfig c = job();
  c.zero.quantised_weights = true;
  c.zero.hpz_partition_size = 2;
  const auto all = sent(wide_llama(64), c);
  using enum CollectiveKind;
  const std::int64_t n = kMatrices + kVectors;
  EXPECT_EQ(all.at({kAllGather, DType::kUInt8, "shard"}), (Quantised{kParameters, n}));
  EXPECT_EQ(all.at({kAllGather, DType::kUInt8, "secondary"}), (Quantised{kParameters, n}));
  EXPECT_EQ(all.at({kAllGather, DType::kFloat32, "secondary"}),
            (Quantised{kParameters, kParameters * 2 * 4}));
}

/// Two values a byte, first in the node, then half as many across nodes; a scale for each row or
/// column, whichever are more. Norms keep their reduce-scatter.
TEST(ZeroQuantised, GradientsTravelInHalfBytesTwice) {
  ParallelConfig c = job();
  c.zero.quantised_gradients = true;
  const auto all = sent(wide_llama(64), c);
  using enum CollectiveKind;
  const std::int64_t matrices = 2 + 2 * 7;
  const std::int64_t blocks = 96 + 96 + 2 * (4 * 64 + 3 * 128);
  EXPECT_EQ(all.at({kAllToAll, DType::kUInt8, "node"}), (Quantised{matrices, kMatrices / 2}));
  EXPECT_EQ(all.at({kAllToAll, DType::kFloat32, "node"}), (Quantised{matrices, blocks * 4}));
  EXPECT_EQ(all.at({kAllToAll, DType::kUInt8, "across_nodes"}),
            (Quantised{matrices, kMatrices / 4}));
  EXPECT_EQ(all.at({kAllToAll, DType::kFloat32, "across_nodes"}),
            (Quantised{matrices, blocks * 2}));
  EXPECT_EQ(all.at({kReduceScatter, DType::kFloat16, "shard"}), (Quantised{5, kVectors * 2}));
}

TEST(ZeroQuantised, OneNodeReducesAsBefore) {
  ParallelConfig c = job();
  const auto plain = sent(wide_llama(64), c);
  c.zero.quantised_gradients = true;
  c.zero.gpus_per_node = 4;
  EXPECT_EQ(sent(wide_llama(64), c), plain);
}

/// CUDAQuantizer asserts that a part is a multiple of 8 elements: a norm of 64 over 16 ranks is
/// not.
TEST(ZeroQuantised, StopsAsDeepSpeedDoes) {
  ParallelConfig c = job();
  c.shard = 16;
  c.zero.quantised_weights = true;
  try {
    sent(wide_llama(64), c);
    FAIL() << "planned";
  } catch (const zero::ZeroError& e) {
    EXPECT_EQ(e.type(), "AssertionError");
    EXPECT_NE(e.message().find("Yet 4 cannot be divided by 8*"), std::string::npos) << e.message();
  }
}

TEST(ZeroQuantised, RefusesWhatItsKernelsMisread) {
  const auto refused = [](const auto& change) {
    ParallelConfig c = job();
    c.zero.quantised_gradients = true;
    change(c);
    EXPECT_THROW(sent(wide_llama(64), c), InputError);
  };
  refused([](ParallelConfig& c) { c.precision.param = DType::kBFloat16; });
  refused([](ParallelConfig& c) { c.zero.gpus_per_node = 3; });
  refused([](ParallelConfig& c) { c.zero.gpus_per_node = 0; });
  refused([](ParallelConfig& c) { c.zero.reduce_scatter = false; });
}

}  // namespace
}  // namespace foreshard
