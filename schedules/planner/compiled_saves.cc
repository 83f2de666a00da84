#include "schedules/planner/compiled_saves.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "schedules/planner/compiled_blocks.h"
#include "schedules/planner/compiled_ops.h"
#include "schedules/planner/joint_graph.h"

namespace foreshard {
namespace {

/// Not in the eager program: what a compiler makes of parts of one of its kernels.
constexpr std::uint32_t kNoBuffer = UINT32_MAX;

/// A run of one block's forward, in forward or as recomputation.
struct BlockRun {
  std::int32_t block = -1;
  Phase phase = Phase::kForward;
  JointGraph graph;
  std::vector<std::uint32_t> buffer;              ///< Of each value; kNoBuffer until it has one.
  std::vector<std::uint32_t> maker;               ///< Launch that makes it; of arguments 0.
  std::vector<TensorId> view;                     ///< A tensor that shows the value.
  std::vector<std::vector<std::uint32_t>> made_of;  ///< Earlier values.
  std::unordered_map<std::uint32_t, std::uint32_t> value_of;  ///< By buffer.
};

struct Made {
  std::int32_t run = -1;
  std::uint32_t value = 0;
};

bool is_parameter(BufferCategory c) {
  return c == BufferCategory::kParameter || c == BufferCategory::kUnshardedParameter ||
         c == BufferCategory::kShardedParameter || c == BufferCategory::kPersistent ||
         c == BufferCategory::kGatherOutput;
}

bool is_value(BufferCategory c) {
  return c == BufferCategory::kActivation || c == BufferCategory::kRecomputedActivation ||
         c == BufferCategory::kForwardTemporary;
}

/// Outputs of a kernel in the order in which the compiler's parts of it make them: statistics of a
/// norm and the mask of a dropout come before what is made of them.
bool last_output_first(OpKind op) {
  return op == OpKind::kLayerNorm || op == OpKind::kRmsNorm || op == OpKind::kDropout;
}

class Saver {
 public:
  Saver(RankProgram& p, const std::vector<std::string>& blocks)
      : p_(p),
        blocks_(p, blocks),
        made_(p.buffers.size()),
        touched_(p.buffers.size()),
        held_(p.buffers.size()),
        read_outside_(p.buffers.size()),
        last_run_(blocks.size(), -1) {}

  void run() {
    for (const Instruction& in : p_.instructions) see(in);
    for (BlockRun& r : runs_) choose(r);
    for (const std::uint32_t l : backward_) take_from_saved(p_.launches[l]);
    move_frees();
  }

 private:
  // ------------------------------------------------------------------ reading the program

  void see(const Instruction& in) {
    switch (in.kind) {
      case InstructionKind::kMark:
        return see(p_.marks[in.id]);
      case InstructionKind::kLaunch:
        return see(in.id, p_.launches[in.id]);
      case InstructionKind::kRecordStream:
        touched_[in.id] = true;
        return;
      case InstructionKind::kCollective:
        touch(p_.collectives[in.id].input);
        return touch(p_.collectives[in.id].output);
      case InstructionKind::kCopy:
        touch(p_.copies[in.id].source);
        return touch(p_.copies[in.id].destination);
      default:
        return;
    }
  }

  /// Lifetimes of what others than kernels of the compute stream use stay as they are.
  void touch(TensorId t) {
    if (const auto b = buffer_of(t)) touched_[*b] = true;
  }

  std::optional<std::uint32_t> buffer_of(TensorId t) const {
    if (!t.valid() || !p_.tensors[t.value].buffer.valid()) return std::nullopt;
    return p_.tensors[t.value].buffer.value;
  }

  void see(const Mark& mark) {
    if (mark.kind != MarkKind::kModule) return;
    const std::int32_t block = blocks_.is_block(mark.scope) ? blocks_.of(mark.scope) : -1;
    if (block < 0) return;
    if (!mark.begin) {
      open_ = false;
    } else if (mark.phase == Phase::kForward || mark.phase == Phase::kRecompute) {
      open_ = true;
      last_run_[static_cast<std::size_t>(block)] = static_cast<std::int32_t>(runs_.size());
      runs_.emplace_back();
      runs_.back().block = block;
      runs_.back().phase = mark.phase;
    }
  }

