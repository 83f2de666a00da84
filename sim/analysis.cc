#include "sim/analysis.h"

#include <algorithm>
#include <compare>
#include <map>
#include <span>

#include "sim/causes.h"

namespace foreshard::sim {
namespace {

class TimeExplanation {
 public:
  TimeExplanation(const Run& run, const Window& window, SimulationResult& result)
      : run_(run), window_(window), result_(result), rank_(run.output.ranks[window.rank_class]) {}

  void explain() {
    tally_transfers();
    divide_step();
    follow_critical_path();
  }

 private:
  const Instruction& instruction(std::uint32_t rank_class, std::uint32_t i) const {
    return run_.timing(rank_class).program->instructions[i];
  }

  CommunicationRow& communication_row(const Collective& c, Link bottleneck) {
    const auto key = std::pair{static_cast<int>(c.kind), c.group.value};
    const auto [it, added] = row_of_.try_emplace(key, result_.communication.size());
    if (added) {
      const Group& group = run_.schedule.groups[c.group.value];
      CommunicationRow row;
      row.kind = c.kind;
      row.group = group.name;
      row.group_size = group.size;
      row.bottleneck = bottleneck;
      result_.communication.push_back(row);
    }
    return result_.communication[it->second];
  }

  CopyRow& copy_row(const Copy& c) {
    for (CopyRow& row : result_.copies) {
      if (row.direction == c.direction) return row;
    }
    result_.copies.push_back({});
    result_.copies.back().direction = c.direction;
    return result_.copies.back();
  }

  void tally_transfers() {
    const ProgramTiming& timing = run_.timing(window_.rank_class);
    const CollectiveTable& collectives = *run_.collectives[window_.rank_class];
    for (const OpRecord& op : rank_.ops) {
      if (op.step != window_.step) continue;
      const Instruction& in = instruction(window_.rank_class, op.instruction);
      const Time time(op.end - op.start);
      if (in.kind == InstructionKind::kCollective) {
        const Collective& c = timing.program->collectives[in.id];
        CommunicationRow& row = communication_row(c, collectives[in.id].bottleneck);
        ++row.count;
        row.bytes += c.bytes;
        row.busy += time;
        row.stretched += std::max(Time(0), time - collectives[in.id].device);
      } else if (in.kind == InstructionKind::kCopy) {
        CopyRow& row = copy_row(timing.program->copies[in.id]);
        ++row.count;
        row.bytes += timing.program->copies[in.id].bytes;
        row.busy += time;
      }
    }
  }

  /// Divides the window by what the compute stream did; the pauses by what ended them.
  void divide_step() {
    std::int64_t now = window_.start;
    for (const OpRecord& op : rank_.ops) {
      if (op.stream != 0 || op.end <= now) continue;
      if (op.start >= window_.end) break;
      if (op.start > now) {
        pause(now, op.start, op.cause);
        now = op.start;
      }
      busy(op, now, std::min(op.end, window_.end));
      now = std::min(op.end, window_.end);
    }
    if (now < window_.end) {
      const RankRecord::StepEnd& end = rank_.steps[static_cast<std::size_t>(window_.step)];
      if (end.end < window_.end) {
        result_.breakdown.idle += Time(window_.end - std::max(now, end.end));
      }
      if (now < end.end) pause(now, std::min(end.end, window_.end), end.cause);
    }
  }

  void busy(const OpRecord& op, std::int64_t from, std::int64_t to) {
    Breakdown& b = result_.breakdown;
    const Time time(to - from);
    const Instruction& in = instruction(window_.rank_class, op.instruction);
    if (in.kind != InstructionKind::kLaunch) {
      exposed(in, time);
      return;
    }
    const ProgramTiming& timing = run_.timing(window_.rank_class);
    (is_update(timing.program->launches[in.id].phase) ? b.optimizer : b.compute) += time;
    if (run_.options.variation.none()) {
      b.interference += std::max(Time(0), time - Time(timing.launch(in.id).device));
    }
  }

  static bool is_update(Phase p) {
    return p == Phase::kOptimizer || p == Phase::kClip || p == Phase::kZeroGrad;
  }

