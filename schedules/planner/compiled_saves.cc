#include "schedules/planner/compiled_saves.h"

#include <algorithm>
#include <span>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "schedules/planner/compiled_ops.h"
#include "schedules/planner/compiled_runs.h"

namespace foreshard {
namespace {

bool is_value(BufferCategory c) {
  return c == BufferCategory::kActivation || c == BufferCategory::kRecomputedActivation ||
         c == BufferCategory::kForwardTemporary;
}

class Saver {
 public:
  Saver(RankProgram& p, const std::vector<std::string>& blocks)
      : p_(p), buffers_(p.buffers.size()), runs_(p, blocks) {}

  void run() {
    for (BlockRun& r : runs_.runs()) choose(r);
    for (const std::uint32_t l : runs_.backward()) take_from_saved(p_.launches[l]);
    move_frees();
  }

 private:
  void choose(BlockRun& r) {
    const auto needed = [](const JointValue& v) { return v.read_backward; };
    if (std::none_of(r.graph.begin(), r.graph.end(), needed)) return;
    if (chosen_.empty() || r.graph != graph_) {  // Blocks are mostly equal.
      graph_ = r.graph;
      chosen_ = saved_values(graph_);
    }
    const std::vector<bool>& saved = chosen_;
    for (std::uint32_t v = 0; v < r.graph.size(); ++v) {
      if (r.buffer[v] == kNoBuffer && saved[v]) give_buffer(r, v);
      if (r.graph[v].read_backward && !saved[v]) {
        std::vector<bool> seen(r.graph.size());
        add_saved_sources(r, saved, v, seen, sources_[r.buffer[v]]);
      }
    }
  }

  /// The kernel that makes the value leaves it in memory, too.
  void give_buffer(BlockRun& r, std::uint32_t v) {
    Launch& l = p_.launches[r.maker[v]];
    const std::vector<TensorId> before(operands_of(p_, l).begin(), operands_of(p_, l).end());
    const Tensor& y = p_.tensors[before[l.inputs].value];
    Buffer buffer = p_.buffers[y.buffer.value];
    buffer.bytes = Bytes(r.graph[v].bytes);
    Tensor t;
    t.dtype = y.dtype;
    t.rank = 1;
    t.shape[0] = r.graph[v].bytes / size_of(y.dtype);
    t.stride[0] = 1;
    t.buffer = BufferId(r.buffer[v] = static_cast<std::uint32_t>(p_.buffers.size()));
    p_.buffers.push_back(buffer);
    r.view[v] = TensorId(static_cast<std::uint32_t>(p_.tensors.size()));
    p_.tensors.push_back(t);
    claims_[r.maker[v]].push_back(r.buffer[v]);
    l.op = OpKind::kFusedBlock;
    l.attributes = 0;
    l.dims = {};
    l.written = l.written + buffer.bytes;
    ++l.outputs;
    l.first_operand = static_cast<std::uint32_t>(p_.operands.size());
    p_.operands.insert(p_.operands.end(), before.begin(), before.end());
    p_.operands.push_back(r.view[v]);
  }

  /// Views of the saved values that a value is made of again. Parameters are left out: gathered
  /// ones are others in backward, and those of generated kernels are vectors.
  void add_saved_sources(const BlockRun& r, const std::vector<bool>& saved, std::uint32_t v,
                         std::vector<bool>& seen, std::vector<TensorId>& out) const {
    for (const std::uint32_t s : r.made_of[v]) {
      if (seen[s]) continue;
      seen[s] = true;
      if (!saved[s])
        add_saved_sources(r, saved, s, seen, out);
      else if (!r.graph[s].free_to_save)
        out.push_back(r.view[s]);
    }
  }

  /// A kernel of backward that reads values not saved makes them again of those saved.
  void take_from_saved(Launch& l) {
    std::vector<TensorId> inputs;
    bool changed = false;
    const std::span<const TensorId> all = operands_of(p_, l);
    const auto add = [&](TensorId t) {
      if (std::find(inputs.begin(), inputs.end(), t) != inputs.end()) return false;
      inputs.push_back(t);
      return true;
    };
    for (const TensorId t : all.first(l.inputs)) {
      const auto buffer = buffer_of(p_, t);
      const auto sources = buffer ? sources_.find(*buffer) : sources_.end();
      if (sources == sources_.end()) {
        inputs.push_back(t);
        continue;
      }
      if (!compiler_generates(l.op))
        throw InternalError("a compiled block's value is read that was not saved");
      changed = true;
      l.read = l.read - std::min(l.read, bytes_of(p_, t));
      for (const TensorId s : sources->second)
        if (add(s)) l.read = l.read + bytes_of(p_, s);
    }
    if (!changed) return;
    const std::vector<TensorId> outputs(all.begin() + l.inputs, all.end());
    l.op = OpKind::kFusedBlock;
    l.attributes = 0;
    l.dims = {};
    l.inputs = static_cast<std::uint32_t>(inputs.size());
    l.first_operand = static_cast<std::uint32_t>(p_.operands.size());
    p_.operands.insert(p_.operands.end(), inputs.begin(), inputs.end());
    p_.operands.insert(p_.operands.end(), outputs.begin(), outputs.end());
  }