  std::span<const TensorId> operands(const Launch& l) const {
    return std::span<const TensorId>(p_.operands).subspan(l.first_operand, l.inputs + l.outputs);
  }

  void see(std::uint32_t index, const Launch& l) {
    if (l.stream != 0)
      for (const TensorId t : operands(l)) touch(t);
    if (open_ && l.stream == 0 && blocks_.of(l.scope) == runs_.back().block &&
        l.phase == runs_.back().phase) {
      make(index);
    } else {
      read(index, l);
    }
  }

  static std::uint32_t add_value(BlockRun& r, const JointValue& value, std::uint32_t buffer,
                                 TensorId view, std::uint32_t maker) {
    r.graph.push_back(value);
    r.buffer.push_back(buffer);
    r.view.push_back(view);
    r.maker.push_back(maker);
    r.made_of.emplace_back();
    return static_cast<std::uint32_t>(r.graph.size() - 1);
  }

  std::uint32_t add_value(BlockRun& r, TensorId t, JointValue value, std::uint32_t maker) {
    const std::uint32_t buffer = *buffer_of(t);
    value.bytes = bytes_of(t).value;
    value.free_to_save = is_parameter(p_.buffers[buffer].category);
    return r.value_of[buffer] = add_value(r, value, buffer, t, maker);
  }

  /// The value that a kernel of the run reads; one made elsewhere is an argument.
  std::uint32_t argument(BlockRun& r, TensorId t) {
    const auto it = r.value_of.find(*buffer_of(t));
    if (it != r.value_of.end()) return it->second;
    read_by_others(*buffer_of(t));
    JointValue value;
    value.argument = true;
    return add_value(r, t, value, 0);
  }

  void read_by_others(std::uint32_t buffer) {
    read_outside_[buffer] = true;
    const Made& m = made_[buffer];
    if (m.run >= 0) runs_[static_cast<std::size_t>(m.run)].graph[m.value].output = true;
  }

  /// A kernel of a block's forward: its outputs are values made of its inputs.
  void make(std::uint32_t index) {
    const Launch& l = p_.launches[index];
    BlockRun& r = runs_.back();
    const std::span<const TensorId> all = operands(l);
    std::vector<std::uint32_t> sources;
    std::int64_t read_bytes = 0;
    for (const TensorId t : all.first(l.inputs)) {
      if (!buffer_of(t)) continue;
      const std::uint32_t v = argument(r, t);
      if (std::find(sources.begin(), sources.end(), v) != sources.end()) continue;
      sources.push_back(v);
      read_bytes += bytes_of(t).value;
    }
    if (l.op == OpKind::kSoftmax) add_statistics(r, index, sources, read_bytes);
    std::vector<TensorId> outputs(all.begin() + l.inputs, all.end());
    if (last_output_first(l.op)) std::reverse(outputs.begin(), outputs.end());
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      if (!buffer_of(outputs[k])) continue;
      const bool last = k + 1 == outputs.size();
      const std::uint32_t v = write(r, index, outputs[k], last, read_bytes);
      for (const std::uint32_t s : sources)
        if (s < v) connect(r, s, v);
      if (last_output_first(l.op)) sources.push_back(v);
    }
  }

  static void connect(BlockRun& r, std::uint32_t from, std::uint32_t to) {
    std::vector<std::uint32_t>& readers = r.graph[from].readers;
    if (std::find(readers.begin(), readers.end(), to) != readers.end()) return;
    readers.push_back(to);
    r.made_of[to].push_back(from);
  }

  /// A softmax is largest element, sum of exponentials and what is made of them: its statistics are
  /// values of their own.
  void add_statistics(BlockRun& r, std::uint32_t index, std::vector<std::uint32_t>& sources,
                      std::int64_t read_bytes) {
    const Launch& l = p_.launches[index];
    const Tensor& y = p_.tensors[operands(l)[l.inputs].value];
    const double dim = l.attributes > 0 ? p_.attributes[l.first_attribute] : -1;
    const int along = static_cast<int>(dim) + (dim < 0 ? y.rank : 0);
    JointValue value;
    value.bytes = y.numel() / std::max<std::int64_t>(y.shape[static_cast<std::size_t>(along)], 1) *
                  size_of(y.dtype);
    value.read_bytes = read_bytes;
    value.generated = value.may_run_again = true;
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t v = add_value(r, value, kNoBuffer, {}, index);
      for (const std::uint32_t s : sources) connect(r, s, v);
      sources.push_back(v);
    }
  }

