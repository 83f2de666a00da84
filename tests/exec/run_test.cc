#include "exec/run.h"

#include <atomic>
#include <cmath>
#include <thread>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/exec/program_maker.h"
#include "tests/few_threads.h"

namespace foreshard {
namespace {

using fixture::ProgramMaker;

constexpr StreamIndex kCompute = 0, kGather = 1, kReduce = 2;
constexpr std::int64_t kRows = 8, kColumns = 3,
                       kTokens = 2;  // weight [8, 3], sharded over at most 4 ranks by rows

/// One linear layer y = x wᵀ with a sharded weight and the loss sum(y): gather, matmul, gradient,
/// reduce-scatter, SGD. `wait_for_gather` off plants the bug of a use that never waited;
/// `free_early` frees the weight before its last use.
struct TinySchedule {
  explicit TinySchedule(std::int64_t world, bool wait_for_gather = true, bool free_early = false)
      : m({"compute", "gather", "reduce"}) {
    const std::int64_t shard = kRows / world;
    const BufferId local = m.buffer("weight shard", shard * kColumns * 4);
    const TensorId local_flat = m.tensor(local, {shard * kColumns});
    m.alloc(local);
    m.launch(OpKind::kInitialize, {}, {local_flat}, {0});
    m.end_init();

    const BufferId x = m.buffer("x", kTokens * kColumns * 4);
    m.program().inputs.push_back({"x", InputKind::kFloat, {kTokens, kColumns}, DType::kFloat32, 0});
    const TensorId xt = m.tensor(x, {kTokens, kColumns});
    m.alloc(x);
    m.input_copy(0, xt);
    m.wait_stream(kGather, kCompute);
    const BufferId whole = m.buffer("weight", kRows * kColumns * 4, kGather);
    const TensorId weight = m.tensor(whole, {kRows, kColumns});
    m.alloc(whole);
    gather = m.collective(CollectiveKind::kAllGather, ReduceOp::kNone, local_flat,
                          m.tensor(whole, {kRows * kColumns}), kGather);
    if (wait_for_gather) m.wait_stream(kCompute, kGather);
    const BufferId y = m.buffer("y", kTokens * kRows * 4), loss = m.buffer("loss", 4);
    const TensorId yt = m.tensor(y, {kTokens, kRows}), loss_t = m.tensor(loss, {1});
    m.alloc(y);
    if (free_early) m.free(whole);
    product = m.launch(OpKind::kMatmul, {xt, m.transposed(weight)}, {yt});
    m.alloc(loss);
    m.launch(OpKind::kSum, {yt}, {loss_t});
    m.launch(OpKind::kObserve, {loss_t}, {}, {0, 1});
    m.launch(OpKind::kFill, {}, {yt}, {1});  // dL/dy = 1
    const BufferId grad = m.buffer("gradient", kRows * kColumns * 4);
    const TensorId grad_t = m.tensor(grad, {kRows, kColumns});
    m.alloc(grad);
    m.launch(OpKind::kMatmul, {m.transposed(yt), xt}, {grad_t});
    m.wait_stream(kReduce, kCompute);
    const BufferId reduced = m.buffer("reduced gradient", shard * kColumns * 4, kReduce);
    const TensorId reduced_t = m.tensor(reduced, {shard * kColumns});
    m.alloc(reduced);
    m.collective(CollectiveKind::kReduceScatter, ReduceOp::kAverage,
                 m.tensor(grad, {kRows * kColumns}), reduced_t, kReduce);
    m.wait_stream(kCompute, kReduce);
    m.launch(OpKind::kSgdUpdate, {local_flat, reduced_t}, {local_flat}, {0.5});
    for (const BufferId b : {x, y, loss, grad, reduced}) m.free(b);
    if (!free_early) {
      m.wait_stream(kGather, kCompute);
      m.free(whole);
    }
    m.end_step();
    ParameterView p;
    p.name = "weight";
    p.shape = {kRows, kColumns};
    p.local = local_flat;
    p.elements = shard * kColumns;
    p.group = GroupId(0);
    p.first_element_per_rank = shard * kColumns;
    m.program().parameters.push_back(p);
    schedule = m.schedule(world);
  }
  ProgramMaker m;
  Schedule schedule;
  std::uint32_t gather = 0, product = 0;
};

double initial(const std::string&, const std::vector<std::int64_t>&, std::int64_t i) {
  return 0.25 * static_cast<double>(i);
}

/// Small whole numbers, so that every sum is exact.
void whole_numbers(const ModelInput&, const BatchPosition& at, const TensorView& out) {
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    out.as<float>()[i] = static_cast<float>((i * 5 + at.rank * 3 + at.step) % 7 - 3);
  }
}

RunOptions options(StreamMode mode) {
  RunOptions o;
  o.mode = mode;
  o.initialize = initial;
  o.data = whole_numbers;
  o.gather_parameters = true;
  o.device_memory = Bytes(std::int64_t{256} << 20);
  o.watchdog = std::chrono::milliseconds(20'000);
  return o;
}

/// The same training in double precision on the whole batch.
struct Expected {
  std::vector<double> losses, weight;
};
Expected train_unsharded(std::int64_t world, int steps) {
  Expected e;
  for (std::int64_t i = 0; i < kRows * kColumns; ++i)
    e.weight.push_back(0.25 * static_cast<double>(i));
  for (int step = 0; step < steps; ++step) {
    double loss = 0;
    std::vector<double> gradient(kColumns, 0.0);
    for (std::int64_t rank = 0; rank < world; ++rank) {
      for (std::int64_t i = 0; i < kTokens * kColumns; ++i) {
        const double x = static_cast<double>((i * 5 + rank * 3 + step) % 7 - 3);
        gradient[static_cast<std::size_t>(i % kColumns)] += x;
        for (std::int64_t r = 0; r < kRows; ++r)
          loss += x * e.weight[static_cast<std::size_t>(r * kColumns + i % kColumns)];
      }
    }
    e.losses.push_back(loss / static_cast<double>(world));
    for (std::size_t i = 0; i < e.weight.size(); ++i) {
      e.weight[i] -= 0.5 * gradient[i % kColumns] / static_cast<double>(world);
    }
  }
  return e;
}

class TinyRun : public ::testing::TestWithParam<std::tuple<int, StreamMode>> {};

TEST_P(TinyRun, TrainsAsTheUnshardedModel) {
  const auto [world, mode] = GetParam();
  RunOptions o = options(mode);
  o.steps = 3;  // the plan has one: its last step is repeated
  const RunResult result = run(TinySchedule(world).schedule, o);
  const Expected expected = train_unsharded(world, 3);
  ASSERT_EQ(result.trace.losses.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_FLOAT_EQ(result.trace.losses[i], expected.losses[i]) << i;
  const std::vector<double>& weight = result.parameters.at("weight").values;
  ASSERT_EQ(weight.size(), expected.weight.size());
  for (std::size_t i = 0; i < weight.size(); ++i)
    EXPECT_FLOAT_EQ(weight[i], expected.weight[i]) << i;
}

TEST_P(TinyRun, MeasuresMemoryToTheByte) {
  const auto [world, mode] = GetParam();
  const RunResult result = run(TinySchedule(world).schedule, options(mode));
  // All buffers are below 512 B and take 512 B each; at the peak seven are live: shard, x,
  // weight, y, loss, gradient, reduced gradient.
  ASSERT_EQ(result.trace.step_memory.size(), static_cast<std::size_t>(world));
  for (const StepMemory& m : result.trace.step_memory) {
    EXPECT_EQ(m.allocated_peak.value, 7 * 512);
    EXPECT_EQ(m.reserved_peak.value,
              3 * (2 << 20));  // one small segment in each of three pools
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, TinyRun,
                         ::testing::Combine(::testing::Values(1, 2, 4),
                                            ::testing::Values(StreamMode::kInline,
                                                              StreamMode::kThreads)));

TEST(Run, SameResultEveryTime) {
  const TinySchedule tiny(4);
  RunOptions o = options(StreamMode::kThreads);
  o.steps = 4;
  const RunResult first = run(tiny.schedule, o);
  for (int i = 0; i < 5; ++i) {
    const RunResult again = run(tiny.schedule, o);
    EXPECT_EQ(again.trace.losses, first.trace.losses);
    EXPECT_EQ(again.parameters.at("weight").values, first.parameters.at("weight").values);
  }
}

TEST(Run, TraceHasEverySpanInOrder) {
  const TinySchedule tiny(2);
  const RunResult result = run(tiny.schedule, options(StreamMode::kThreads));
  std::int64_t device = 0, host = 0;
  for (const Span& s : result.trace.spans) {
    EXPECT_LE(s.start.value, s.end.value);
    (s.lane == Lane::kHost ? host : device)++;
  }
  const RankProgram& p = tiny.schedule.programs[0];
  EXPECT_EQ(host, 2 * (p.steps[0].end - p.steps[0].begin));
  // One copy, six kernels (product, sum, observe, fill, product, sgd), two collectives on each
  // rank.
  EXPECT_EQ(device, 2 * 9);
}

std::string failure(const Schedule& schedule, const RunOptions& o) {
  try {
    run(schedule, o);
  } catch (const RunError& e) {
    return e.what();
  }
  return "no failure";
}

TEST(RunFailures, UseWithoutWaitingForTheGather) {
  const TinySchedule tiny(2, false);
  for (const StreamMode mode : {StreamMode::kInline, StreamMode::kThreads}) {
    const std::string what = failure(tiny.schedule, options(mode));
    EXPECT_NE(what.find("instruction " + std::to_string(tiny.product)), std::string::npos) << what;
    EXPECT_NE(what.find("never waited"), std::string::npos) << what;
  }
}

TEST(RunFailures, UseAfterFree) {
  const TinySchedule tiny(2, true, true);
  const std::string what = failure(tiny.schedule, options(StreamMode::kThreads));
  EXPECT_NE(what.find("rank "), std::string::npos) << what;
  EXPECT_NE(what.find("instruction " + std::to_string(tiny.product)), std::string::npos) << what;
  EXPECT_NE(what.find("freed"), std::string::npos) << what;
}

TEST(RunFailures, UseOfABufferNeverAllocated) {
  ProgramMaker m({"compute"});
  const TensorId t = m.tensor(m.buffer("b", 16), {4});
  m.end_init();
  m.launch(OpKind::kFill, {}, {t});
  m.end_step();
  EXPECT_NE(failure(m.schedule(1), options(StreamMode::kInline)).find("never allocated"),
            std::string::npos);
}

TEST(RunFailures, ReadOfBytesNeverWritten) {
  ProgramMaker m({"compute"});
  const BufferId a = m.buffer("a", 16), b = m.buffer("b", 16);
  m.end_init();
  m.alloc(a);
  m.alloc(b);
  m.launch(OpKind::kCopy, {m.tensor(a, {4})}, {m.tensor(b, {4})});
  m.end_step();
  EXPECT_NE(failure(m.schedule(1), options(StreamMode::kInline)).find("nothing wrote"),
            std::string::npos);
}

TEST(RunFailures, ViewOutOfBounds) {
  ProgramMaker m({"compute"});
  const BufferId a = m.buffer("a", 16);
  m.end_init();
  m.alloc(a);
  m.launch(OpKind::kFill, {}, {m.tensor(a, {4}, DType::kFloat32, 4)});
  m.end_step();
  EXPECT_NE(failure(m.schedule(1), options(StreamMode::kInline)).find("covers bytes 4 to 20"),
            std::string::npos);
}

TEST(RunFailures, MemoryTakenOverWhileAnotherStreamUsesIt) {
  // a is read on stream 1 and freed at once; b takes the same block and is written on stream 0,
  // which never waited.
  for (const bool record : {false, true}) {
    ProgramMaker m({"compute", "other"});
    const BufferId a = m.buffer("a", 512), b = m.buffer("b", 512), c = m.buffer("c", 512);
    m.alloc(c);
    m.end_init();
    m.alloc(a);
    m.launch(OpKind::kFill, {}, {m.tensor(a, {128})}, {1});
    m.wait_stream(1, 0);
    m.launch(OpKind::kCopy, {m.tensor(a, {128})}, {m.tensor(c, {128})}, {}, 1);
    if (record) m.emit(InstructionKind::kRecordStream, a.value, 1);
    m.free(a);
    m.alloc(b);
    m.launch(OpKind::kFill, {}, {m.tensor(b, {128})}, {2});
    m.end_step();
    const std::string what = failure(m.schedule(1), options(StreamMode::kThreads));
    if (record) {
      EXPECT_EQ(what, "no failure");
    } else {
      EXPECT_NE(what.find("never waited"), std::string::npos) << what;
    }
  }
}

TEST(RunFailures, DeadRankEndsTheRun) {
  const TinySchedule tiny(4);
  RunOptions o = options(StreamMode::kThreads);
  o.faults.push_back({Fault::Kind::kDie, 2, 0, tiny.gather});
  const auto start = std::chrono::steady_clock::now();
  const std::string what = failure(tiny.schedule, o);
  EXPECT_NE(what.find("rank 2"), std::string::npos) << what;
  EXPECT_LT(std::chrono::steady_clock::now() - start, o.watchdog);  // at once, not by the watchdog
}

TEST(RunFailures, StuckRankIsNamed) {
  const TinySchedule tiny(3 + 1);
  RunOptions o = options(StreamMode::kThreads);
  o.watchdog = std::chrono::milliseconds(200);
  o.faults.push_back({Fault::Kind::kHang, 1, 0, tiny.gather});
  const std::string what = failure(tiny.schedule, o);
  EXPECT_NE(what.find("all-gather"), std::string::npos) << what;
  EXPECT_NE(what.find("for rank 1"), std::string::npos) << what;
}

TEST(RunFailures, StuckRankThatNobodyWaitsForIsNamed) {
  const TinySchedule tiny(1);
  RunOptions o = options(StreamMode::kThreads);
  o.watchdog = std::chrono::milliseconds(100);
  o.faults.push_back({Fault::Kind::kHang, 0, 0, tiny.product});
  const std::string what = failure(tiny.schedule, o);
  EXPECT_NE(what.find("rank 0 at instruction " + std::to_string(tiny.product)), std::string::npos)
      << what;
}

TEST(RunFailures, CollectivesThatDoNotMatch) {
  ProgramMaker m({"compute"});
  const BufferId a = m.buffer("a", 64), b = m.buffer("b", 64);
  m.end_init();
  m.alloc(a);
  m.alloc(b);
  const TensorId at = m.tensor(a, {16}), bt = m.tensor(b, {16});
  m.launch(OpKind::kFill, {}, {at}, {1});
  m.collective(CollectiveKind::kAllReduce, ReduceOp::kSum, at, bt, 0);
  m.end_step();
  Schedule s = m.schedule(2);
  s.programs.push_back(s.programs[0]);
  s.programs[1].collectives[0].op = ReduceOp::kMax;
  s.program_of_rank = {0, 1};
  EXPECT_NE(failure(s, options(StreamMode::kThreads)).find("do not match"), std::string::npos);
}

TEST(RunFailures, OutOfMemory) {
  ProgramMaker m({"compute"});
  const BufferId a = m.buffer("a", std::int64_t{1} << 30);
  m.end_init();
  m.alloc(a);
  m.end_step();
  EXPECT_NE(failure(m.schedule(1), options(StreamMode::kInline)).find("out of memory"),
            std::string::npos);
}

/// Another transport: counts the calls and leaves the work to the shared-memory one.
class CountingTransport final : public Transport {
 public:
  CountingTransport(RunControl& control, std::atomic<int>& calls)
      : inner_(make_shared_memory_transport(control)), calls_(calls) {}
  CollectiveStart collective(const CollectiveCall& call, Time ready) override {
    ++calls_;
    return inner_->collective(call, ready);
  }

 private:
  std::unique_ptr<Transport> inner_;
  std::atomic<int>& calls_;
};

// The tiny step has two collectives, a gather and a reduce-scatter, on each of two ranks.
// Inline, a rank's thread is the first that does not start, else a stream's: the run ends with an
// error, and no thread is left.
TEST(RunFailures, ThreadsThatTheMachineDoesNotGive) {
  const TinySchedule tiny(4);
  for (const StreamMode mode : {StreamMode::kInline, StreamMode::kThreads}) {
    {
      const NoThreads none;
      const std::string what = failure(tiny.schedule, options(mode));
      EXPECT_NE(what.find("gives no thread"), std::string::npos) << what;
    }
    EXPECT_NO_THROW(run(tiny.schedule, options(mode)));
  }
}

TEST(Run, UsesTheTransportItIsGiven) {
  std::atomic<int> calls = 0;
  RunOptions counted = options(StreamMode::kThreads);
  counted.steps = 3;
  counted.transport = [&](RunControl& control) {
    return std::make_unique<CountingTransport>(control, calls);
  };
  run(TinySchedule(2).schedule, counted);
  EXPECT_EQ(calls, 3 * 2 * 2);
}

TEST(Run, RefusesTooManyRanks) {
  EXPECT_THROW(run(TinySchedule(4).m.schedule(17), RunOptions{}), InputError);
}

TEST(Run, CarriesBuffersIntoTheRepeatedStep) {
  // A running sum that lives in another buffer after every step: new = old + 1.
  ProgramMaker m({"compute"});
  const BufferId before = m.buffer("before", 4), now = m.buffer("now", 4);
  const TensorId old_t = m.tensor(before, {1}), new_t = m.tensor(now, {1});
  m.alloc(before);
  m.launch(OpKind::kFill, {}, {old_t}, {10});
  m.end_init();
  m.alloc(now);
  m.launch(OpKind::kAddScalar, {old_t}, {new_t}, {1});
  m.launch(OpKind::kObserve, {new_t}, {}, {0, 1});
  m.free(before);
  m.end_step();
  m.program().carries.push_back({before, now});
  RunOptions o = options(StreamMode::kThreads);
  o.steps = 4;
  EXPECT_EQ(run(m.schedule(1), o).trace.losses, (std::vector<double>{11, 12, 13, 14}));
}

}  // namespace
}  // namespace foreshard