  /// Where the compiled code drops a buffer: after its last use, at `end`; outputs of a block live
  /// as long as the Python that took them holds them. `free`: where it was returned.
  std::uint32_t drop_at(std::uint32_t buffer, std::uint32_t free, std::uint32_t end) const {
    if (runs_.touched(buffer)) return std::max(free, end);
    const bool value = runs_.made(buffer) && is_value(p_.buffers[buffer].category);
    const bool temporary = runs_.made_in_backward(buffer);
    if (value && (runs_.held(buffer) || !runs_.read_outside(buffer))) return end;
    if (temporary && !runs_.read_outside(buffer)) return end;
    return std::max(free, end);
  }

  /// A buffer returned behind instruction `at`.
  struct Drop {
    std::uint32_t at = 0;
    Instruction free;
  };

  /// By place, the old ones at one place in their order, new buffers last; takes the old ones off.
  std::vector<Drop> drops(std::vector<bool>& moved) const {
    std::vector<std::uint32_t> last(p_.buffers.size(), UINT32_MAX);
    for (std::uint32_t i = 0; i < p_.instructions.size(); ++i) {
      if (p_.instructions[i].kind != InstructionKind::kLaunch) continue;
      for (const TensorId t : operands_of(p_, p_.launches[p_.instructions[i].id]))
        if (const auto b = buffer_of(p_, t)) last[*b] = i;
    }
    std::vector<Drop> result;
    for (std::uint32_t i = 0; i < p_.instructions.size(); ++i) {
      const Instruction& in = p_.instructions[i];
      if (in.kind != InstructionKind::kFree || last[in.id] == UINT32_MAX) continue;
      const std::uint32_t at = drop_at(in.id, i, last[in.id]);
      if (at == i) continue;
      moved[i] = true;
      result.push_back({at, in});
    }
    for (std::size_t b = buffers_; b < p_.buffers.size(); ++b)
      result.push_back({last[b], {InstructionKind::kFree, 0, 0, static_cast<std::uint32_t>(b)}});
    std::stable_sort(result.begin(), result.end(),
                     [](const Drop& a, const Drop& b) { return a.at < b.at; });
    return result;
  }

  void move_frees() {
    std::vector<bool> moved(p_.instructions.size());
    const std::vector<Drop> dropped = drops(moved);
    auto drop = dropped.begin();
    const std::vector<Instruction> old = std::move(p_.instructions);
    p_.instructions.clear();
    p_.instructions.reserve(old.size() + p_.buffers.size());
    std::vector<std::uint32_t> index(old.size() + 1);
    for (std::uint32_t i = 0; i < old.size(); ++i) {
      index[i] = static_cast<std::uint32_t>(p_.instructions.size());
      if (old[i].kind == InstructionKind::kLaunch) claim_for(old[i].id);
      if (!moved[i]) p_.instructions.push_back(old[i]);
      for (; drop != dropped.end() && drop->at == i; ++drop) p_.instructions.push_back(drop->free);
    }
    index[old.size()] = static_cast<std::uint32_t>(p_.instructions.size());
    const auto move = [&](Segment& s) { s = {index[s.begin], index[s.end]}; };
    move(p_.init);
    for (Segment& s : p_.steps) move(s);
  }

  void claim_for(std::uint32_t launch) {
    const auto it = claims_.find(launch);
    if (it == claims_.end()) return;
    for (const std::uint32_t b : it->second)
      p_.instructions.push_back({InstructionKind::kAlloc, 0, 0, b});
  }

  RankProgram& p_;
  std::size_t buffers_;  ///< Of the eager program.
  CompiledRuns runs_;
  JointGraph graph_;  ///< Of the block before, and what is saved of it.
  std::vector<bool> chosen_;
  std::unordered_map<std::uint32_t, std::vector<TensorId>> sources_;      ///< Of values made again.
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> claims_;  ///< Launch -> buffers.
};

}  // namespace

void keep_compiled_saves(RankProgram& program, const std::vector<std::string>& blocks) {
  Saver(program, blocks).run();
}

}  // namespace foreshard