  std::uint32_t write(BlockRun& r, std::uint32_t index, TensorId t, bool last,
                      std::int64_t read_bytes) {
    const Launch& l = p_.launches[index];
    const std::uint32_t buffer = *buffer_of(t);
    if (const auto it = r.value_of.find(buffer); it != r.value_of.end()) {
      r.graph[it->second].may_run_again = false;  // Written in parts, or changed in place.
      return it->second;
    }
    JointValue value;
    value.read_bytes = read_bytes;
    value.generated = compiler_generates(l.op) && l.op != OpKind::kCat;
    value.concatenation = l.op == OpKind::kCat;
    value.may_run_again = may_run_again(l.op) && (last || l.op != OpKind::kDropout);
    const std::uint32_t v = add_value(r, t, value, index);
    made_[buffer] = {static_cast<std::int32_t>(runs_.size() - 1), v};
    return v;
  }

  /// A kernel outside of forward runs: of a block's backward, or of anything else.
  void read(std::uint32_t index, const Launch& l) {
    const std::int32_t block = blocks_.of(l.scope);
    const bool backward = block >= 0 && l.phase == Phase::kBackward && l.stream == 0;
    if (backward) backward_.push_back(index);
    for (const TensorId t : operands(l)) {
      const auto buffer = buffer_of(t);
      if (!buffer) continue;
      const Made& m = made_[*buffer];
      if (!backward) {
        read_by_others(*buffer);
        continue;
      }
      if (m.run >= 0 && runs_[static_cast<std::size_t>(m.run)].block == block)
        read_backward(runs_[static_cast<std::size_t>(m.run)], m.value, l);
      else
        read_argument_backward(block, *buffer, l);
      owner(*buffer, block);
    }
  }

  void read_backward(BlockRun& r, std::uint32_t v, const Launch& l) {
    held_[r.buffer[v]] = true;
    r.graph[v].read_backward = true;
    if (!compiler_generates(l.op)) r.graph[v].read_whole = true;
  }

  void read_argument_backward(std::int32_t block, std::uint32_t buffer, const Launch& l) {
    const std::int32_t run = last_run_[static_cast<std::size_t>(block)];
    if (run < 0) return;
    BlockRun& r = runs_[static_cast<std::size_t>(run)];
    const auto it = r.value_of.find(buffer);
    if (it == r.value_of.end()) return;
    held_[buffer] = true;
    r.graph[it->second].read_backward = true;
    if (!compiler_generates(l.op)) r.graph[it->second].read_whole = true;
  }

  /// Temporaries of backward belong to the block that uses them alone.
  void owner(std::uint32_t buffer, std::int32_t block) {
    if (p_.buffers[buffer].category != BufferCategory::kBackwardTemporary) return;
    const auto [it, first] = backward_owner_.try_emplace(buffer, block);
    if (!first && it->second != block) read_outside_[buffer] = true;
  }

  // ------------------------------------------------------------------ choosing

