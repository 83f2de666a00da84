#pragma once

// The state of the event loop. engine_host.cc issues, engine_streams.cc runs streams,
// engine_transfers.cc runs collectives and copies, engine.cc sets up, loops and reports.

#include <cmath>
#include <span>
#include <string>

#include "sim/engine.h"

namespace foreshard::sim {

class Engine {
 public:
  explicit Engine(EngineInput input);
  EngineOutput run();

 private:
  enum class ItemKind : std::uint32_t { kLaunch, kCollective, kCopy, kRecord, kStepEnd, kWait };

  /// One entry of a stream's queue.
  struct Item {
    Item(std::int64_t at, std::uint32_t in, ItemKind k, std::uint32_t v)
        : issued(at), instruction(in), kind(k), value(v & kMaxValue) {
      if (v > kMaxValue) refuse_value();
    }
    [[noreturn]] static void refuse_value();
    static constexpr std::uint32_t kMaxValue = (1u << 29) - 1;

    std::int64_t issued;  ///< Host time at which the device could first see it.
    std::uint32_t instruction;
    ItemKind kind : 3;
    std::uint32_t
        value : 29;  ///< Launch: shape; copy: index; record, wait: moment; collective: sequence.
  };
  static_assert(sizeof(Item) == 16);

  static constexpr std::uint32_t kCompactFrom = 512;  ///< Served entries that a queue may keep.

  enum class StreamState : std::uint8_t {
    kEmpty,
    kRunning,
    kTransfer,
    kBlockedOnEvent,
    kBlockedOnRanks
  };

  struct Stream {
    std::vector<Item> queue;
    std::uint32_t head = 0;
    StreamState state = StreamState::kEmpty;
    std::int16_t step = -1;
    double scale = 1;        ///< Of kernel times: this rank in this step.
    std::int64_t ready = 0;  ///< End of what it did last.
    Cause cause;             ///< What that was.
    // The running kernel.
    std::int64_t start = 0, updated = 0;
    double left = 0;       ///< Picoseconds at full speed.
    double speed = 1;      ///< Of the kernel: below 1 while others take memory bandwidth from it.
    bool pending = false;  ///< Its kernel has not begun yet, an event will tell.
    bool running = false;  ///< It counts in Rank::busy.
    Cause start_cause;
  };

  /// One recorded event, or any other point of a stream that something waits for.
  struct Reached {
    std::int64_t time = kNever;  ///< kNever: not yet known.
    Cause cause;
  };

  enum class HostWait : std::uint8_t { kRunnable, kMoments, kQueueFull, kDevicePresent, kFinished };

  struct Host {
    std::int64_t time = 0;
    std::uint32_t pc = 0, end = 0;  ///< Acts of the code.
    std::int32_t segment = -1;      ///< -1: nothing begun; 0: init; k: step k - 1.
    std::int16_t step = -1;
    HostWait wait = HostWait::kRunnable;
    HostBlock::Kind wait_kind = HostBlock::Kind::kWait;
    std::int64_t outstanding = 0;  ///< Issued device operations that have not ended.
    std::int64_t wake = 0;
    Cause wake_cause;
    std::int64_t wait_start = 0;  ///< Of the present instruction, for the trace.
    std::uint32_t waited = 0;     ///< Moments of `moments` seen so far.
    std::vector<std::uint32_t> moments;
    bool charged = false;  ///< The present act's host time is already counted.
    bool due = false;      ///< The time at which it goes on is known.
    bool retry = false;    ///< The device is at rest for the allocator's retry of the present act.
    bool at_present = false;  ///< The device has been brought to the host's present time.
  };

  /// The moments at which one step's work is done, one for each stream; resolved at the end.
  struct StepEnd {
    std::int64_t begin = 0, host = 0;
    std::uint32_t first_moment = 0;
  };

  struct Rank {
    std::uint32_t index = 0;  ///< Class.
    const ProgramTiming* timing = nullptr;
    const CollectiveTable* collectives = nullptr;
    const HostCode* code = nullptr;
    const MemoryPass* memory = nullptr;        ///< What was found of it before; may be null.
    std::span<const DriverCall> driver_calls;  ///< Of the pass; those still to come.
    std::size_t level = 0;                     ///< Next of its levels. Trace only.
    Host host;
    std::vector<Stream> streams;
    std::uint64_t blocked = 0;          ///< Streams in kBlockedOnEvent.
    std::uint64_t kernels = 0;          ///< Streams of the device whose head is a kernel.
    std::vector<Reached> reached;       ///< By moment.
    std::vector<std::uint32_t> latest;  ///< By event id: moment of its last record; kNone before.
    std::vector<std::uint32_t>
        sequence;               ///< By lane (groups, then peer pairs): next sequence number.
    double transfers_cost = 0;  ///< Sum of the interference of active transfers.
    std::uint32_t transfers = 0;
    double stretch = 1;                 ///< Of kernels: 1 + transfers_cost.
    std::uint32_t busy = 0;             ///< Streams of the device that run a kernel.
    std::vector<std::uint32_t> slowed;  ///< Active transfers that its kernels slow down.
    bool record = false;
    std::vector<StepEnd> step_ends;
    RankRecord kept;
  };

