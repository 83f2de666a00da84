// Losses: cross entropy as log_softmax and nll_loss, mean squared error.

#include "schedules/planner/recipes/shape_check.h"
#include "schedules/planner/recipes/special.h"

namespace foreshard {
namespace {

void log_softmax_backward(BackwardContext& ctx) {
  SymTensor y = ctx.saved(0);
  SymTensor gx = empty_result(ctx.host, ctx.grad()->shape, ctx.grad()->dtype);
  ctx.host.launch(OpKind::kLogSoftmaxBackward, {ctx.grad(), y}, {gx});
  ctx.set(0, std::move(gx));
}

/// Saved: self, target, total_weight.
void nll_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  SymTensor self = ctx.saved(0), target = ctx.saved(1), total = ctx.saved(2);
  SymTensor gx = empty_result(h, self->shape, self->dtype);
  h.launch(OpKind::kFill, {}, {gx}, {0.0});
  h.launch(OpKind::kNllLossBackward, {ctx.grad(), target, total}, {gx},
           {static_cast<double>(ctx.node.ints[0])});
  ctx.set(0, std::move(gx));
}

void mse_backward(BackwardContext& ctx) {
  SymTensor x = ctx.saved(0), y = ctx.saved(1);
  SymTensor gx = empty_result(ctx.host, x->shape, x->dtype);
  ctx.host.launch(OpKind::kMseLossBackward, {ctx.grad(), x, y}, {gx});
  ctx.set(0, std::move(gx));
}

}  // namespace

namespace {

/// The scalar's gradient, expanded and divided by the number of elements.
void mean_all_backward(BackwardContext& ctx) {
  const std::array<std::int64_t, kMaxRank> stride{};
  SymTensor wide = raw_view(ctx.host, ctx.grad(), ctx.node.shape, stride, ctx.grad()->offset);
  SymTensor gx = empty_result(ctx.host, ctx.node.shape, ctx.grad()->dtype);
  ctx.host.launch(OpKind::kMulScalar, {wide}, {gx},
                  {1.0 / static_cast<double>(ctx.node.shape.numel())});
  ctx.set(0, std::move(gx));
}

}  // namespace

SymTensor mean_square(Host& h, const SymTensor& x) {
  SymTensor squared = mul(h, x, x);
  Record r(h, mean_all_backward, {&squared});
  if (r) r->shape = squared->shape;
  SymTensor y = empty_result(h, Shape(), x->dtype);
  h.launch(OpKind::kMean, {squared}, {y});
  r.attach(y);
  return y;
}

SymTensor cross_entropy(Host& h, const SymTensor& logits, const SymTensor& targets,
                        LossReduction reduction) {
  check_targets(h, logits, targets);
  SymTensor log_probabilities;
  {
    Record r(h, log_softmax_backward, {&logits});
    log_probabilities = empty_result(h, logits->shape, logits->dtype);
    h.launch(OpKind::kLogSoftmax, {logits}, {log_probabilities});
    r.attach(log_probabilities);
    if (r) r.save_output(log_probabilities);
  }
  // log_softmax is asked for the logits' own dtype; under autocast only nll_loss wants fp32.
  log_probabilities = autocast_float(h, log_probabilities);
  Record r(h, nll_backward, {&log_probabilities});
  if (r) {
    r->ints[0] = static_cast<std::int64_t>(reduction);
    r.save(log_probabilities);
    r.save(targets);
  }
  SymTensor loss = empty_result(h, Shape(), log_probabilities->dtype);
  SymTensor total = empty_result(h, Shape(), log_probabilities->dtype);
  h.launch(OpKind::kNllLoss, {log_probabilities, targets}, {loss, total},
           {static_cast<double>(reduction)});
  r.attach(loss);
  if (r) r.save_output(total);
  return loss;
}

SymTensor mse_loss(Host& h, const SymTensor& x, const SymTensor& y) {
  Record r(h, mse_backward, {&x});
  if (r) {
    r.save(x);
    r.save(y);
  }
  SymTensor loss = empty_result(h, Shape(), x->dtype);
  h.launch(OpKind::kMseLoss, {x, y}, {loss});
  r.attach(loss);
  return loss;
}

}  // namespace foreshard