  void choose(BlockRun& r) {
    const auto needed = [](const JointValue& v) { return v.read_backward; };
    if (std::none_of(r.graph.begin(), r.graph.end(), needed)) return;
    const std::vector<bool> saved = saved_values(r.graph);
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
    const std::vector<TensorId> before(operands(l).begin(), operands(l).end());
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

  // ------------------------------------------------------------------ writing the program

  Bytes bytes_of(TensorId t) const {
    const Tensor& x = p_.tensors[t.value];
    return Bytes(x.numel() * size_of(x.dtype));
  }

  /// A kernel of backward that reads values not saved makes them again of those saved.
  void take_from_saved(Launch& l) {
    std::vector<TensorId> inputs;
    bool changed = false;
    const std::span<const TensorId> all = operands(l);
    const auto add = [&](TensorId t) {
      if (std::find(inputs.begin(), inputs.end(), t) != inputs.end()) return false;
      inputs.push_back(t);
      return true;
    };
    for (const TensorId t : all.first(l.inputs)) {
      const auto buffer = buffer_of(t);
      const auto sources = buffer ? sources_.find(*buffer) : sources_.end();
      if (sources == sources_.end()) {
        inputs.push_back(t);
        continue;
      }
      if (!compiler_generates(l.op))
        throw InternalError("a compiled block's value is read that was not saved");
      changed = true;
      l.read = l.read - std::min(l.read, bytes_of(t));
      for (const TensorId s : sources->second)
        if (add(s)) l.read = l.read + bytes_of(s);
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
    if (touched_[buffer]) return std::max(free, end);
    const bool value = made_[buffer].run >= 0 && is_value(p_.buffers[buffer].category);
    const bool temporary = backward_owner_.contains(buffer);
    if (value && (held_[buffer] || !read_outside_[buffer])) return end;
    if (temporary && !read_outside_[buffer]) return end;
    return std::max(free, end);
  }

  /// Instructions to insert behind the last use of the buffers they return; takes the old ones off.
  std::map<std::uint32_t, std::vector<Instruction>> drops(std::vector<bool>& moved) const {
    std::vector<std::uint32_t> last(p_.buffers.size(), UINT32_MAX);
    for (std::uint32_t i = 0; i < p_.instructions.size(); ++i) {
      if (p_.instructions[i].kind != InstructionKind::kLaunch) continue;
      for (const TensorId t : operands(p_.launches[p_.instructions[i].id]))
        if (const auto b = buffer_of(t)) last[*b] = i;
    }
    std::map<std::uint32_t, std::vector<Instruction>> result;
    for (std::uint32_t i = 0; i < p_.instructions.size(); ++i) {
      const Instruction& in = p_.instructions[i];
      if (in.kind != InstructionKind::kFree || last[in.id] == UINT32_MAX) continue;
      const std::uint32_t at = drop_at(in.id, i, last[in.id]);
      if (at == i) continue;
      moved[i] = true;
      result[at].push_back(in);
    }
    for (std::size_t b = made_.size(); b < p_.buffers.size(); ++b)
      result[last[b]].push_back({InstructionKind::kFree, 0, 0, static_cast<std::uint32_t>(b)});
    return result;
  }

  void move_frees() {
    std::vector<bool> moved(p_.instructions.size());
    const auto dropped = drops(moved);
    const std::vector<Instruction> old = std::move(p_.instructions);
    p_.instructions.clear();
    std::vector<std::uint32_t> index(old.size() + 1);
    for (std::uint32_t i = 0; i < old.size(); ++i) {
      index[i] = static_cast<std::uint32_t>(p_.instructions.size());
      if (old[i].kind == InstructionKind::kLaunch) claim_for(old[i].id);
      if (!moved[i]) p_.instructions.push_back(old[i]);
      if (const auto it = dropped.find(i); it != dropped.end())
        p_.instructions.insert(p_.instructions.end(), it->second.begin(), it->second.end());
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
  BlockScopes blocks_;
  std::vector<BlockRun> runs_;
  bool open_ = false;  ///< Inside the last run.
  std::vector<Made> made_;
  std::vector<bool> touched_;       ///< By buffer: used by more than kernels of the compute stream.
  std::vector<bool> held_;          ///< ... read by the backward of a block.
  std::vector<bool> read_outside_;  ///< ... read outside of the run, or the backward, that made it.
  std::vector<std::int32_t> last_run_;                     ///< By block.
  std::unordered_map<std::uint32_t, std::int32_t> backward_owner_;  ///< Buffer -> block.
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> claims_;  ///< Launch -> buffers.
  std::vector<std::uint32_t> backward_;                    ///< Kernels of blocks' backward.
  std::unordered_map<std::uint32_t, std::vector<TensorId>> sources_;  ///< Of values made again.
};

}  // namespace

void keep_compiled_saves(RankProgram& program, const std::vector<std::string>& blocks) {
  Saver(program, blocks).run();
}

}  // namespace foreshard