  /// Lets the allocator of one rank ask how far the streams are.
  class Progress final : public StreamProgress {
   public:
    Progress(Engine& engine, Rank& rank) : engine_(engine), rank_(rank) {}
    Event record(std::uint32_t stream) override { return engine_.record(rank_, stream); }
    bool reached(Event event) override {
      const bool answer = rank_.reached[event].time <= rank_.host.time;
      if (engine_.trace_) {
        rank_.kept.reuse.resize(static_cast<std::size_t>(rank_.host.segment) + 1);
        rank_.kept.reuse.back().push_back(answer);
      }
      return answer;
    }
    void synchronize(Event) override {}  // the device is at rest before the allocator retries

   private:
    Engine& engine_;
    Rank& rank_;
  };

  /// A collective that some members have reached.
  struct Rendezvous {
    std::uint32_t sequence = kNone;  ///< kNone: unused.
    std::uint32_t arrived = 0;
    std::int64_t time = 0;  ///< Latest arrival.
    Cause cause;            ///< Of the latest arrival.
    std::uint32_t first_rank = 0, first_instruction = 0;
    std::vector<std::uint8_t> stream;  ///< By member, like the two below.
    std::vector<std::int64_t> own_time;
    std::vector<Cause> own_cause;
  };

  struct Comm {
    const Communicator* layout = nullptr;
    std::uint32_t next = 0;  ///< Sequence number that may run next.
    bool running = false;
    std::int64_t free_at = 0;            ///< End of the one before.
    std::vector<std::uint32_t> last_op;  ///< By member: its record of the one before.
    std::vector<Rendezvous> waiting;
  };

  struct Transfer {
    const TransferCost* cost = nullptr;
    std::uint32_t comm = kNone;  ///< kNone: a copy.
    std::uint32_t rendezvous = 0;
    std::uint32_t rank = 0, stream = 0;  ///< Copies.
    std::int64_t start = 0, updated = 0;
    double left = 0;         ///< Picoseconds at full speed and on idle GPUs.
    double speed = 1;        ///< Its share of the links.
    double pace = 1;         ///< Below 1 while kernels run on one of its GPUs.
    std::uint32_t busy = 0;  ///< Its GPUs that run kernels.
    Cause cause;
    bool active = false;
    bool after_previous =
        false;  ///< It waited for the one before on its communicator, not for an arrival.
  };

  // Entities of the event tree.
  std::uint32_t stream_entity(const Rank& r, std::uint32_t s) const {
    return first_stream_ + r.index * width_ + s;
  }
  std::uint32_t host_entity(const Rank& r) const { return first_host_ + r.index; }

  // engine.cc
  void set_up_rank(std::uint32_t c);
  void finish();
  [[noreturn]] void report_deadlock() const;
  std::string describe(const Rank& r, std::uint32_t instruction) const;
  double scale_of(const Rank& r, std::int32_t step) const;

  // engine_host.cc
  void run_host(Rank& r);
  bool next_segment(Rank& r);
  void end_step(Rank& r);
  void resume_host(Rank& r, std::int64_t t);
  void check_host(Rank& r);
  bool alloc(Rank& r, const HostAct& act);
  bool alloc_known(Rank& r, const HostAct& act);
  void pay_driver(Rank& r, const HostAct& act, std::int64_t allocs, std::int64_t frees);
  bool issue(Rank& r, const HostAct& act);
  void wake_host(Rank& r, std::int64_t t);
  void resume_due(std::int64_t t);
  std::uint32_t here(const Rank& r) const;
  std::int64_t host_time(const Rank& r, const HostAct& act) const;
  void wait_for(Rank& r, std::uint32_t moment);
  void wait_for_streams(Rank& r, std::uint32_t first, std::uint32_t end,
                        ItemKind kind = ItemKind::kRecord);
  std::uint32_t record(Rank& r, std::uint32_t stream, ItemKind kind = ItemKind::kRecord);
  std::uint32_t recorded(const Rank& r, std::uint32_t event) const;
  void span(Rank& r, std::uint32_t instruction, std::int64_t start);
  void sample(Rank& r, const HostAct& act);
  MemoryLevel next_level(Rank& r) const;

