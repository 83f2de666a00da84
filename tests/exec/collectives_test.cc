// Collectives on data whose exact result is known, over worlds, types and operations (as gloo's and
// nccl-tests' checks do).

#include <cmath>
#include <functional>
#include <thread>

#include <gtest/gtest.h>

#include "core/error.h"
#include "exec/run_control.h"
#include "exec/transport/transport.h"
#include "tests/exec/host_tensor.h"

namespace foreshard::fixture {
namespace {

constexpr std::int64_t kShard = 5;
using Values = std::vector<double>;

/// Small whole numbers: exact in every type, also when summed over 16 ranks (at most 16 * 6 = 96 <
/// 2^7).
double value(std::int64_t rank, std::int64_t i) {
  return static_cast<double>((rank * 7 + i * 3) % 7);
}

struct Case {
  std::int64_t world;
  DType dtype;
};

class Collectives : public ::testing::TestWithParam<Case> {
 protected:
  const std::int64_t world = GetParam().world;
  const DType dtype = GetParam().dtype;
  RunControl control{std::chrono::milliseconds(20'000)};
  std::unique_ptr<Transport> transport = make_shared_memory_transport(control);

  HostTensor filled(std::int64_t rank, std::int64_t n) {
    HostTensor t({n}, dtype);
    Values v;
    for (std::int64_t i = 0; i < n; ++i) v.push_back(value(rank, i));
    return t.set(v);
  }

  CollectiveCall call(std::int64_t rank, CollectiveKind kind, ReduceOp op = ReduceOp::kNone) {
    CollectiveCall c;
    c.kind = kind;
    c.op = op;
    c.dtype = dtype;
    c.group = GroupId(0);
    c.size = world;
    c.index = rank;
    c.origin.rank = rank;
    return c;
  }

  /// Runs f(rank) on every rank at once.
  void on_all_ranks(const std::function<void(std::int64_t)>& f) {
    std::vector<std::thread> threads;
    for (std::int64_t r = 0; r < world; ++r) {
      threads.emplace_back([&, r] {
        try {
          f(r);
        } catch (...) {
          control.fail(std::current_exception());
        }
      });
    }
    for (std::thread& t : threads) t.join();
    if (control.error()) std::rethrow_exception(control.error());
  }

  Values reduced(ReduceOp op, std::int64_t first, std::int64_t n) const {
    Values v;
    for (std::int64_t i = first; i < first + n; ++i) {
      double sum = 0, top = -1;
      for (std::int64_t r = 0; r < world; ++r) {
        sum += value(r, i);
        top = std::max(top, value(r, i));
      }
      v.push_back(op == ReduceOp::kMax ? top : op == ReduceOp::kPreMulSum ? 2 * sum : sum);
    }
    return v;
  }
};

TEST_P(Collectives, AllGatherOutOfPlaceAndInPlace) {
  for (const bool in_place : {false, true}) {
    std::vector<HostTensor> out;
    for (std::int64_t r = 0; r < world; ++r) out.emplace_back(Shape{world * kShard}, dtype);
    on_all_ranks([&](std::int64_t r) {
      CollectiveCall c = call(r, CollectiveKind::kAllGather);
      c.sequence = in_place ? 1 : 0;
      HostTensor shard = filled(r, kShard);
      c.output = out[static_cast<std::size_t>(r)].view();
      c.input = shard.view();
      if (in_place) {
        c.input.data = c.output.data + r * kShard * size_of(dtype);
        from_floats(c.input, to_floats(shard.view()).data());
      }
      transport->collective(c, Time(0));
    });
    Values expected;
    for (std::int64_t r = 0; r < world; ++r) {
      for (std::int64_t i = 0; i < kShard; ++i) expected.push_back(value(r, i));
    }
    for (const HostTensor& t : out) EXPECT_EQ(t.values(), expected);
  }
}

TEST_P(Collectives, ReduceScatter) {
  std::uint64_t sequence = 0;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kPreMulSum}) {
    for (const bool in_place : {false, true}) {
      std::vector<HostTensor> in, out;
      for (std::int64_t r = 0; r < world; ++r) {
        in.push_back(filled(r, world * kShard));
        out.emplace_back(Shape{kShard}, dtype);
      }
      on_all_ranks([&](std::int64_t r) {
        CollectiveCall c = call(r, CollectiveKind::kReduceScatter, op);
        c.sequence = sequence;
        c.factor = 2;
        c.input = in[static_cast<std::size_t>(r)].view();
        c.output = out[static_cast<std::size_t>(r)].view();
        if (in_place) c.output.data = c.input.data + r * kShard * size_of(dtype);
        transport->collective(c, Time(0));
        const std::vector<float> f = to_floats(c.output);
        EXPECT_EQ(Values(f.begin(), f.end()), reduced(op, r * kShard, kShard));
      });
      ++sequence;
    }
  }
}

TEST_P(Collectives, AllReduceInPlaceWithUnevenParts) {
  std::uint64_t sequence = 0;
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{7}, world * kShard}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      on_all_ranks([&](std::int64_t r) {
        CollectiveCall c = call(r, CollectiveKind::kAllReduce, op);
        c.sequence = sequence;
        HostTensor t = filled(r, n);
        c.input = c.output = t.view();
        transport->collective(c, Time(0));
        EXPECT_EQ(t.values(), reduced(op, 0, n));
      });
      ++sequence;
    }
  }
}

