#include "schedules/planner/host/tensor.h"

#include <fmt/format.h>

#include "schedules/planner/host/host_impl.h"

namespace foreshard {

void refuse_rank(std::size_t rank) {
  throw DimensionError(Issue{"", "model", fmt::format("a tensor of {} dimensions", rank),
                             fmt::format("at most {}", kMaxRank)});
}

void refuse_dimension(int dimension, int rank) {
  throw DimensionError(
      Issue{"", "model", fmt::format("dimension {} of a tensor of {}", dimension, rank),
            rank == 0 ? "a tensor with dimensions" : fmt::format("{} to {}", -rank, rank - 1)});
}

void destroy(SymStorage* s) {
  HostImpl& impl = s->host->impl();
  if (impl.closing) return;  // The pool goes, too.
  if (s->buffer.valid()) s->host->program().free(s->buffer);
  s->buffer = {};
  s->refs = 0;
  s->unit = {};
  s->name = 0;
  impl.storages.give_back(s);
}

void destroy(SymTensorImpl* t) {
  HostImpl& impl = *t->impl;
  if (impl.closing) {  // The pool goes, too; nodes give back memory of their own.
    t->base.reset();
    t->grad_fn.reset();
    return;
  }
  if (t->grad_accumulator) t->grad_accumulator->variable = nullptr;
  t->refs = 0;
  t->requires_grad = false;
  t->output_nr = 0;
  t->grad_dtype = -1;
  t->offset = 0;
  t->offset_per_rank = 0;
  t->group = {};
  t->grad_accumulator = nullptr;
  t->id_generation = UINT32_MAX;
  t->version = 0;
  t->base.reset();
  t->grad.reset();
  t->storage.reset();
  t->scale.reset();
  t->grad_fn.reset();
  impl.tensors.give_back(t);
}

bool is_contiguous(const SymTensorImpl& t) {
  std::int64_t expected = 1;
  for (int d = t.shape.rank - 1; d >= 0; --d) {
    if (t.shape[d] == 1) continue;
    if (t.stride[static_cast<std::size_t>(d)] != expected) return false;
    expected *= t.shape[d];
  }
  return true;
}

std::array<std::int64_t, kMaxRank> contiguous_strides(const Shape& s) {
  std::array<std::int64_t, kMaxRank> stride{};
  std::int64_t n = 1;
  for (int d = s.rank - 1; d >= 0; --d) {
    stride[static_cast<std::size_t>(d)] = n;
    n *= s[d];
  }
  return stride;
}

}  // namespace foreshard
