// Experts that a Python loop visits one by one (DBRX in transformers 5.24: DbrxExperts.forward).

#include <array>

#include "schedules/planner/recipes/experts.h"
#include "schedules/planner/recipes/special.h"

namespace foreshard {
namespace {

/// x[i, j] with two index tensors; both are saved. Edges: x.
void pairs_backward(BackwardContext& ctx) {
  SymTensor i = ctx.saved(0), j = ctx.saved(1);
  SymTensor g = empty_result(ctx.host, ctx.node.shape, ctx.grad()->dtype);
  ctx.host.launch(OpKind::kFill, {}, {g}, {0.0});
  ctx.host.launch(OpKind::kIndexAdd, {g, i, j, ctx.grad()}, {g}, {0.0});
  ctx.set(0, std::move(g));
}

SymTensor pairs(Host& h, const SymTensor& x, const SymTensor& i, const SymTensor& j) {
  Record r(h, pairs_backward, {&x});
  if (r) {
    r->shape = x->shape;
    r.save(i);
    r.save(j);
  }
  SymTensor y = empty_result(h, {i->numel, 1}, x->dtype);
  h.launch(OpKind::kIndexSelect, {x, i, j}, {y}, {0.0});
  r.attach(y);
  return y;
}

/// index_add_ in place. Saved: index, source. Edges: self, source.
void index_add_backward(BackwardContext& ctx) {
  SymTensor index = ctx.saved(0), source = ctx.saved(1);
  if (ctx.needs(0)) ctx.set(0, ctx.grad());
  if (!ctx.needs(1)) return;
  SymTensor y = empty_result(ctx.host, source->shape, source->dtype);
  ctx.host.launch(OpKind::kIndexSelect, {ctx.grad(), index}, {y}, {0.0});
  ctx.set(1, std::move(y));
}

/// The same storage with a new history.
SymTensor index_add_in_place(Host& h, const SymTensor& self, const SymTensor& index,
                             const SymTensor& source) {
  Record r(h, index_add_backward, {&self, &source});
  if (r) {
    r.save(index);
    r.save(source);
  }
  h.launch(OpKind::kIndexAdd, {self, index, source}, {self}, {0.0});
  SymTensor y = h.view_as(self, self->shape, self->offset);
  r.attach(y);
  return y;
}

struct Share {
  SymTensor token, place;
};

/// torch.where(mask[expert]): the tokens of an expert and which of their choices it is.
Share share_of(Host& h, const SymTensor& mask, std::int64_t size) {
  const NoGradGuard no_grad(h);
  Share s{empty_result(h, {size}, DType::kInt64), empty_result(h, {size}, DType::kInt64)};
  h.launch(OpKind::kNonzero, {mask}, {s.place, s.token});
  return s;
}

}  // namespace

SymTensor looped_experts(Host& h, const Statement& s, std::span<SymTensor> in) {
  const std::int64_t experts = s.ints[0], k = s.ints[1], tokens = in[0]->shape[0],
                     hidden = in[0]->shape[1];
  const auto weight = [&](std::size_t i, std::int64_t expert) {
    const SymTensor& w = h.parameter(s.parameters[i]);
    return select(h, view(h, w, {experts, w->shape[0] / experts, hidden}), 0, expert);
  };
  SymTensor y = empty_result(h, in[0]->shape, in[0]->dtype);
  h.launch(OpKind::kFill, {}, {y}, {0.0});
  SymTensor mask = empty_result(h, {experts + 1, k, tokens}, DType::kInt64);
  h.launch(OpKind::kScatter, {in[2], in[2]}, {mask}, {0.0});
  for (std::int64_t e = 0; e < experts; ++e) {
    const Share share = share_of(h, mask, tokens * k / experts);
    SymTensor v1 = weight(1, e), w1 = weight(0, e), w2 = weight(2, e);
    SymTensor x = index_rows(h, in[0], share.token);
    SymTensor gate = matmul(h, x, transpose(h, w1, 0, 1)),
              up = matmul(h, x, transpose(h, v1, 0, 1));
    x.reset();
    gate = activate(h, s.ints.size() > 2 ? s.ints[2] : 0, gate);
    SymTensor down = matmul(h, mul(h, gate, up), w2);
    gate.reset();
    up.reset();
    SymTensor weighted = mul(h, down, pairs(h, in[1], share.token, share.place));
    down.reset();
    y = index_add_in_place(h, y, share.token, weighted);
  }
  return y;
}

}  // namespace foreshard
