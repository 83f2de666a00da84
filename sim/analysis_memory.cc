#include <algorithm>
#include <map>

#include "sim/analysis.h"

namespace foreshard::sim {
namespace {

/// Calls `visit(instruction index)` for everything that ran up to and including `end`, and
/// `carry()` before each repetition of the last step.
template <typename Visit, typename CarryOver>
void replay(const RankProgram& program, Moment end, Visit&& visit, CarryOver&& carry) {
  const auto run = [&](const Segment& segment, bool last) {
    for (std::uint32_t i = segment.begin; i < segment.end; ++i) {
      visit(i);
      if (last && i == end.instruction) return;
    }
  };
  run(program.init, end.step < 0);
  const auto written = static_cast<std::int32_t>(program.steps.size());
  for (std::int32_t step = 0; step <= end.step; ++step) {
    if (step >= written) carry();
    run(program.steps[static_cast<std::size_t>(std::min(step, written - 1))], step == end.step);
  }
}

Place place_of(const RankProgram& program, std::int64_t rank, Moment moment) {
  Place place;
  place.rank = rank;
  place.step = moment.step;
  place.instruction = moment.instruction;
  if (moment.instruction == UINT32_MAX) return place;
  const auto written = static_cast<std::int32_t>(program.steps.size());
  const Segment segment =
      moment.step < 0 ? program.init
                      : program.steps[static_cast<std::size_t>(std::min(moment.step, written - 1))];
  if (moment.step < 0) place.phase = Phase::kInit;
  std::vector<const Mark*> open;
  for (std::uint32_t i = segment.begin; i < segment.end && i <= moment.instruction; ++i) {
    const Instruction& in = program.instructions[i];
    if (in.kind != InstructionKind::kMark) continue;
    const Mark& mark = program.marks[in.id];
    if (mark.begin) {
      open.push_back(&mark);
    } else {
      for (std::size_t k = open.size(); k > 0; --k) {
        if (open[k - 1]->kind == mark.kind) {
          open.erase(open.begin() + static_cast<std::ptrdiff_t>(k - 1));
          break;
        }
      }
    }
  }
  for (const Mark* mark : open) {
    if (mark->kind == MarkKind::kPhase) place.phase = mark->phase;
    if (mark->kind == MarkKind::kRecompute) place.phase = Phase::kRecompute;
    if (mark->scope.value < program.scopes.size()) place.module = program.scopes[mark->scope.value];
    if (mark->unit.value < program.units.size()) place.unit = program.units[mark->unit.value].name;
  }
  // Plans for simulation carry no marks of modules: the buffer allocated then knows who asked for
  // it.
  const Instruction& last = program.instructions[moment.instruction];
  if (last.kind == InstructionKind::kAlloc) {
    const Buffer& buffer = program.buffers[last.id];
    if (place.module.empty() && buffer.scope.value < program.scopes.size())
      place.module = program.scopes[buffer.scope.value];
    if (place.unit.empty() && buffer.unit.value < program.units.size())
      place.unit = program.units[buffer.unit.value].name;
  }
  return place;
}

std::vector<bool> live_at(const RankProgram& program, Moment moment) {
  std::vector<bool> live(program.buffers.size(), false);
  replay(
      program, moment,
      [&](std::uint32_t i) {
        const Instruction& in = program.instructions[i];
        if (in.kind == InstructionKind::kAlloc) live[in.id] = true;
        if (in.kind == InstructionKind::kFree) live[in.id] = false;
      },
      [&] {
        std::vector<bool> carried;
        for (const Carry& c : program.carries) carried.push_back(live[c.now.value]);
        for (const Carry& c : program.carries) live[c.now.value] = false;
        for (std::size_t k = 0; k < carried.size(); ++k)
          live[program.carries[k].before.value] = carried[k];
      });
  return live;
}

/// "model.layers.3" of "model.layers.3.mlp.up_proj": the path up to the first number; all of it if
/// there is none.
std::string block_of(const std::string& module) {
  std::size_t begin = 0;
  while (begin < module.size()) {
    const std::size_t end = std::min(module.find('.', begin), module.size());
    const bool number =
        end > begin && std::all_of(module.begin() + static_cast<std::ptrdiff_t>(begin),
                                   module.begin() + static_cast<std::ptrdiff_t>(end),
                                   [](char c) { return c >= '0' && c <= '9'; });
    if (number) return module.substr(0, end);
    begin = end + 1;
  }
  return module;
}

/// Live device bytes by category and owner, largest first. `key_of` numbers the owner of a buffer,
/// `name_of_key` names it.
template <typename KeyOf, typename NameOf>
std::vector<Owner> owners_of(const RankProgram& program, const MemoryLedger& ledger,
                             const std::vector<bool>& live, KeyOf key_of, NameOf name_of_key) {
  std::map<std::pair<int, std::uint64_t>, std::int64_t> by_key;
  for (std::uint32_t b = 0; b < live.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (!live[b] || buffer.space != MemorySpace::kDevice) continue;
    by_key[{static_cast<int>(buffer.category), key_of(buffer)}] += ledger.block_bytes(b).value;
  }
  std::map<std::pair<int, std::string>, std::int64_t> bytes;
  for (const auto& [key, n] : by_key) bytes[{key.first, name_of_key(key.second)}] += n;
  std::vector<Owner> owners;
  for (const auto& [key, n] : bytes)
    owners.push_back({static_cast<BufferCategory>(key.first), key.second, Bytes(n)});
  std::stable_sort(owners.begin(), owners.end(),
                   [](const Owner& a, const Owner& b) { return a.bytes > b.bytes; });
  return owners;
}

void find_owners(const RankProgram& program, const MemoryLedger& ledger, Moment moment,
                 MemoryResult& m) {
  const std::vector<bool> live = live_at(program, moment);
  const auto unit_name = [&](std::uint64_t unit) {
    return unit < program.units.size() ? program.units[unit].name : std::string();
  };
  m.owners = owners_of(
      program, ledger, live, [](const Buffer& b) { return std::uint64_t{b.unit.value}; },
      unit_name);
  // Unit and module that made the buffer, in one number.
  m.owners_by_module = owners_of(
      program, ledger, live,
      [](const Buffer& b) { return std::uint64_t{b.unit.value} << 32 | b.scope.value; },
      [&](std::uint64_t key) {
        const std::string owner = unit_name(key >> 32);
        const auto scope = static_cast<std::uint32_t>(key);
        return !owner.empty() || scope >= program.scopes.size() ? owner
                                                                : block_of(program.scopes[scope]);
      });
}

std::optional<OutOfMemoryReport> failure_of(const RankProgram& program, const MemoryLedger& ledger,
                                            std::int64_t rank) {
  if (ledger.failures().empty()) return std::nullopt;
  const MemoryLedger::Failure& f = ledger.failures().front();
  OutOfMemoryReport report;
  report.text = f.report.text();
  report.requested = f.report.requested;
  report.allocated = f.report.allocated;
  report.reserved = f.report.reserved;
  report.capacity = f.report.capacity;
  report.category = program.buffers[f.buffer].category;
  report.at = place_of(program, rank, f.at);
  return report;
}

/// Host memory of a node whose ranks are those that need most: no node holds more.
Bytes fullest_node(const Run& run, std::int64_t ranks_per_node) {
  std::vector<std::pair<Bytes, std::int64_t>> needs;  // Of each class of ranks.
  for (std::uint32_t c = 0; c < run.output.ranks.size(); ++c)
    if (run.output.ranks[c].ledger)
      needs.emplace_back(run.output.ranks[c].ledger->host_peak(), run.layout.classes[c].count);
  std::sort(needs.rbegin(), needs.rend());
  Bytes sum;
  for (const auto& [each, ranks] : needs) {
    const std::int64_t here = std::min(ranks, ranks_per_node);
    sum += each * here;
    ranks_per_node -= here;
  }
  return sum;
}

}  // namespace

void explain_memory(const Run& run, const DeviceMemory& device, SimulationResult& result) {
  std::uint32_t worst = kNone;
  const auto worse = [&](std::uint32_t a, std::uint32_t b) {
    const MemoryLedger &x = *run.output.ranks[a].ledger, &y = *run.output.ranks[b].ledger;
    if (x.failures().empty() != y.failures().empty()) return y.failures().empty();
    return std::pair(x.reserved_peak(), x.allocated_peak()) >
           std::pair(y.reserved_peak(), y.allocated_peak());
  };
  for (std::uint32_t c = 0; c < run.output.ranks.size(); ++c) {
    const RankRecord& rank = run.output.ranks[c];
    result.step_memory.insert(result.step_memory.end(), rank.step_memory.begin(),
                              rank.step_memory.end());
    if (rank.ledger && (worst == kNone || worse(c, worst))) worst = c;
  }
  if (worst == kNone) return;
  const RankRecord& rank = run.output.ranks[worst];
  const MemoryLedger& ledger = *rank.ledger;
  const RankProgram& program = *run.timing(worst).program;
  MemoryResult& m = result.memory;
  m.simulated = true;
  m.rank = run.layout.classes[worst].rank;
  m.allocated_peak = ledger.allocated_peak();
  m.reserved_peak = ledger.reserved_peak();
  m.context = device.context;
  m.communicators = communicator_memory(program, run.schedule.groups.size(), device);
  m.device_peak = m.reserved_peak + m.context + m.communicators;
  m.capacity = run.options.device_memory.value_or(device.capacity);
  m.host_peak = ledger.host_peak();
  for (const RankRecord& each : run.output.ranks) {
    m.retries_total = std::max(m.retries_total, each.retries);
    if (!each.step_memory.empty()) m.retries = std::max(m.retries, each.step_memory.back().retries);
  }
  m.fits_device = ledger.failures().empty();
  m.host_node_peak = fullest_node(run, device.ranks_per_node);
  m.host_capacity = device.host_capacity;
  m.fits = m.fits_device && m.fits_host();
  m.out_of_memory = failure_of(program, ledger, m.rank);
  m.peak_at = place_of(program, m.rank, ledger.peak_at());
  if (run.options.detail != Detail::kTimesOnly) find_owners(program, ledger, ledger.peak_at(), m);
}

}  // namespace foreshard::sim
