#include "schedules/planner/host/step_copy.h"

#include <algorithm>

#include "schedules/planner/frameworks/framework.h"
#include "schedules/planner/host/host_impl.h"

namespace foreshard {
namespace {

constexpr std::uint32_t kNoPlace = UINT32_MAX;

}  // namespace

/// No gradient is left and nothing of the framework is under way.
bool StepCopy::ready() const {
  const auto locals = host_.framework()->local_parameters();
  return host_.framework()->at_rest() &&
         std::none_of(locals.begin(), locals.end(),
                      [](const LocalParameter& p) { return p.local && p.local->grad; });
}

void StepCopy::begin() {
  to_.reset();
  from_.reset();
  if (ready()) from_.emplace(host_.program().program());
}

void StepCopy::end(std::span<SymTensor* const> inputs) {
  if (!from_ || !host_.framework()->at_rest()) return;
  const ProgramPosition now(host_.program().program());
  held_.clear();
  storages_.clear();
  std::vector<std::uint32_t> places(now.buffers - from_->buffers, kNoPlace);
  bool described = true;
  const auto hold = [&](SymTensor& t) { described = described && (!t || describe(t, places)); };
  for (SymTensor* const t : inputs) hold(*t);
  for (const LocalParameter& p : host_.framework()->local_parameters())
    if (p.local) hold(p.local->grad);
  if (described) to_ = now;
}

/// `places`: index into storages_ by buffer of the micro-batches. False: more than its geometry
/// matters of `t`, or its memory is older than they.
bool StepCopy::describe(SymTensor& t, std::span<std::uint32_t> places) {
  const std::uint32_t buffer = t->storage->buffer.value - static_cast<std::uint32_t>(from_->buffers);
  if (t->grad_fn || t->group.valid() || buffer >= places.size()) return false;
  if (places[buffer] == kNoPlace) {
    places[buffer] = static_cast<std::uint32_t>(storages_.size());
    storages_.push_back(*t->storage);
  }
  held_.push_back(
      {&t, t->dtype, t->requires_grad, places[buffer], t->shape, t->stride, t->offset});
  return true;
}

/// The micro-batches use no event from before, give back no buffer from before, and leave only
/// those of held_.
bool StepCopy::closed() const {
  const RankProgram& p = host_.program().program();
  const auto first = static_cast<std::uint32_t>(from_->buffers);
  std::vector<std::uint8_t> alive(to_->buffers - from_->buffers, 1);
  for (std::size_t i = from_->instructions; i < to_->instructions; ++i) {
    const Instruction& in = p.instructions[i];
    switch (in.kind) {
      case InstructionKind::kFree:
        if (in.id < first) return false;
        alive[in.id - first] = 0;
        break;
      case InstructionKind::kWaitEvent:
      case InstructionKind::kSyncEvent:
        if (in.id < from_->events) return false;
        break;
      default:
        break;
    }
  }
  for (const SymStorage& s : storages_) alive[s.buffer.value - first] = 0;
  return std::none_of(alive.begin(), alive.end(), [](std::uint8_t a) { return a != 0; });
}

bool StepCopy::copy() {
  if (!to_ || !ready() || !closed()) return false;
  const ProgramPosition now(host_.program().program());
  append(now);
  for (SymStorage& s : storages_)
    s.buffer.value += static_cast<std::uint32_t>(now.buffers - from_->buffers);
  restore();
  from_ = now;  // A further step is a copy of this one.
  to_.emplace(host_.program().program());
  return true;
}

/// The entries of all tables, and the instructions with their ids moved on.
void StepCopy::append(const ProgramPosition& now) {
  RankProgram& p = host_.program().program();
  const auto copy = [](auto& table, std::size_t from, std::size_t to) {
    const std::size_t at = table.size();
    table.resize(at + to - from);
    std::copy_n(table.begin() + static_cast<std::ptrdiff_t>(from), to - from,
                table.begin() + static_cast<std::ptrdiff_t>(at));
  };
  copy(p.buffers, from_->buffers, to_->buffers);
  copy(p.launches, from_->launches, to_->launches);
  copy(p.collectives, from_->collectives, to_->collectives);
  copy(p.copies, from_->copies, to_->copies);
  copy(p.host_work, from_->host_work, to_->host_work);
  copy(p.marks, from_->marks, to_->marks);
  copy(p.instructions, from_->instructions, to_->instructions);
  p.events += to_->events - from_->events;
  std::array<std::uint32_t, static_cast<std::size_t>(InstructionKind::kMark) + 1> shift{};
  const auto set = [&](std::initializer_list<InstructionKind> kinds, std::size_t by) {
    for (const InstructionKind k : kinds)
      shift[static_cast<std::size_t>(k)] = static_cast<std::uint32_t>(by);
  };
  using K = InstructionKind;
  set({K::kAlloc, K::kFree, K::kRecordStream}, now.buffers - from_->buffers);
  set({K::kLaunch}, now.launches - from_->launches);
  set({K::kCollective}, now.collectives - from_->collectives);
  set({K::kCopy}, now.copies - from_->copies);
  set({K::kRecordEvent, K::kWaitEvent, K::kSyncEvent}, now.events - from_->events);
  set({K::kHost}, now.host_work - from_->host_work);
  set({K::kMark}, now.marks - from_->marks);
  for (std::size_t i = now.instructions; i < p.instructions.size(); ++i) {
    Instruction& in = p.instructions[i];
    const bool lasting = in.kind == K::kRecordStream && in.id < from_->buffers;
    if (!lasting) in.id += shift[static_cast<std::size_t>(in.kind)];
  }
}

/// The tensors that the micro-batches leave.
void StepCopy::restore() {
  HostImpl& impl = host_.impl();
  std::vector<Ref<SymStorage>> storages;
  storages.reserve(storages_.size());
  for (const SymStorage& s : storages_) {
    storages.push_back(impl.make_storage(s.bytes, s.category, s.unit, s.name));
    SymStorage& made = *storages.back();
    made.buffer = s.buffer;
    made.pool = s.pool;
    made.space = s.space;
    made.scope = s.scope;
    ++made.generation;
  }
  for (const Held& h : held_) {
    SymTensor t = impl.make_tensor(storages[h.storage], h.shape, h.dtype);
    t->stride = h.stride;
    t->offset = h.offset;
    t->requires_grad = h.requires_grad;
    *h.holder = std::move(t);
  }
}

}  // namespace foreshard
