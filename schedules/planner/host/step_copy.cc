#include "schedules/planner/host/step_copy.h"

#include <algorithm>

#include "schedules/planner/frameworks/framework.h"
#include "schedules/planner/host/host_impl.h"
#include "schedules/planner/host/program_copy.h"

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
  phase_ = host_.phase_;
}

/// `places`: index into storages_ by buffer claimed since from_. False: more than its geometry
/// matters of `t`, or its memory is older.
bool StepCopy::describe(SymTensor& t, std::span<std::uint32_t> places) {
  const std::uint32_t buffer =
      t->storage->buffer.value - static_cast<std::uint32_t>(from_->buffers);
  if (t->grad_fn || t->group.valid() || buffer >= places.size()) return false;
  if (places[buffer] == kNoPlace) {
    places[buffer] = static_cast<std::uint32_t>(storages_.size());
    storages_.push_back(*t->storage);
  }
  held_.push_back({&t, t->dtype, t->requires_grad, places[buffer], t->shape, t->stride, t->offset});
  return true;
}

bool StepCopy::copy() {
  if (!to_ || !ready()) return false;
  RankProgram& p = host_.program().program();
  const ProgramPosition now(p);
  if (!write_again(p, *from_, *to_, storages_.size())) return false;
  host_.phase_ = phase_;
  for (SymStorage& s : storages_)
    s.buffer.value += static_cast<std::uint32_t>(now.buffers - from_->buffers);
  restore();
  from_ = now;  // A further step is a copy of this one.
  to_.emplace(p);
  return true;
}

/// The tensors of held_.
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
