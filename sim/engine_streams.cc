#include <bit>

#include "sim/engine_impl.h"

namespace foreshard::sim {

namespace {
/// Memory counts as crowded beyond this share: rounding must not start the solver.
constexpr double kFullMemory = 1 + 1e-9;
}  // namespace

/// Serves the queue of an idle stream until something takes time or is missing.
void Engine::advance(Rank& r, std::uint32_t stream) {
  Stream& s = r.streams[stream];
  bool moved = false;
  s.state = StreamState::kEmpty;
  while (s.head < s.queue.size()) {
    const Item& item = s.queue[s.head];
    if (item.kind == ItemKind::kLaunch) {
      start_kernel(r, stream, item);
      break;
    }
    if (item.kind == ItemKind::kRecord || item.kind == ItemKind::kStepEnd) {
      Reached& reached = r.reached[item.value];
      const bool host = item.issued > s.ready;
      reached.cause = host ? Cause{r.index, Cause::kHost} : s.cause;
      reached.time = host ? item.issued : s.ready;
      if (item.kind == ItemKind::kStepEnd) s.scale = scale_of(r, ++s.step);
      moved = true;
      ++s.head;
      continue;
    }
    if (item.kind == ItemKind::kWait) {
      const Reached& reached = r.reached[item.value];
      if (reached.time == kNever) {
        s.state = StreamState::kBlockedOnEvent;
        r.blocked |= std::uint64_t{1} << stream;
        break;
      }
      if (reached.time > s.ready) {
        s.ready = reached.time;
        s.cause = reached.cause;
      }
      ++s.head;
      continue;
    }
    if (item.kind == ItemKind::kCopy) {
      start_copy(r, stream, item);
    } else {
      arrive(r, stream, item);
    }
    break;
  }
  if (s.head == s.queue.size()) {
    s.queue.clear();
    s.head = 0;
  }
  if (moved) settle(r);
}

/// After new moments were reached: streams and host that waited for them go on.
void Engine::settle(Rank& r) {
  if (r.blocked != 0) {
    for (std::uint64_t mask = r.blocked; mask != 0; mask &= mask - 1) {
      const auto stream = static_cast<std::uint32_t>(std::countr_zero(mask));
      const std::uint64_t bit = std::uint64_t{1} << stream;
      if ((r.blocked & bit) == 0) continue;
      const Stream& s = r.streams[stream];
      if (r.reached[s.queue[s.head].value].time == kNever) continue;
      r.blocked &= ~bit;
      advance(r, stream);
    }
  }
  if (r.host.wait == HostWait::kMoments) check_host(r);
}

void Engine::start_kernel(Rank& r, std::uint32_t stream, const Item& item) {
  Stream& s = r.streams[stream];
  const bool host = item.issued > s.ready;
  s.start = host ? item.issued : s.ready;
  s.start_cause = host ? Cause{r.index, Cause::kHost} : s.cause;
  s.updated = s.start;
  const std::int64_t device = r.timing->launches[item.value].device;
  double work = static_cast<double>(device);
  if (s.scale != 1) work *= s.scale;
  const Variation& variation = in_.options->variation;
  if (variation.kernel_sigma > 0) {
    work *= random_factor(variation.kernel_sigma, variation.seed,
                          static_cast<std::uint64_t>(s.step) + 1, item.instruction,
                          static_cast<std::uint64_t>(in_.layout->classes[r.index].rank));
  }
  s.left = work;
  s.state = StreamState::kRunning;
  const bool on_host = r.timing->program->streams[stream].on_host;
  const double time = work * (on_host ? 1 : r.stretch);
  tree_.set(stream_entity(r, stream), s.start + static_cast<std::int64_t>(time + 0.5));
  if (on_host) return;
  if (!s.running) {
    s.running = true;
    if (r.busy++ == 0) kernels_began(r);
  }
  const std::uint64_t others = r.kernels;
  r.kernels |= std::uint64_t{1} << stream;
  if (others != 0) meet_kernels(r, stream);
}

/// Kernels of several streams are in sight: those that begin later do so with an event of their
/// own, since the shares of memory bandwidth change then.
void Engine::meet_kernels(Rank& r, std::uint32_t stream) {
  for (std::uint64_t mask = r.kernels; mask != 0; mask &= mask - 1) {
    const auto i = static_cast<std::uint32_t>(std::countr_zero(mask));
    Stream& s = r.streams[i];
    if (s.pending || s.start <= now_) continue;
    s.pending = true;
    tree_.set(stream_entity(r, i), s.start);
  }
  if (!r.streams[stream].pending) share_memory(r, now_);
}

void Engine::serve_kernel(Rank& r, std::uint32_t stream, std::int64_t t) {
  Stream& s = r.streams[stream];
  if (!s.pending) {
    end_kernel(r, stream, t);
    return;
  }
  s.pending = false;
  retime_kernel(r, stream, 1, r.stretch, t);
  share_memory(r, t);
}

void Engine::end_kernel(Rank& r, std::uint32_t stream, std::int64_t t) {
  Stream& s = r.streams[stream];
  const std::uint64_t own = std::uint64_t{1} << stream;
  r.kernels &= ~own;
  s.speed = 1;
  end_operation(r, stream,
                {s.start, t, s.queue[s.head].instruction, s.start_cause, s.step,
                 static_cast<StreamIndex>(stream)});
  if (s.state != StreamState::kRunning) {
    tree_.set(stream_entity(r, stream), kNever);
    if (s.running) {
      s.running = false;
      if (--r.busy == 0) kernels_ended(r);
    }
  }
  if (r.kernels != 0 && (r.kernels & own) == 0) share_memory(r, t);
}

/// The kernels that run on this GPU from `t` on divide its memory bandwidth: max-min fair, none
/// takes more than it does alone.
void Engine::share_memory(Rank& r, std::int64_t t) {
  running_.clear();
  double sum = 0;
  bool slowed = false;
  for (std::uint64_t mask = r.kernels; mask != 0; mask &= mask - 1) {
    const auto stream = static_cast<std::uint32_t>(std::countr_zero(mask));
    const Stream& s = r.streams[stream];
    if (s.pending) continue;
    running_.push_back({stream, r.timing->launches[s.queue[s.head].value].memory_share});
    sum += running_.back().alone;
    slowed = slowed || s.speed != 1;
  }
  const bool crowded = sum > kFullMemory;
  if (!crowded && !slowed) return;
  std::span<const double> rates;
  if (crowded) {
    const double memory = 1;
    const ResourceUse all{0, 1};
    memory_solver_.begin({&memory, 1});
    for (const RunningKernel& k : running_) memory_solver_.add_flow(k.alone, {&all, 1});
    rates = memory_solver_.solve();
  }
  for (std::size_t i = 0; i < running_.size(); ++i) {
    const auto [stream, alone] = running_[i];
    retime_kernel(r, stream, crowded && rates[i] < alone ? rates[i] / alone : 1, r.stretch, t);
  }
}

/// The head of the queue is done: keeps it, lets the stream and a host that waits for room go on.
void Engine::end_operation(Rank& r, std::uint32_t stream, const OpRecord& op) {
  Stream& s = r.streams[stream];
  s.ready = op.end;
  s.cause = {r.index, Cause::kUnknown};
  if (r.record) {
    s.cause.op = static_cast<std::uint32_t>(r.kept.ops.size());
    r.kept.ops.push_back(op);
  }
  ++s.head;
  --r.host.outstanding;
  if (r.host.wait == HostWait::kQueueFull) {
    if (!r.host.due) r.host.wake_cause = s.cause;
    check_host(r);
  }
  advance(r, stream);
}

/// Transfers on this GPU have changed at `t`: running kernels go on at the new speed.
void Engine::set_stretch(Rank& r, std::int64_t t) {
  const double stretch = 1 + (r.transfers == 0 ? 0 : r.transfers_cost);
  if (stretch == r.stretch) return;
  for (std::uint32_t stream = 0; stream < r.streams.size(); ++stream) {
    Stream& s = r.streams[stream];
    if (s.state != StreamState::kRunning || r.timing->program->streams[stream].on_host) continue;
    if (s.pending) continue;
    retime_kernel(r, stream, s.speed, stretch, t);
  }
  r.stretch = stretch;
}

/// From `t` on, or from its start if that is later, the kernel runs at another speed.
void Engine::retime_kernel(Rank& r, std::uint32_t stream, double speed, double stretch,
                           std::int64_t t) {
  Stream& s = r.streams[stream];
  if (t > s.updated) {
    s.left = std::max(0.0, s.left - static_cast<double>(t - s.updated) * s.speed / r.stretch);
    s.updated = t;
  }
  s.speed = speed;
  tree_.set(stream_entity(r, stream),
            s.updated + static_cast<std::int64_t>(s.left * stretch / speed + 0.5));
}

}  // namespace foreshard::sim
