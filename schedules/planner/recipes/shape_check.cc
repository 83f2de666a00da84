#include "schedules/planner/recipes/shape_check.h"

#include <fmt/format.h>

#include <string>

#include "schedules/planner/host/host_refusal.h"

namespace foreshard {
namespace {

std::string text_of(const Shape& s) {
  std::string out = "[";
  for (int d = 0; d < s.rank; ++d) out += (d > 0 ? ", " : "") + std::to_string(s[d]);
  return out + "]";
}

std::string place_of(Host& h) {
  return h.scope().valid() ? h.program().program().scopes[h.scope().value] : "model";
}

}  // namespace

void refuse_shapes(Host& h, std::string_view function, const Shape& a, const Shape& b) {
  throw HostRefusal(place_of(h), fmt::format("{} of {} and {}", function, text_of(a), text_of(b)),
                    "shapes that fit together");
}

void check_product(Host& h, const SymTensor& a, const SymTensor& b, const SymTensor& bias) {
  if (a->shape[-1] != b->shape[-2]) refuse_shapes(h, "matrix product", a->shape, b->shape);
  if (bias && bias->shape[-1] != b->shape[-1])
    refuse_shapes(h, "matrix product and bias", b->shape, bias->shape);
}

void check_norm(Host& h, const SymTensor& x, const SymTensor& weight) {
  if (weight && weight->numel != x->shape[-1]) refuse_shapes(h, "norm", x->shape, weight->shape);
}

void check_attention(Host& h, const SymTensor& q, const SymTensor& k, const SymTensor& v) {
  if (q->dtype != k->dtype || k->dtype != v->dtype) {
    throw HostRefusal(place_of(h),
                      fmt::format("attention of queries in {}, keys in {} and values in {}",
                                  name_of(q->dtype), name_of(k->dtype), name_of(v->dtype)),
                      "one dtype");
  }
  const bool fits = q->shape.rank == 4 && k->shape.rank == 4 && v->shape.rank == 4 &&
                    q->shape[0] == k->shape[0] && q->shape[3] == k->shape[3] && k->shape[1] > 0 &&
                    q->shape[1] % k->shape[1] == 0;
  if (!fits) refuse_shapes(h, "attention", q->shape, k->shape);
  if (k->shape[2] != v->shape[2] || k->shape[1] != v->shape[1])
    refuse_shapes(h, "attention's keys and values", k->shape, v->shape);
}

void check_targets(Host& h, const SymTensor& logits, const SymTensor& targets) {
  if (logits->numel != targets->numel * logits->shape[-1])
    refuse_shapes(h, "loss", logits->shape, targets->shape);
}

}  // namespace foreshard
