#include "schedules/planner/compiled_equal.h"

#include <bit>
#include <map>
#include <span>
#include <utility>

#include "schedules/planner/compiled_blocks.h"
#include "schedules/planner/compiled_ops.h"

namespace foreshard {
namespace {

class Merger {
 public:
  Merger(RankProgram& p, const std::vector<std::string>& blocks)
      : p_(p), blocks_(p, blocks), writes_(p.buffers.size()), views_(p.buffers.size()) {
    for (const Instruction& in : p.instructions) {
      if (in.kind != InstructionKind::kLaunch) continue;
      const Launch& l = p.launches[in.id];
      for (const TensorId t : operands(l).subspan(l.inputs))
        if (has_buffer(t)) ++writes_[buffer_of(t)];
    }
    for (std::uint32_t t = 0; t < p.tensors.size(); ++t)
      if (has_buffer(TensorId(t))) views_[buffer_of(TensorId(t))].push_back(t);
  }

  void run() {
    for (std::uint32_t i = 0; i < p_.instructions.size(); ++i) see(i);
    if (!merged_.empty()) rewrite();
  }

 private:
  std::span<const TensorId> operands(const Launch& l) const {
    return std::span<const TensorId>(p_.operands).subspan(l.first_operand, l.inputs + l.outputs);
  }
  bool has_buffer(TensorId t) const { return t.valid() && p_.tensors[t.value].buffer.valid(); }
  std::uint32_t buffer_of(TensorId t) const { return p_.tensors[t.value].buffer.value; }

  void see(std::uint32_t i) {
    const Instruction& in = p_.instructions[i];
    if (in.kind == InstructionKind::kMark) {
      const Mark& m = p_.marks[in.id];
      if (m.kind == MarkKind::kModule && blocks_.is_block(m.scope)) {
        open_ = m.begin && (m.phase == Phase::kForward || m.phase == Phase::kRecompute);
        first_.clear();
      }
    } else if (in.kind == InstructionKind::kLaunch && open_ && repeatable(p_.launches[in.id])) {
      const Launch& l = p_.launches[in.id];
      const std::uint32_t made = buffer_of(operands(l)[l.inputs]);
      const auto [it, first] = first_.try_emplace(key(l), made);
      if (!first) merge(i, made, it->second);
    }
  }

  /// Kernels without state whose operands nobody changes.
  bool repeatable(const Launch& l) const {
    if (l.stream != 0 || l.outputs != 1 || l.inputs == 0 || blocks_.of(l.scope) < 0) return false;
    if (!may_run_again(l.op) || l.op == OpKind::kDropout || l.op == OpKind::kFill) return false;
    for (const TensorId t : operands(l))
      if (!has_buffer(t) || writes_[buffer_of(t)] > 1) return false;
    const BufferCategory c = p_.buffers[buffer_of(operands(l)[l.inputs])].category;
    return c == BufferCategory::kActivation || c == BufferCategory::kRecomputedActivation ||
           c == BufferCategory::kForwardTemporary;
  }

  /// Op, scalars, views read and the form of what is written.
  std::vector<std::int64_t> key(const Launch& l) const {
    std::vector<std::int64_t> k = {static_cast<std::int64_t>(l.op)};
    k.insert(k.end(), l.dims.begin(), l.dims.end());
    for (std::uint32_t a = 0; a < l.attributes; ++a)
      k.push_back(std::bit_cast<std::int64_t>(p_.attributes[l.first_attribute + a]));
    const std::span<const TensorId> all = operands(l);
    for (std::uint32_t i = 0; i < all.size(); ++i) {
      const Tensor& t = p_.tensors[all[i].value];
      if (i < l.inputs) k.push_back(t.buffer.value);
      k.insert(k.end(), {t.offset, t.offset_per_rank, static_cast<std::int64_t>(t.dtype), t.rank});
      k.insert(k.end(), t.shape.begin(), t.shape.end());
      k.insert(k.end(), t.stride.begin(), t.stride.end());
    }
    return k;
  }

  void merge(std::uint32_t instruction, std::uint32_t made, std::uint32_t first) {
    for (const std::uint32_t t : views_[made]) {
      p_.tensors[t].buffer = BufferId(first);
      views_[first].push_back(t);
    }
    merged_[made] = first;
    left_out_.push_back(instruction);
  }

  /// Without the repeated kernels and the claims of their results; the one that stays is returned
  /// with the last of them.
  void rewrite() {
    std::map<std::uint32_t, int> holders;
    for (const auto& [made, first] : merged_) ++holders[first];
    const std::vector<Instruction> old = std::move(p_.instructions);
    p_.instructions.clear();
    std::vector<std::uint32_t> index(old.size() + 1);
    std::size_t next = 0;
    for (std::uint32_t i = 0; i < old.size(); ++i) {
      index[i] = static_cast<std::uint32_t>(p_.instructions.size());
      Instruction in = old[i];
      if (next < left_out_.size() && left_out_[next] == i) {
        ++next;
        continue;
      }
      if (in.kind == InstructionKind::kAlloc && merged_.contains(in.id)) continue;
      if (in.kind == InstructionKind::kFree) {
        if (const auto it = merged_.find(in.id); it != merged_.end()) in.id = it->second;
        if (const auto it = holders.find(in.id); it != holders.end() && it->second-- > 0) continue;
      }
      p_.instructions.push_back(in);
    }
    index[old.size()] = static_cast<std::uint32_t>(p_.instructions.size());
    const auto move = [&](Segment& s) { s = {index[s.begin], index[s.end]}; };
    move(p_.init);
    for (Segment& s : p_.steps) move(s);
  }

  RankProgram& p_;
  BlockScopes blocks_;
  std::vector<int> writes_;                                   ///< By buffer.
  std::vector<std::vector<std::uint32_t>> views_;             ///< By buffer.
  bool open_ = false;                                         ///< Inside a block's forward.
  std::map<std::vector<std::int64_t>, std::uint32_t> first_;  ///< Kernel -> what it made.
  std::map<std::uint32_t, std::uint32_t> merged_;             ///< Buffer -> the one in its place.
  std::vector<std::uint32_t> left_out_;                       ///< Instructions, in order.
};

}  // namespace

void merge_equal_kernels(RankProgram& program, const std::vector<std::string>& blocks) {
  Merger(program, blocks).run();
}

}  // namespace foreshard