TEST_P(Collectives, BroadcastAndReduceFromEveryRoot) {
  std::uint64_t sequence = 0;
  for (std::int64_t root = 0; root < world; ++root) {
    on_all_ranks([&](std::int64_t r) {
      CollectiveCall c = call(r, CollectiveKind::kBroadcast);
      c.sequence = sequence;
      c.root = static_cast<std::int32_t>(root);
      HostTensor in = filled(r, kShard), out({kShard}, dtype);
      c.input = in.view();
      c.output = out.view();
      transport->collective(c, Time(0));
      EXPECT_EQ(out.values(), filled(root, kShard).values());

      c.kind = CollectiveKind::kReduce;
      c.op = ReduceOp::kSum;
      c.sequence = sequence + 1;
      HostTensor target({kShard}, dtype);
      target.set(Values(kShard, 9));
      c.output = target.view();
      transport->collective(c, Time(0));
      EXPECT_EQ(target.values(),
                r == root ? reduced(ReduceOp::kSum, 0, kShard) : Values(kShard, 9));
    });
    sequence += 2;
  }
}

TEST_P(Collectives, AllToAll) {
  on_all_ranks([&](std::int64_t r) {
    CollectiveCall c = call(r, CollectiveKind::kAllToAll);
    HostTensor in = filled(r, world * kShard), out({world * kShard}, dtype);
    c.input = in.view();
    c.output = out.view();
    transport->collective(c, Time(0));
    Values expected;
    for (std::int64_t from = 0; from < world; ++from) {
      for (std::int64_t i = 0; i < kShard; ++i) expected.push_back(value(from, r * kShard + i));
    }
    EXPECT_EQ(out.values(), expected);
  });
}

TEST_P(Collectives, SendAndReceiveAroundARing) {
  if (world == 1) GTEST_SKIP() << "needs a peer";
  on_all_ranks([&](std::int64_t r) {
    // Rank 0 sends first, the others receive first: a chain, then a full exchange between
    // neighbours 0 and 1.
    HostTensor in = filled(r, kShard), out({kShard}, dtype);
    CollectiveCall send = call(r, CollectiveKind::kSendReceive), receive = send;
    send.root = static_cast<std::int32_t>((r + 1) % world);
    send.input = in.view();
    receive.root = static_cast<std::int32_t>((r + world - 1) % world);
    receive.output = out.view();
    if (r == 0) transport->collective(send, Time(0));
    transport->collective(receive, Time(0));
    if (r != 0) transport->collective(send, Time(0));
    EXPECT_EQ(out.values(), filled((r + world - 1) % world, kShard).values());
    if (r > 1) return;
    CollectiveCall both = send;
    both.root = static_cast<std::int32_t>(1 - r);
    both.output = out.view();
    both.sequence = r == 0 || world == 2 ? 1 : 0;
    both.receive_sequence = r == 1 || world == 2 ? 1 : 0;
    transport->collective(both, Time(0));
    EXPECT_EQ(out.values(), filled(1 - r, kShard).values());
  });
}

TEST_P(Collectives, AverageDividesTheSum) {
  if (!is_floating(dtype)) GTEST_SKIP() << "whole numbers";
  on_all_ranks([&](std::int64_t r) {
    CollectiveCall c = call(r, CollectiveKind::kAllReduce, ReduceOp::kAverage);
    HostTensor t({1}, dtype);
    t.set({static_cast<double>(r == 0 ? world * 3 : 0)});  // the average is exactly 3
    c.input = c.output = t.view();
    transport->collective(c, Time(0));
    EXPECT_EQ(t.values(), Values{3});
  });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::int64_t world : {1, 2, 3, 4, 8, 16}) {
    for (const DType t :
         {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt64, DType::kUInt8})
      all.push_back({world, t});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Grid, Collectives, ::testing::ValuesIn(cases()), [](const auto& i) {
  return std::string(name_of(i.param.dtype)) + "_" + std::to_string(i.param.world);
});

TEST(Transport, Bfloat16AddsInFp32AndRoundsOnce) {
  // 256 + 1 + 1: rounding after each addition would stay at 256 (ulp 2, ties to even); once at the
  // end gives 258.
  RunControl control(std::chrono::milliseconds(20'000));
  const auto transport = make_shared_memory_transport(control);
  std::vector<std::thread> threads;
  for (std::int64_t r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      HostTensor t({1}, DType::kBFloat16);
      t.set({r == 0 ? 256.0 : 1.0});
      CollectiveCall c;
      c.kind = CollectiveKind::kAllReduce;
      c.op = ReduceOp::kSum;
      c.dtype = DType::kBFloat16;
      c.group = GroupId(0);
      c.size = 3;
      c.index = r;
      c.input = c.output = t.view();
      transport->collective(c, Time(0));
      EXPECT_EQ(t.values()[0], 258);
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(Transport, ReadyTimeIsTheLatestMember) {
  RunControl control(std::chrono::milliseconds(20'000));
  const auto transport = make_shared_memory_transport(control);
  std::vector<std::thread> threads;
  for (std::int64_t r = 0; r < 4; ++r) {
    threads.emplace_back([&, r] {
      HostTensor t({1});
      t.set({1});
      CollectiveCall c;
      c.kind = CollectiveKind::kAllReduce;
      c.op = ReduceOp::kSum;
      c.group = GroupId(0);
      c.size = 4;
      c.index = r;
      c.input = c.output = t.view();
      EXPECT_EQ(transport->collective(c, microseconds(r * 10)).nominal, microseconds(30));
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace foreshard::fixture
