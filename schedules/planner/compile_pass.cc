#include "schedules/planner/compile_pass.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "schedules/planner/compiled_blocks.h"
#include "schedules/planner/compiled_ops.h"

namespace foreshard {
namespace {

class Fuser {
 public:
  Fuser(RankProgram& p, const std::vector<std::string>& blocks)
      : p_(p), blocks_(p, blocks), place_(p.buffers.size()) {}

  void run() {
    old_ = std::move(p_.instructions);
    p_.instructions.clear();
    p_.instructions.reserve(old_.size());
    new_index_.resize(old_.size() + 1);
    for (std::uint32_t at = 0; at < old_.size();) {
      const std::uint32_t end = run_end(at);
      if (launches_in(at, end) >= 2)
        fuse(at, end);
      else
        keep(at, end);
      at = end;
    }
    new_index_[old_.size()] = static_cast<std::uint32_t>(p_.instructions.size());
    move(p_.init);
    for (Segment& s : p_.steps) move(s);
  }

 private:
  const Launch* launch_at(std::uint32_t i) const {
    return old_[i].kind == InstructionKind::kLaunch ? &p_.launches[old_[i].id] : nullptr;
  }
  std::int32_t block_of(const Launch& l) const { return blocks_.of(l.scope); }
  bool starts_run(std::uint32_t i) const {
    const Launch* l = launch_at(i);
    return l != nullptr && l->stream == 0 && compiler_generates(l->op) && block_of(*l) >= 0;
  }
  static bool passes(InstructionKind k) {
    return k == InstructionKind::kAlloc || k == InstructionKind::kFree ||
           k == InstructionKind::kHost || k == InstructionKind::kMark;
  }

  /// One past the last instruction that belongs with `at`: a run of fusible launches with what lies
  /// between, or `at` alone.
  std::uint32_t run_end(std::uint32_t at) const {
    if (!starts_run(at)) return at + 1;
    const Launch& first = *launch_at(at);
    std::uint32_t end = at + 1;
    for (; end < old_.size(); ++end) {
      if (passes(old_[end].kind)) continue;
      if (!starts_run(end)) break;
      const Launch& l = *launch_at(end);
      if (l.phase != first.phase || block_of(l) != block_of(first)) break;
    }
    return end;
  }

  int launches_in(std::uint32_t begin, std::uint32_t end) const {
    int n = 0;
    for (std::uint32_t i = begin; i < end; ++i) n += launch_at(i) != nullptr ? 1 : 0;
    return n;
  }

  void emit(std::uint32_t i) { p_.instructions.push_back(old_[i]); }
  void keep(std::uint32_t begin, std::uint32_t end) {
    for (std::uint32_t i = begin; i < end; ++i) {
      new_index_[i] = static_cast<std::uint32_t>(p_.instructions.size());
      emit(i);
    }
  }

  /// A buffer that a run touches.
  struct Use {
    std::uint32_t buffer = 0;
    bool allocated = false, freed = false, written = false, read_first = false;
    std::int64_t read = 0, wrote = 0;  ///< Bytes of distinct views.
    std::vector<std::uint32_t> views;
    bool internal() const { return allocated && freed; }
  };
  using Uses = std::span<Use>;  ///< By buffer.

  /// That of the present run, or null.
  Use* find_use(std::uint32_t buffer) {
    const std::uint32_t place = place_[buffer];
    return place < used_ && uses_[place].buffer == buffer ? &uses_[place] : nullptr;
  }
  Use& use_of(std::uint32_t buffer) {
    if (Use* const use = find_use(buffer)) return *use;
    if (used_ == uses_.size()) uses_.emplace_back();
    Use& fresh = uses_[used_];
    std::vector<std::uint32_t> views = std::move(fresh.views);  // Its storage.
    views.clear();
    fresh = {};
    fresh.buffer = buffer;
    fresh.views = std::move(views);
    place_[buffer] = static_cast<std::uint32_t>(used_++);
    return fresh;
  }

  void add_views(const Launch& l) {
    for (std::uint32_t k = 0; k < static_cast<std::uint32_t>(l.inputs) + l.outputs; ++k) {
      const TensorId id = p_.operands[l.first_operand + k];
      if (!id.valid()) continue;
      const Tensor& t = p_.tensors[id.value];
      if (!t.buffer.valid()) continue;  // a tensor without elements
      Use& use = use_of(t.buffer.value);
      const bool output = k >= l.inputs;
      if (!output && !use.written) use.read_first = true;
      std::int64_t elements = 1;
      for (int d = 0; d < t.rank; ++d) elements *= t.stride[d] == 0 ? 1 : t.shape[d];
      const std::uint32_t key = id.value * 2 + (output ? 1 : 0);
      if (std::find(use.views.begin(), use.views.end(), key) != use.views.end()) continue;
      use.views.push_back(key);
      (output ? use.wrote : use.read) += elements * size_of(t.dtype);
      use.written |= output;
    }
  }

