#pragma once

// Cuts what a block writes out of the program: ranges of instructions with their table entries.
// Include in block_*.cc only.

#include <span>
#include <utility>
#include <vector>

#include "schedules/planner/host/block_template.h"
#include "schedules/planner/host/program_position.h"

namespace foreshard {

/// Ranges of one block as they are cut, and which of their buffers are claimed now.
class RangeCutter {
 public:
  explicit RangeCutter(const RankProgram& program) : program_(program), begin_(program) {}

  /// A range that was cut before and comes first: one of the forward, seen from its backward.
  void adopt(std::uint32_t first_buffer, std::size_t buffers) {
    claimed_.push_back({first_buffer, std::vector<bool>(buffers, false)});
  }
  /// A buffer of an adopted range is still claimed.
  void own(TemplateBuffer b) { claimed_[b.range].alive[b.number] = true; }
  void begin() { begin_ = ProgramPosition(program_); }
  /// Cuts from begin() to here. `foreign(instruction, buffer)`: the instruction names a buffer that
  /// no range claimed; `at` is its place in the range. False: the range cannot be copied.
  template <typename Foreign>
  bool cut(TemplateRange& out, Foreign&& foreign);
  /// Where a buffer was claimed; range UINT16_MAX: in none.
  TemplateBuffer find(BufferId buffer) const;
  /// The buffer has an owner outside from now on.
  void escape(BufferId buffer) { set_alive(buffer.value, false); }
  /// Claimed buffers without an owner outside, in order.
  std::vector<TemplateBuffer> alive() const;
  /// Of each range.
  std::vector<std::uint32_t> first_buffers() const;

 private:
  struct Claimed {
    std::uint32_t first = 0;
    std::vector<bool> alive;
  };
  void set_alive(std::uint32_t buffer, bool alive);
  /// Turns an instruction's id into a number of its range's tables (IdBase).
  void count_from_range(Instruction& of_buffer);
  /// The same of one that names no buffer; false: it cannot be copied.
  bool count_from_begin(Instruction& other) const;

  const RankProgram& program_;
  ProgramPosition begin_;
  std::vector<Claimed> claimed_;  ///< By range.
};

template <typename Foreign>
bool RangeCutter::cut(TemplateRange& out, Foreign&& foreign) {
  const RankProgram& p = program_;
  const ProgramPosition end(p);
  if (end.collectives != begin_.collectives || end.events != begin_.events) return false;
  const auto part = [](const auto& table, std::size_t from, std::size_t to, auto& into) {
    into.assign(table.begin() + static_cast<std::ptrdiff_t>(from),
                table.begin() + static_cast<std::ptrdiff_t>(to));
  };
  part(p.buffers, begin_.buffers, end.buffers, out.buffers);
  part(p.launches, begin_.launches, end.launches, out.launches);
  part(p.copies, begin_.copies, end.copies, out.copies);
  part(p.host_work, begin_.host_work, end.host_work, out.host_work);
  part(p.marks, begin_.marks, end.marks, out.marks);
  for (const Buffer& b : out.buffers)
    if (b.unit.valid()) return false;
  claimed_.push_back(
      {static_cast<std::uint32_t>(begin_.buffers), std::vector<bool>(out.buffers.size(), false)});
  for (std::size_t i = begin_.instructions; i < end.instructions; ++i) {
    Instruction in = p.instructions[i];
    const bool of_buffer = in.kind == InstructionKind::kAlloc ||
                           in.kind == InstructionKind::kFree ||
                           in.kind == InstructionKind::kRecordStream;
    if (of_buffer && find(BufferId(in.id)).range == UINT16_MAX) {
      if (!foreign(in, out.instructions.size())) return false;
      continue;
    }
    if (of_buffer)
      count_from_range(in);
    else if (!count_from_begin(in))
      return false;
    out.instructions.push_back(in);
  }
  return true;
}

/// Cuts the forward of one block at the hooks inside it while it runs.
class ForwardRecorder {
 public:
  explicit ForwardRecorder(const RankProgram& program) : cutter_(program) {}

  void before_hook(InnerHook&& hook) {
    cut();
    hooks_.push_back(std::move(hook));
  }
  void after_hook() { cutter_.begin(); }
  void cut();
  /// The last range was cut; false: what the block writes cannot be copied.
  bool usable() const { return usable_; }
  bool equal(const ForwardTemplate& t) const;

  const RangeCutter& cutter() const { return cutter_; }
  std::vector<TemplateRange>& ranges() { return ranges_; }
  std::vector<InnerHook>& hooks() { return hooks_; }

 private:
  RangeCutter cutter_;
  std::vector<TemplateRange> ranges_;
  std::vector<InnerHook> hooks_;
  bool usable_ = true;
};

/// Cuts the backward of one block while the engine runs it.
class BackwardRecorder {
 public:
  BackwardRecorder(HostImpl& impl, BlockTemplates::Instance& source, const TemplateKey& key,
                   std::span<const SymTensor> gradients);

  void before(AutogradNode& n);
  void after(const AutogradNode& n);
  void before_edge(const AutogradNode& n, const AutogradNode& next, int input, const SymTensor& g);
  void after_edge(const AutogradNode& n, const AutogradNode& next);
  void before_function(const AutogradNode& n);
  void after_function(const AutogradNode& n) {
    if (!done_ && inside(n)) cutter_.begin();
  }
  /// Every node of the block has run.
  void finish();
  bool done() const { return done_; }

 private:
  void pause();
  bool describe(const SymTensor& gradient, TemplateTensor& t);
  const SymTensor* slot(const AutogradNode& n, std::uint16_t input) const;
  bool inside(const AutogradNode& n) const;
  /// An edge from node `n` of the block to one outside that runs on another stream: the engine's
  /// events between the two are written anew for each copy.
  bool exits(const AutogradNode& n, const AutogradNode& next) const {
    return !done_ && inside(n) && next.backward && !inside(next) &&
           next.stream != made_->key.stream;
  }
  void give_up() {
    usable_ = false;
    done_ = true;
  }

  HostImpl& impl_;
  BlockTemplates::Instance& source_;
  std::unique_ptr<BackwardTemplate> made_;
  RangeCutter cutter_;
  std::vector<BufferId> gradient_buffers_;
  std::uint32_t left_ = 0;    ///< Nodes of the block that have not run.
  std::uint32_t leaves_ = 0;  ///< Leaves that have run.
  bool usable_ = true, done_ = false;
};

}  // namespace foreshard
