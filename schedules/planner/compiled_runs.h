#pragma once

// What the forward of a compiled block makes and its backward reads, run by run, as the partitioner
// is asked about it (joint_graph.h).

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "schedules/planner/compiled_blocks.h"
#include "schedules/planner/joint_graph.h"
#include "schedules/schedule.h"

namespace foreshard {

/// Not in the eager program: what a compiler makes of parts of one of its kernels.
constexpr std::uint32_t kNoBuffer = UINT32_MAX;

/// A run of one block's forward, in forward or as recomputation.
struct BlockRun {
  std::int32_t block = -1;
  Phase phase = Phase::kForward;
  JointGraph graph;
  std::vector<std::uint32_t> buffer;                ///< Of each value; kNoBuffer until it has one.
  std::vector<std::uint32_t> maker;                 ///< Launch that makes it; of arguments 0.
  std::vector<TensorId> view;                       ///< A tensor that shows the value.
  std::vector<std::vector<std::uint32_t>> made_of;  ///< Earlier values.
};

/// Operands of a launch: inputs, then outputs.
inline std::span<const TensorId> operands_of(const RankProgram& p, const Launch& l) {
  return std::span<const TensorId>(p.operands).subspan(l.first_operand, l.inputs + l.outputs);
}

/// Null: no tensor, or one without elements.
inline std::optional<std::uint32_t> buffer_of(const RankProgram& p, TensorId t) {
  if (!t.valid() || !p.tensors[t.value].buffer.valid()) return std::nullopt;
  return p.tensors[t.value].buffer.value;
}

inline Bytes bytes_of(const RankProgram& p, TensorId t) {
  return Bytes(p.tensors[t.value].numel() * size_of(p.tensors[t.value].dtype));
}

/// Everything that the compiled blocks of a program make, and who reads it.
class CompiledRuns {
 public:
  CompiledRuns(const RankProgram& p, const std::vector<std::string>& blocks);

  std::vector<BlockRun>& runs() { return runs_; }
  /// Launches of the blocks' backward.
  const std::vector<std::uint32_t>& backward() const { return backward_; }

  // ------------------------------------------------------------------ of a buffer
  /// A run made it.
  bool made(std::uint32_t buffer) const { return made_[buffer].run >= 0; }
  /// A temporary of a block's backward.
  bool made_in_backward(std::uint32_t buffer) const { return backward_owner_[buffer] >= 0; }
  /// Others than kernels of the compute stream use it.
  bool touched(std::uint32_t buffer) const { return touched_[buffer]; }
  /// The backward of a block reads it.
  bool held(std::uint32_t buffer) const { return held_[buffer]; }
  /// It is read outside of the run, or of the block's backward, that made it.
  bool read_outside(std::uint32_t buffer) const { return read_outside_[buffer]; }

 private:
  /// A value of a run.
  struct ValueOf {
    std::int32_t run = -1;
    std::uint32_t value = 0;
  };

  void see(const Instruction& in);
  /// Lifetimes of what others than kernels of the compute stream use stay as they are.
  void touch(TensorId t);
  void see(const Mark& mark);
  void see(std::uint32_t index, const Launch& l);
  std::uint32_t add_value(BlockRun& r, TensorId t, JointValue value, std::uint32_t maker);
  /// The value of the open run that is in a buffer.
  std::optional<std::uint32_t> value_in(std::uint32_t buffer) const {
    const ValueOf& v = last_value_[buffer];
    if (v.run != static_cast<std::int32_t>(runs_.size()) - 1) return std::nullopt;
    return v.value;
  }
  /// The value that a kernel of the run reads; one made elsewhere is an argument.
  std::uint32_t argument(BlockRun& r, TensorId t);
  void read_by_others(std::uint32_t buffer);
  /// A kernel of a block's forward: its outputs are values made of its inputs.
  void make(std::uint32_t index);
  /// A softmax is largest element, sum of exponentials and what is made of them: its statistics are
  /// values of their own.
  void add_statistics(BlockRun& r, std::uint32_t index, std::vector<std::uint32_t>& sources,
                      std::int64_t read_bytes);
  std::uint32_t write(BlockRun& r, std::uint32_t index, TensorId t, bool last,
                      std::int64_t read_bytes);
  /// A kernel outside of forward runs: of a block's backward, or of anything else.
  void read(std::uint32_t index, const Launch& l);
  void read_backward(BlockRun& r, std::uint32_t v, const Launch& l);
  void read_argument_backward(std::int32_t block, std::uint32_t buffer, const Launch& l);
  /// Temporaries of backward belong to the block that uses them alone.
  void owner(std::uint32_t buffer, std::int32_t block);

  const RankProgram& p_;
  BlockScopes blocks_;
  std::vector<BlockRun> runs_;
  bool open_ = false;                       ///< Inside the last run.
  std::vector<ValueOf> made_, last_value_;  ///< By buffer: the last run that made it, ... has it.
  std::vector<bool> touched_, held_, read_outside_;  ///< By buffer.
  std::vector<std::int32_t> last_run_;               ///< By block.
  std::vector<std::int32_t> backward_owner_;         ///< By buffer: a block, or -1.
  std::vector<std::uint32_t> backward_;
};

}  // namespace foreshard
