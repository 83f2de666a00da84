#include "report/trace_document.h"

#include <map>
#include <unordered_map>

#include "schedules/text.h"

namespace foreshard {
namespace {

Bytes bytes_of(const RankProgram& p, const Instruction& i) {
  switch (i.kind) {
    case InstructionKind::kAlloc:
    case InstructionKind::kFree:
      return p.buffers[i.id].bytes;
    case InstructionKind::kCollective:
      return p.collectives[i.id].bytes;
    case InstructionKind::kCopy:
      return p.copies[i.id].bytes;
    default:
      return Bytes(0);
  }
}

StreamIndex stream_of(const RankProgram& p, const Instruction& i) {
  switch (i.kind) {
    case InstructionKind::kAlloc:
    case InstructionKind::kFree:
      return p.buffers[i.id].pool;
    case InstructionKind::kLaunch:
      return p.launches[i.id].stream;
    case InstructionKind::kCollective:
      return p.collectives[i.id].stream;
    case InstructionKind::kCopy:
      return p.copies[i.id].stream;
    default:
      return i.stream;
  }
}

/// Follows gathers through events to the first launch behind a wait for them.
class FirstUses {
 public:
  explicit FirstUses(const RankProgram& p)
      : p_(p), done_(p.streams.size()), behind_event_(p.events), waiting_(p.streams.size()) {}

  std::vector<ProgramLabels::Use> find() {
    for (std::uint32_t at = 0; at < p_.instructions.size(); ++at) step(at);
    return std::move(uses_);
  }

 private:
  void step(std::uint32_t at) {
    const Instruction& i = p_.instructions[at];
    using K = InstructionKind;
    if (i.kind == K::kCollective && p_.collectives[i.id].kind == CollectiveKind::kAllGather)
      done_[p_.collectives[i.id].stream].push_back(at);
    if (i.kind == K::kRecordEvent) {
      if (!done_[i.stream].empty()) behind_event_[i.id] = std::move(done_[i.stream]);
      done_[i.stream].clear();
    }
    if (i.kind == K::kWaitEvent) {
      auto& gathers = behind_event_[i.id];
      waiting_[i.stream].insert(waiting_[i.stream].end(), gathers.begin(), gathers.end());
      gathers.clear();
    }
    if (i.kind == K::kLaunch) {
      for (const std::uint32_t gather : waiting_[p_.launches[i.id].stream])
        uses_.push_back({gather, at});
      waiting_[p_.launches[i.id].stream].clear();
    }
  }

  const RankProgram& p_;
  std::vector<std::vector<std::uint32_t>> done_, behind_event_, waiting_;
  std::vector<ProgramLabels::Use> uses_;
};

ProgramLabels label(const RankProgram& p) {
  ProgramLabels out;
  for (const Stream& s : p.streams) out.streams.push_back(s.name);
  std::unordered_map<std::string, std::uint32_t> known;  // Only looked up, never walked.
  for (const Instruction& i : p.instructions) {
    std::string title = i.kind == InstructionKind::kAlloc || i.kind == InstructionKind::kFree
                            ? std::string(i.kind == InstructionKind::kAlloc ? "alloc " : "free ") +
                                  std::string(name_of(p.buffers[i.id].category))
                            : title_of(p, i);
    const auto [it, fresh] =
        known.emplace(std::move(title), static_cast<std::uint32_t>(out.titles.size()));
    if (fresh) out.titles.push_back(it->first);
    out.instructions.push_back({i.kind, it->second, bytes_of(p, i), stream_of(p, i)});
  }
  out.first_uses = FirstUses(p).find();
  return out;
}

}  // namespace

TraceDocument make_trace_document(const Schedule& schedule, Trace trace) {
  TraceDocument out;
  out.trace = std::move(trace);
  out.program_of_rank = schedule.program_of_rank;
  for (const RankProgram& p : schedule.programs) out.programs.push_back(label(p));
  return out;
}

}  // namespace foreshard
