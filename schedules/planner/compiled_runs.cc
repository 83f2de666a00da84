#include "schedules/planner/compiled_runs.h"

#include <algorithm>

#include "schedules/planner/compiled_ops.h"

namespace foreshard {
namespace {

bool is_parameter(BufferCategory c) {
  return c == BufferCategory::kParameter || c == BufferCategory::kUnshardedParameter ||
         c == BufferCategory::kShardedParameter || c == BufferCategory::kPersistent ||
         c == BufferCategory::kGatherOutput;
}

/// Outputs of a kernel in the order in which the compiler's parts of it make them: statistics of a
/// norm and the mask of a dropout come before what is made of them.
bool last_output_first(OpKind op) {
  return op == OpKind::kLayerNorm || op == OpKind::kRmsNorm || op == OpKind::kDropout;
}

std::uint32_t add_value(BlockRun& r, const JointValue& value, std::uint32_t buffer, TensorId view,
                        std::uint32_t maker) {
  r.graph.push_back(value);
  r.buffer.push_back(buffer);
  r.view.push_back(view);
  r.maker.push_back(maker);
  r.made_of.emplace_back();
  return static_cast<std::uint32_t>(r.graph.size() - 1);
}

void connect(BlockRun& r, std::uint32_t from, std::uint32_t to) {
  std::vector<std::uint32_t>& readers = r.graph[from].readers;
  if (std::find(readers.begin(), readers.end(), to) != readers.end()) return;
  readers.push_back(to);
  r.made_of[to].push_back(from);
}

}  // namespace

CompiledRuns::CompiledRuns(const RankProgram& p, const std::vector<std::string>& blocks)
    : p_(p),
      blocks_(p, blocks),
      made_(p.buffers.size()),
      last_value_(p.buffers.size()),
      touched_(p.buffers.size()),
      held_(p.buffers.size()),
      read_outside_(p.buffers.size()),
      last_run_(blocks.size(), -1),
      backward_owner_(p.buffers.size(), -1) {
  for (const Instruction& in : p_.instructions) see(in);
}

void CompiledRuns::see(const Instruction& in) {
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

void CompiledRuns::touch(TensorId t) {
  if (const auto b = buffer_of(p_, t)) touched_[*b] = true;
}

void CompiledRuns::see(const Mark& mark) {
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

void CompiledRuns::see(std::uint32_t index, const Launch& l) {
  if (l.stream != 0)
    for (const TensorId t : operands_of(p_, l)) touch(t);
  if (open_ && l.stream == 0 && blocks_.of(l.scope) == runs_.back().block &&
      l.phase == runs_.back().phase) {
    make(index);
  } else {
    read(index, l);
  }
}

std::uint32_t CompiledRuns::add_value(BlockRun& r, TensorId t, JointValue value,
                                      std::uint32_t maker) {
  const std::uint32_t buffer = *buffer_of(p_, t);
  value.bytes = std::min(bytes_of(p_, t), p_.buffers[buffer].bytes).value;
  value.free_to_save = is_parameter(p_.buffers[buffer].category);
  const std::uint32_t v = foreshard::add_value(r, value, buffer, t, maker);
  last_value_[buffer] = {static_cast<std::int32_t>(runs_.size()) - 1, v};
  return v;
}

std::uint32_t CompiledRuns::argument(BlockRun& r, TensorId t) {
  if (const auto v = value_in(*buffer_of(p_, t))) return *v;
  read_by_others(*buffer_of(p_, t));
  JointValue value;
  value.argument = true;
  return add_value(r, t, value, 0);
}

void CompiledRuns::read_by_others(std::uint32_t buffer) {
  read_outside_[buffer] = true;
  const ValueOf& m = made_[buffer];
  if (m.run >= 0) runs_[static_cast<std::size_t>(m.run)].graph[m.value].output = true;
}

void CompiledRuns::make(std::uint32_t index) {
  const Launch& l = p_.launches[index];
  BlockRun& r = runs_.back();
  const std::span<const TensorId> all = operands_of(p_, l);
  std::vector<std::uint32_t> sources;
  std::int64_t read_bytes = 0;
  for (const TensorId t : all.first(l.inputs)) {
    if (!buffer_of(p_, t)) continue;
    const std::uint32_t v = argument(r, t);
    if (std::find(sources.begin(), sources.end(), v) != sources.end()) continue;
    sources.push_back(v);
    read_bytes += bytes_of(p_, t).value;
  }
  if (l.op == OpKind::kSoftmax) add_statistics(r, index, sources, read_bytes);
  std::vector<TensorId> outputs(all.begin() + l.inputs, all.end());
  if (last_output_first(l.op)) std::reverse(outputs.begin(), outputs.end());
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (!buffer_of(p_, outputs[k])) continue;
    const bool last = k + 1 == outputs.size();
    const std::uint32_t v = write(r, index, outputs[k], last, read_bytes);
    for (const std::uint32_t s : sources)
      if (s < v) connect(r, s, v);
    if (last_output_first(l.op)) sources.push_back(v);
  }
}

void CompiledRuns::add_statistics(BlockRun& r, std::uint32_t index,
                                  std::vector<std::uint32_t>& sources, std::int64_t read_bytes) {
  const Launch& l = p_.launches[index];
  const Tensor& y = p_.tensors[operands_of(p_, l)[l.inputs].value];
  const double dim = l.attributes > 0 ? p_.attributes[l.first_attribute] : -1;
  const int along = static_cast<int>(dim) + (dim < 0 ? y.rank : 0);
  JointValue value;
  value.bytes = y.numel() / std::max<std::int64_t>(y.shape[static_cast<std::size_t>(along)], 1) *
                size_of(y.dtype);
  value.read_bytes = read_bytes;
  value.generated = value.may_run_again = true;
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t v = foreshard::add_value(r, value, kNoBuffer, {}, index);
    for (const std::uint32_t s : sources) connect(r, s, v);
    sources.push_back(v);
  }
}

std::uint32_t CompiledRuns::write(BlockRun& r, std::uint32_t index, TensorId t, bool last,
                                  std::int64_t read_bytes) {
  const Launch& l = p_.launches[index];
  const std::uint32_t buffer = *buffer_of(p_, t);
  if (const auto v = value_in(buffer)) {
    r.graph[*v].may_run_again = false;  // Written in parts, or changed in place.
    r.graph[*v].bytes = p_.buffers[buffer].bytes.value;
    return *v;
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

void CompiledRuns::read(std::uint32_t index, const Launch& l) {
  const std::int32_t block = blocks_.of(l.scope);
  const bool backward = block >= 0 && l.phase == Phase::kBackward && l.stream == 0;
  if (backward) backward_.push_back(index);
  for (const TensorId t : operands_of(p_, l)) {
    const auto buffer = buffer_of(p_, t);
    if (!buffer) continue;
    const ValueOf& m = made_[*buffer];
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

void CompiledRuns::read_backward(BlockRun& r, std::uint32_t v, const Launch& l) {
  held_[r.buffer[v]] = true;
  r.graph[v].read_backward = true;
  if (!compiler_generates(l.op)) r.graph[v].read_whole = true;
}

void CompiledRuns::read_argument_backward(std::int32_t block, std::uint32_t buffer,
                                          const Launch& l) {
  const std::int32_t run = last_run_[static_cast<std::size_t>(block)];
  if (run < 0 || last_value_[buffer].run < 0) return;  // of this block or of any
  BlockRun& r = runs_[static_cast<std::size_t>(run)];
  const auto it = std::find(r.buffer.begin(), r.buffer.end(), buffer);
  if (it != r.buffer.end()) read_backward(r, static_cast<std::uint32_t>(it - r.buffer.begin()), l);
}

void CompiledRuns::owner(std::uint32_t buffer, std::int32_t block) {
  if (p_.buffers[buffer].category != BufferCategory::kBackwardTemporary) return;
  std::int32_t& first = backward_owner_[buffer];
  if (first < 0) first = block;
  if (first != block) read_outside_[buffer] = true;
}

}  // namespace foreshard
