#include <algorithm>

#include "core/error.h"
#include "sim/engine_impl.h"

namespace foreshard::sim {

namespace {
/// Links count as overloaded beyond this share of their capacity: rounding must not start the
/// solver.
constexpr double kFull = 1 + 1e-9;
}  // namespace

Engine::LaneOf Engine::pair_lane(const Rank& r, const Collective& collective) const {
  const auto& pairs = in_.layout->pairs;
  for (std::uint32_t i = 0; i < pairs.size(); ++i) {
    const Layout::Pair& p = pairs[i];
    if (p.rank_class == r.index && p.group == collective.group.value &&
        p.peer == static_cast<std::uint32_t>(collective.root)) {
      return {groups_ + i, p.communicator};
    }
  }
  throw InternalError("simulator: a send-receive without a communicator");
}

/// Where the members of a communicator meet for the item's collective; its first one opens it.
std::uint32_t Engine::rendezvous(Comm& comm, const Rank& r, const Item& item) {
  std::uint32_t slot = 0, unused = kNone;
  for (; slot < comm.waiting.size(); ++slot) {
    if (comm.waiting[slot].sequence == item.value) return slot;
    if (comm.waiting[slot].sequence == kNone && unused == kNone) unused = slot;
  }
  if (unused == kNone) {
    const std::size_t members = comm.layout->classes.size();
    comm.waiting.emplace_back();
    comm.waiting.back().stream.resize(members);
    comm.waiting.back().own_time.resize(members);
    comm.waiting.back().own_cause.resize(members);
  } else {
    slot = unused;
  }
  Rendezvous& fresh = comm.waiting[slot];
  fresh.sequence = item.value;
  fresh.arrived = 0;
  fresh.time = INT64_MIN;
  fresh.first_rank = r.index;
  fresh.first_instruction = item.instruction;
  return slot;
}

/// A stream has come to a collective; it starts once all members have, and after the one before
/// (N-2).
void Engine::arrive(Rank& r, std::uint32_t stream, const Item& item) {
  Stream& s = r.streams[stream];
  s.state = StreamState::kBlockedOnRanks;
  const Instruction& in = r.timing->program->instructions[item.instruction];
  const Collective& collective = r.timing->program->collectives[in.id];
  const std::uint32_t index = lane_of(r, collective).comm;
  Comm& comm = comms_[index];
  const std::uint32_t slot = rendezvous(comm, r, item);
  const auto& members = comm.layout->classes;
  Rendezvous& w = comm.waiting[slot];
  const Rank& first = ranks_[w.first_rank];
  const Collective& theirs =
      first.timing->program
          ->collectives[first.timing->program->instructions[w.first_instruction].id];
  if (theirs.kind != collective.kind || theirs.bytes != collective.bytes) {
    throw InputError(Issue{"schedule", describe(r, item.instruction),
                           "is not the collective that other ranks run here",
                           describe(first, w.first_instruction)});
  }
  const bool host = item.issued > s.ready;
  const std::int64_t time = host ? item.issued : s.ready;
  const Cause cause = host ? Cause{r.index, Cause::kHost} : s.cause;
  if (time > w.time) {
    w.time = time;
    w.cause = cause;
  }
  const std::size_t member =
      members.size() == 1
          ? 0
          : static_cast<std::size_t>(std::lower_bound(members.begin(), members.end(), r.index) -
                                     members.begin());
  w.stream[member] = static_cast<std::uint8_t>(stream);
  w.own_time[member] = time;
  w.own_cause[member] = cause;
  if (++w.arrived == members.size()) try_start(index, slot);
}

void Engine::try_start(std::uint32_t index, std::uint32_t slot) {
  Comm& comm = comms_[index];
  if (serial_ && (comm.running || comm.waiting[slot].sequence != comm.next)) return;
  comm.running = true;
  const std::uint32_t transfer = new_transfer();
  Rendezvous& w = comm.waiting[slot];
  Transfer& t = transfers_[transfer];
  const Rank& first = ranks_[comm.layout->classes[0]];
  const auto& queue = first.streams[w.stream[0]].queue;
  const Item& item = queue[first.streams[w.stream[0]].head];
  t.cost = &(*first.collectives)[first.timing->program->instructions[item.instruction].id];
  t.comm = index;
  t.rendezvous = slot;
  t.after_previous = serial_ && comm.free_at > w.time;
  t.start = t.after_previous ? comm.free_at : w.time;
  t.cause = w.cause;
  t.left = static_cast<double>(t.cost->device.value);
  const Variation& variation = in_.options->variation;
  if (variation.collective_sigma > 0)
    t.left *= random_factor(variation.collective_sigma, variation.seed, 0, index, w.sequence);
  if (!variation.rank_link.empty()) t.left *= slowest_link(comm.layout->ranks);
  tree_.set(transfer, t.start);
}

void Engine::start_copy(Rank& r, std::uint32_t stream, const Item& item) {
  Stream& s = r.streams[stream];
  s.state = StreamState::kTransfer;
  const std::uint32_t index = new_transfer();
  Transfer& t = transfers_[index];
  const bool host = item.issued > s.ready;
  t.cost = &r.timing->copies[item.value];
  t.comm = kNone;
  t.rank = r.index;
  t.stream = stream;
  t.start = host ? item.issued : s.ready;
  t.cause = host ? Cause{r.index, Cause::kHost} : s.cause;
  t.after_previous = false;
  t.left = static_cast<double>(t.cost->device.value);
  const std::int64_t rank = in_.layout->classes[r.index].rank;
  if (!in_.options->variation.rank_link.empty()) t.left *= slowest_link({&rank, 1});
  tree_.set(index, t.start);
}

double Engine::slowest_link(std::span<const std::int64_t> ranks) const {
  const std::vector<double>& factors = in_.options->variation.rank_link;
  double slowest = 0;
  for (const std::int64_t r : ranks) {
    const auto i = static_cast<std::size_t>(r);
    slowest = std::max(slowest, i < factors.size() ? factors[i] : 1);
  }
  return slowest;
}

std::uint32_t Engine::new_transfer() {
  if (free_transfers_.empty()) throw InternalError("simulator: more transfers than streams");
  const std::uint32_t index = free_transfers_.back();
  free_transfers_.pop_back();
  transfers_[index].active = false;
  transfers_[index].speed = transfers_[index].pace = 1;
  transfers_[index].busy = 0;
  return index;
}

void Engine::serve_transfer(std::uint32_t index, std::int64_t t) {
  if (transfers_[index].active) {
    end_transfer(index, t);
  } else {
    activate(index, t);
  }
}

template <typename F>
void Engine::for_members(const Transfer& transfer, F&& f) {
  if (transfer.comm == kNone) {
    f(ranks_[transfer.rank]);
  } else {
    for (const std::uint32_t c : comms_[transfer.comm].layout->classes) f(ranks_[c]);
  }
}

void Engine::activate(std::uint32_t index, std::int64_t t) {
  Transfer& transfer = transfers_[index];
  transfer.active = true;
  transfer.updated = t;
  active_.push_back(index);
  demand(transfer, 1);
  interfere(transfer, 1, t);
  if (transfer.cost->slowdown > 0) {
    for_members(transfer, [&](Rank& r) {
      r.slowed.push_back(index);
      transfer.busy += r.busy > 0 ? 1 : 0;
    });
    if (transfer.busy > 0) transfer.pace = 1 / (1 + transfer.cost->slowdown);
  }
  tree_.set(index, t + static_cast<std::int64_t>(transfer.left / transfer.pace + 0.5));
  if (throttled_ > 0 || overloaded(transfer)) share(t);
}

void Engine::end_transfer(std::uint32_t index, std::int64_t t) {
  const Transfer transfer = transfers_[index];
  tree_.set(index, kNever);
  active_.erase(std::find(active_.begin(), active_.end(), index));
  free_transfers_.push_back(index);
  if (active_.empty()) {
    std::fill(demand_.begin(), demand_.end(), 0.0);
  } else {
    demand(transfer, -1);
  }
  interfere(transfer, -1, t);
  if (transfer.cost->slowdown > 0) {
    for_members(transfer, [&](Rank& r) {
      r.slowed.erase(std::find(r.slowed.begin(), r.slowed.end(), index));
    });
  }
  if (transfer.speed != 1) --throttled_;
  if (throttled_ > 0) share(t);
  if (transfer.comm == kNone) {
    Rank& r = ranks_[transfer.rank];
    const Stream& s = r.streams[transfer.stream];
    end_operation(r, transfer.stream,
                  {transfer.start, t, s.queue[s.head].instruction, transfer.cause, s.step,
                   static_cast<StreamIndex>(transfer.stream)});
    return;
  }
  end_collective(transfer, t);
}

/// Its members go on, and the next collective of the communicator that all have come to starts.
void Engine::end_collective(const Transfer& transfer, std::int64_t t) {
  Comm& comm = comms_[transfer.comm];
  const auto& members = comm.layout->classes;
  comm.running = false;
  comm.free_at = t;
  ++comm.next;
  for (std::size_t m = 0; m < members.size(); ++m) {
    Rank& r = ranks_[members[m]];
    const std::uint32_t stream = comms_[transfer.comm].waiting[transfer.rendezvous].stream[m];
    const Stream& s = r.streams[stream];
    const Rendezvous& w = comms_[transfer.comm].waiting[transfer.rendezvous];
    const Cause arrival = w.own_time[m] == w.time ? w.own_cause[m] : transfer.cause;
    const Cause cause =
        transfer.after_previous ? Cause{r.index, comms_[transfer.comm].last_op[m]} : arrival;
    comms_[transfer.comm].last_op[m] =
        r.record ? static_cast<std::uint32_t>(r.kept.ops.size()) : Cause::kUnknown;
    end_operation(r, stream,
                  {transfer.start, t, s.queue[s.head].instruction, cause, s.step,
                   static_cast<StreamIndex>(stream)});
  }
  comms_[transfer.comm].waiting[transfer.rendezvous].sequence = kNone;
  if (!serial_) return;
  Comm& again = comms_[transfer.comm];
  for (std::uint32_t slot = 0; slot < again.waiting.size() && !again.running; ++slot) {
    if (again.waiting[slot].sequence == again.next &&
        again.waiting[slot].arrived == members.size()) {
      try_start(transfer.comm, slot);
    }
  }
}

void Engine::demand(const Transfer& transfer, double sign) {
  const double rate = sign * transfer.cost->rate.per_second;
  if (rate == 0) return;
  for_members(transfer, [&](const Rank& r) {
    for (int l = 0; l < kLinkCount; ++l)
      demand_[r.index * kLinkCount + l] += rate * transfer.cost->weight[l];
  });
}

bool Engine::overloaded(const Transfer& transfer) const {
  bool over = false;
  const auto check = [&](std::uint32_t c) {
    for (int l = 0; l < kLinkCount; ++l) {
      if (transfer.cost->weight[l] > 0 &&
          demand_[c * kLinkCount + l] > capacity_[c * kLinkCount + l] * kFull)
        over = true;
    }
  };
  if (active_.size() < 2) return false;  // alone it has the speed that the cost model gives it
  if (transfer.comm == kNone) {
    check(transfer.rank);
  } else {
    for (const std::uint32_t c : comms_[transfer.comm].layout->classes) check(c);
  }
  return over;
}

/// Divides the links anew among the active transfers.
void Engine::share(std::int64_t t) {
  if (active_.size() == 1) {
    set_speed(active_[0], 1, t);
    return;
  }
  solver_.begin(capacity_);
  for (const std::uint32_t index : active_) {
    const Transfer& transfer = transfers_[index];
    uses_.clear();
    for_members(transfer, [&](const Rank& r) {
      for (std::uint32_t l = 0; l < kLinkCount; ++l) {
        if (transfer.cost->weight[l] > 0)
          uses_.push_back({r.index * kLinkCount + l, transfer.cost->weight[l]});
      }
    });
    solver_.add_flow(transfer.cost->rate.per_second, uses_);
  }
  const std::span<const double> rates = solver_.solve();
  for (std::size_t i = 0; i < active_.size(); ++i) {
    const double full = transfers_[active_[i]].cost->rate.per_second;
    set_speed(active_[i], full > 0 ? std::max(rates[i] / full, 1e-9) : 1, t);
  }
}

void Engine::set_speed(std::uint32_t index, double speed, std::int64_t t) {
  Transfer& transfer = transfers_[index];
  if (speed > 1 - 1e-9) speed = 1;
  if (speed == transfer.speed) return;
  throttled_ += (speed != 1 ? 1 : 0) - (transfer.speed != 1 ? 1 : 0);
  retime(index, speed, transfer.pace, t);
}

/// From `t` on the transfer runs at another speed.
void Engine::retime(std::uint32_t index, double speed, double pace, std::int64_t t) {
  Transfer& transfer = transfers_[index];
  const double done = static_cast<double>(t - transfer.updated) * transfer.speed * transfer.pace;
  transfer.left = std::max(0.0, transfer.left - done);
  transfer.updated = t;
  transfer.speed = speed;
  transfer.pace = pace;
  tree_.set(index, t + static_cast<std::int64_t>(transfer.left / (speed * pace) + 0.5));
}

/// Kernels of the GPU take memory bandwidth and multiprocessors from its transfers, as long as any
/// runs.
void Engine::kernels_began(Rank& r) {
  for (const std::uint32_t index : r.slowed) {
    Transfer& transfer = transfers_[index];
    if (transfer.busy++ == 0)
      retime(index, transfer.speed, 1 / (1 + transfer.cost->slowdown), now_);
  }
}

void Engine::kernels_ended(Rank& r) {
  for (const std::uint32_t index : r.slowed) {
    Transfer& transfer = transfers_[index];
    if (--transfer.busy == 0) retime(index, transfer.speed, 1, now_);
  }
}

/// A transfer begins (1) or ceases (-1) to slow down the kernels of its GPUs.
void Engine::interfere(const Transfer& transfer, int change, std::int64_t t) {
  const double cost = transfer.cost->interference;
  if (cost == 0) return;
  for_members(transfer, [&](Rank& r) {
    r.transfers += static_cast<std::uint32_t>(change);
    r.transfers_cost += change * cost;
    if (r.transfers == 0) r.transfers_cost = 0;
    set_stretch(r, t);
  });
}

}  // namespace foreshard::sim