  /// The compute stream had nothing to do because of this operation: a kernel of the CPU is the
  /// optimizer's or the host's time.
  void waited_for(const Instruction& in, Time time) {
    const RankProgram& program = *run_.timing(window_.rank_class).program;
    if (in.kind != InstructionKind::kLaunch ||
        !program.streams[program.launches[in.id].stream].on_host)
      return exposed(in, time);
    Breakdown& b = result_.breakdown;
    (is_update(program.launches[in.id].phase) ? b.optimizer : b.exposed_host) += time;
  }

  void exposed(const Instruction& in, Time time) {
    result_.breakdown.exposed_communication += time;
    const RankProgram& program = *run_.timing(window_.rank_class).program;
    if (in.kind == InstructionKind::kCollective) {
      const CollectiveTable& collectives = *run_.collectives[window_.rank_class];
      communication_row(program.collectives[in.id], collectives[in.id].bottleneck).exposed += time;
    } else if (in.kind == InstructionKind::kCopy) {
      copy_row(program.copies[in.id]).exposed += time;
    }
  }

  void pause(std::int64_t from, std::int64_t to, Cause cause) {
    Breakdown& b = result_.breakdown;
    walk_back(run_.output, from, to, cause, [&](const CausePiece& piece) {
      const Time time(piece.end - piece.start);
      switch (piece.kind) {
        case CausePiece::Kind::kOperation:
          if (piece.rank_class == window_.rank_class) {
            waited_for(instruction(piece.rank_class, piece.instruction), time);
          } else {
            b.idle += time;
          }
          break;
        case CausePiece::Kind::kHost:
        case CausePiece::Kind::kAllocator:
          (piece.rank_class == window_.rank_class ? b.exposed_host : b.idle) += time;
          break;
        case CausePiece::Kind::kUnknown:
          b.idle += time;
          break;
      }
    });
  }

  CriticalResource resource_of(const CausePiece& piece) const {
    using Kind = CriticalResource::Kind;
    switch (piece.kind) {
      case CausePiece::Kind::kHost:
        return {.kind = Kind::kHost};
      case CausePiece::Kind::kAllocator:
        return {.kind = Kind::kAllocator};
      case CausePiece::Kind::kUnknown:
        return {.kind = Kind::kIdle};
      case CausePiece::Kind::kOperation:
        break;
    }
    const Instruction& in = instruction(piece.rank_class, piece.instruction);
    const ProgramTiming& timing = run_.timing(piece.rank_class);
    if (in.kind == InstructionKind::kLaunch)
      return {.kind = Kind::kKernel, .kernel = timing.launch(in.id).kernel_class};
    if (in.kind == InstructionKind::kCopy)
      return {.kind = Kind::kCopy, .copy = timing.program->copies[in.id].direction};
    return {.kind = Kind::kCollective,
            .collective = timing.program->collectives[in.id].kind,
            .link = (*run_.collectives[piece.rank_class])[in.id].bottleneck};
  }

  void follow_critical_path() {
    const RankRecord::StepEnd& end = rank_.steps[static_cast<std::size_t>(window_.step)];
    std::map<CriticalResource, std::uint32_t> index;
    std::vector<CriticalPathSegment> segments;
    walk_back(run_.output, window_.start, window_.end, end.cause, [&](const CausePiece& piece) {
      const auto [it, added] = index.try_emplace(
          resource_of(piece), static_cast<std::uint32_t>(result_.critical_path.size()));
      if (added) result_.critical_path.push_back({it->first, Time(0)});
      result_.critical_path[it->second].time += Time(piece.end - piece.start);
      segments.push_back({it->second, run_.layout.classes[piece.rank_class].rank, piece.instruction,
                          Time(piece.start), Time(piece.end)});
    });
    std::reverse(segments.begin(), segments.end());
    sort_path(segments);
    result_.critical_segments = std::move(segments);
  }