  void push(Rank& r, std::uint32_t stream, const Item& item) {
    Stream& s = r.streams[stream];
    if (s.head >= kCompactFrom && 2 * s.head >= s.queue.size()) {
      s.queue.erase(s.queue.begin(), s.queue.begin() + s.head);
      s.head = 0;
    }
    s.queue.push_back(item);
    if (s.state == StreamState::kEmpty) advance(r, stream);
  }

  // engine_streams.cc
  void advance(Rank& r, std::uint32_t stream);
  void start_kernel(Rank& r, std::uint32_t stream, const Item& item);
  void serve_kernel(Rank& r, std::uint32_t stream, std::int64_t t);
  void end_kernel(Rank& r, std::uint32_t stream, std::int64_t t);
  void meet_kernels(Rank& r, std::uint32_t stream);
  void share_memory(Rank& r, std::int64_t t);
  void retime_kernel(Rank& r, std::uint32_t stream, double speed, double stretch, std::int64_t t);
  void end_operation(Rank& r, std::uint32_t stream, const OpRecord& op);
  void set_stretch(Rank& r, std::int64_t t);
  void settle(Rank& r);

  // engine_transfers.cc
  struct LaneOf {
    std::uint32_t slot, comm;  ///< Index into Rank::sequence; into comms_.
  };
  LaneOf lane_of(const Rank& r, const Collective& collective) const {
    const Layout& layout = *in_.layout;
    if (collective.kind == CollectiveKind::kSendReceive) return pair_lane(r, collective);
    return {collective.group.value,
            layout.communicator_of[r.index * groups_ + collective.group.value]};
  }
  LaneOf pair_lane(const Rank& r, const Collective& collective) const;
  std::uint32_t rendezvous(Comm& comm, const Rank& r, const Item& item);
  void arrive(Rank& r, std::uint32_t stream, const Item& item);
  void try_start(std::uint32_t comm, std::uint32_t rendezvous);
  void start_copy(Rank& r, std::uint32_t stream, const Item& item);
  std::uint32_t new_transfer();
  double slowest_link(
      std::span<const std::int64_t> ranks) const;  ///< Largest Variation::rank_link of them.
  void serve_transfer(std::uint32_t index, std::int64_t t);
  void activate(std::uint32_t index, std::int64_t t);
  void end_transfer(std::uint32_t index, std::int64_t t);
  void end_collective(const Transfer& transfer, std::int64_t t);
  void demand(const Transfer& transfer, double sign);
  bool overloaded(const Transfer& transfer) const;
  void share(std::int64_t t);
  void set_speed(std::uint32_t index, double speed, std::int64_t t);
  void retime(std::uint32_t index, double speed, double pace, std::int64_t t);
  void kernels_began(Rank& r);
  void kernels_ended(Rank& r);
  void interfere(const Transfer& transfer, int change, std::int64_t t);
  template <typename F>
  void for_members(const Transfer& transfer, F&& f);

  EngineInput in_;
  std::vector<Rank> ranks_;
  std::vector<Comm> comms_;
  std::vector<Transfer> transfers_;
  std::vector<std::uint32_t> free_transfers_, active_;
  std::vector<double> demand_, capacity_;  ///< By rank class and link.
  std::uint32_t throttled_ = 0;            ///< Active transfers below full speed.
  SharingSolver solver_, memory_solver_;
  /// A kernel that has begun, and its share of the memory bandwidth alone.
  struct RunningKernel {
    std::uint32_t stream;
    double alone;
  };
  std::vector<RunningKernel> running_;  ///< Storage of share_memory().
  std::vector<ResourceUse> uses_;
  std::uint32_t groups_ = 0;
  std::uint32_t width_ = 1, first_stream_ = 0, first_host_ = 0;
  EventTree tree_{2};
  std::int64_t now_ = 0;
  Rank* due_now_ = nullptr;  ///< Its host goes on at now_, after all else that happens then.
  bool trace_ = false;
  bool serial_ = true;
};

/// A factor with median 1 from a counter: log-normal with standard deviation `sigma` of its
/// logarithm. Depends on nothing but its arguments (SplitMix64, Box-Muller).
double random_factor(double sigma, std::uint64_t seed, std::uint64_t a, std::uint64_t b,
                     std::uint64_t c);

}  // namespace foreshard::sim