  Uses uses_of(std::uint32_t begin, std::uint32_t end) {
    used_ = 0;
    for (std::uint32_t i = begin; i < end; ++i) {
      if (old_[i].kind == InstructionKind::kAlloc) use_of(old_[i].id).allocated = true;
      if (old_[i].kind == InstructionKind::kFree) {
        Use* const use = find_use(old_[i].id);
        if (use != nullptr && use->allocated) use->freed = true;
      }
      if (const Launch* l = launch_at(i)) add_views(*l);
    }
    const Uses uses(uses_.data(), used_);
    std::sort(uses.begin(), uses.end(),
              [](const Use& a, const Use& b) { return a.buffer < b.buffer; });
    for (std::size_t k = 0; k < used_; ++k) place_[uses[k].buffer] = static_cast<std::uint32_t>(k);
    return uses;
  }

  /// Lists the views that the fused kernel reads from memory, or those it leaves there; gives their
  /// number.
  std::uint32_t add_operands(Uses uses, bool outputs) {
    std::uint32_t count = 0;
    for (const Use& use : uses) {
      if (use.internal() || (!outputs && !use.read_first)) continue;
      for (const std::uint32_t view : use.views) {
        if ((view % 2 == 1) != outputs) continue;
        p_.operands.push_back(TensorId(view / 2));
        ++count;
      }
    }
    return count;
  }

  std::uint32_t add_launch(std::uint32_t begin, std::uint32_t end, Uses uses) {
    Launch fused;
    bool first = true;
    for (std::uint32_t i = begin; i < end; ++i) {
      const Launch* l = launch_at(i);
      if (l == nullptr) continue;
      if (first)
        fused = *l;
      else
        fused.flops += l->flops;
      first = false;
    }
    fused.op = OpKind::kFusedBlock;
    fused.kernels = 1;
    fused.attributes = 0;
    fused.dims = {};
    fused.read = fused.written = Bytes(0);
    for (const Use& use : uses) {
      const std::int64_t whole = p_.buffers[use.buffer].bytes.value;
      if (use.read_first) fused.read += Bytes(std::min(use.read, whole));
      if (use.written && !use.internal()) fused.written += Bytes(std::min(use.wrote, whole));
    }
    fused.first_operand = static_cast<std::uint32_t>(p_.operands.size());
    fused.inputs = add_operands(uses, false);
    fused.outputs = add_operands(uses, true);
    p_.launches.push_back(fused);
    return static_cast<std::uint32_t>(p_.launches.size() - 1);
  }

  void fuse(std::uint32_t begin, std::uint32_t end) {
    const Uses uses = uses_of(begin, end);
    std::uint32_t last = begin;
    for (std::uint32_t i = begin; i < end; ++i) last = launch_at(i) != nullptr ? i : last;
    std::vector<std::uint32_t> late_frees;
    for (std::uint32_t i = begin; i < end; ++i) {
      new_index_[i] = static_cast<std::uint32_t>(p_.instructions.size());
      const InstructionKind kind = old_[i].kind;
      if (i == last) {
        const StreamIndex stream = old_[i].stream;
        p_.instructions.push_back(
            {InstructionKind::kLaunch, stream, 0, add_launch(begin, end, uses)});
        for (const std::uint32_t f : late_frees) emit(f);
      } else if (kind == InstructionKind::kAlloc || kind == InstructionKind::kFree) {
        const Use* const use = find_use(old_[i].id);
        if (use != nullptr && use->internal()) continue;
        if (kind == InstructionKind::kFree && i < last)
          late_frees.push_back(i);
        else
          emit(i);
      } else if (kind != InstructionKind::kLaunch) {
        emit(i);
      }
    }
  }

  void move(Segment& s) const {
    s.begin = new_index_[s.begin];
    s.end = new_index_[s.end];
  }

  RankProgram& p_;
  BlockScopes blocks_;
  std::vector<Instruction> old_;
  std::vector<std::uint32_t> new_index_;
  std::vector<Use> uses_;  ///< Of the present run the first `used_`.
  std::size_t used_ = 0;
  std::vector<std::uint32_t> place_;  ///< By buffer: in uses_.
};

}  // namespace

void fuse_compiled_blocks(RankProgram& program, const std::vector<std::string>& blocks) {
  Fuser(program, blocks).run();
}

}  // namespace foreshard