  /// Largest resource first; ties by name.
  void sort_path(std::vector<CriticalPathSegment>& segments) {
    std::vector<std::uint32_t> order(result_.critical_path.size()), place(order.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      const CriticalPathRow &x = result_.critical_path[a], &y = result_.critical_path[b];
      return x.time != y.time ? x.time > y.time : name_of(x.resource) < name_of(y.resource);
    });
    std::vector<CriticalPathRow> sorted;
    for (std::uint32_t i = 0; i < order.size(); ++i) {
      place[order[i]] = i;
      sorted.push_back(std::move(result_.critical_path[order[i]]));
    }
    result_.critical_path = std::move(sorted);
    for (CriticalPathSegment& s : segments) s.resource = place[s.resource];
  }

  const Run& run_;
  const Window& window_;
  SimulationResult& result_;
  const RankRecord& rank_;
  std::map<std::pair<int, std::uint32_t>, std::size_t> row_of_;
};

}  // namespace

void explain_time(const Run& run, const Window& window, SimulationResult& result) {
  TimeExplanation(run, window, result).explain();
}

namespace {

/// What the streams did, one after the other; times as they are in the record.
std::vector<std::vector<Span>> stream_lanes(const RankRecord& rank, std::int32_t number) {
  std::vector<std::size_t> length;
  for (const OpRecord& op : rank.ops) {
    if (length.size() <= op.stream) length.resize(op.stream + 1u);
    ++length[op.stream];
  }
  std::vector<std::vector<Span>> lanes(length.size());
  for (std::size_t l = 0; l < lanes.size(); ++l) lanes[l].reserve(length[l]);
  for (const OpRecord& op : rank.ops) {
    if (op.step < 0) continue;
    lanes[op.stream].push_back(
        {number, Lane::kStream, op.stream, op.instruction, op.step, Time(op.start), Time(op.end)});
  }
  return lanes;
}

/// Spans of one rank in the order of a Trace: host and streams are ordered in themselves and need
/// only merging; of equal ones the lane that comes first.
void append_spans(const RankRecord& rank, std::int32_t number, std::vector<Span>& out) {
  const std::vector<std::vector<Span>> streams = stream_lanes(rank, number);
  std::vector<std::span<const Span>> rest{rank.host_spans};  // by lane
  rest.insert(rest.end(), streams.begin(), streams.end());
  using Key = std::pair<std::int32_t, Time>;
  const auto key_of = [](std::span<const Span> lane) {
    return lane.empty() ? Key(INT32_MAX, Time(0)) : Key(lane[0].step, lane[0].start);
  };
  std::vector<Key> keys;
  for (const std::span<const Span> lane : rest) keys.push_back(key_of(lane));
  for (;;) {
    std::size_t next = 0;
    for (std::size_t l = 1; l < keys.size(); ++l)
      if (keys[l] < keys[next]) next = l;
    if (keys[next].first == INT32_MAX) return;
    out.push_back(rest[next][0]);
    out.back().start -= Time(rank.origin);
    out.back().end -= Time(rank.origin);
    rest[next] = rest[next].subspan(1);
    keys[next] = key_of(rest[next]);
  }
}

}  // namespace

Trace make_trace(const Run& run) {
  Trace trace;
  trace.timing = Timing::kPredicted;
  trace.model = run.schedule.model;
  trace.description = run.schedule.description;
  trace.world = run.schedule.world;
  std::size_t spans = 0, samples = 0;
  for (const RankRecord& rank : run.output.ranks) {
    spans += rank.host_spans.size() + rank.ops.size();
    samples += rank.memory.size();
  }
  trace.spans.reserve(spans);
  trace.memory.reserve(samples);
  for (std::uint32_t c = 0; c < run.output.ranks.size(); ++c) {
    const RankRecord& rank = run.output.ranks[c];
    append_spans(rank, static_cast<std::int32_t>(run.layout.classes[c].rank), trace.spans);
    for (MemorySample sample : rank.memory) {
      sample.at = sample.step >= 0 ? sample.at - Time(rank.origin) : Time(0);
      trace.memory.push_back(sample);
    }
    if (rank.ledger)
      trace.reuse.push_back({static_cast<std::int32_t>(run.layout.classes[c].rank), rank.reuse});
  }
  return trace;
}

}  // namespace foreshard::sim
