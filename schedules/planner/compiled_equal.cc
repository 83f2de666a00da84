#include "schedules/planner/compiled_equal.h"

#include <bit>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "schedules/planner/compiled_blocks.h"
#include "schedules/planner/compiled_ops.h"

namespace foreshard {
namespace {

class Merger {
 public:
  Merger(RankProgram& p, const std::vector<std::string>& blocks)
      : p_(p),
        blocks_(p, blocks),
        writes_(p.buffers.size()),
        first_view_(p.buffers.size(), kNone),
        next_view_(p.tensors.size(), kNone),
        replaced_by_(p.buffers.size(), kNone) {
    for (const Instruction& in : p.instructions) {
      if (in.kind != InstructionKind::kLaunch) continue;
      const Launch& l = p.launches[in.id];
      for (const TensorId t : operands(l).subspan(l.inputs))
        if (has_buffer(t)) ++writes_[buffer_of(t)];
    }
    for (std::uint32_t t = 0; t < p.tensors.size(); ++t)
      if (has_buffer(TensorId(t))) add_view(buffer_of(TensorId(t)), t);
  }

  void run() {
    for (std::uint32_t i = 0; i < p_.instructions.size(); ++i) see(i);
    if (!left_out_.empty()) rewrite();
  }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  using Key = std::vector<std::int64_t>;
  struct KeyHash {
    std::size_t operator()(const Key& k) const {
      std::uint64_t h = 0;
      for (const std::int64_t x : k) {
        h = (h ^ static_cast<std::uint64_t>(x)) * 0x9E3779B97F4A7C15ull;
        h ^= h >> 29;
      }
      return h;
    }
  };

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
      find_key(l);
      const auto [it, first] = first_.try_emplace(key_, made);
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
  void find_key(const Launch& l) {
    Key& k = key_;
    k.assign(1, static_cast<std::int64_t>(l.op));
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
  }

  void add_view(std::uint32_t buffer, std::uint32_t tensor) {
    next_view_[tensor] = first_view_[buffer];
    first_view_[buffer] = tensor;
  }

  void merge(std::uint32_t instruction, std::uint32_t made, std::uint32_t first) {
    for (std::uint32_t t = first_view_[made], next; t != kNone; t = next) {
      next = next_view_[t];
      p_.tensors[t].buffer = BufferId(first);
      add_view(first, t);
    }
    first_view_[made] = kNone;
    replaced_by_[made] = first;
    left_out_.push_back(instruction);
  }

  /// Without the repeated kernels and the claims of their results; the one that stays is returned
  /// with the last of them.
  void rewrite() {
    std::vector<int> holders(replaced_by_.size());  // beside the buffer itself
    for (const std::uint32_t first : replaced_by_)
      if (first != kNone) ++holders[first];
    const std::vector<Instruction> old = std::move(p_.instructions);
    p_.instructions.clear();
    p_.instructions.reserve(old.size());
    std::vector<std::uint32_t> index(old.size() + 1);
    std::size_t next = 0;
    for (std::uint32_t i = 0; i < old.size(); ++i) {
      index[i] = static_cast<std::uint32_t>(p_.instructions.size());
      Instruction in = old[i];
      if (next < left_out_.size() && left_out_[next] == i) {
        ++next;
        continue;
      }
      if (in.kind == InstructionKind::kAlloc && replaced_by_[in.id] != kNone) continue;
      if (in.kind == InstructionKind::kFree) {
        if (replaced_by_[in.id] != kNone) in.id = replaced_by_[in.id];
        if (holders[in.id]-- > 0) continue;
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
  std::vector<int> writes_;  ///< By buffer.
  /// Tensors of a buffer: the first by buffer, the next by tensor.
  std::vector<std::uint32_t> first_view_, next_view_;
  std::vector<std::uint32_t> replaced_by_;  ///< By buffer: that of the first equal kernel.
  bool open_ = false;                       ///< Inside a block's forward.
  Key key_;                                 ///< Of the kernel that is seen.
  std::unordered_map<Key, std::uint32_t, KeyHash> first_;  ///< Kernel -> what it made.
  std::vector<std::uint32_t> left_out_;                    ///< Instructions, in order.
};

}  // namespace

void merge_equal_kernels(RankProgram& program, const std::vector<std::string>& blocks) {
  Merger(program, blocks).run();
}

}  // namespace foreshard
