// ZeRO: gradient norms, overflow checks, unscaling and clipping (Z3-O-1, Z12-O-1).

#include <array>
#include <limits>
#include <utility>

#include "schedules/planner/clip.h"
#include "schedules/planner/frameworks/zero.h"

namespace foreshard::zero {
namespace {

constexpr BufferCategory kClip = BufferCategory::kClipTemporary;

SymTensor scalar_like(Host& host, const SymTensor& t, DType dtype) {
  const MemorySpace space = t->storage->space;
  return space == MemorySpace::kDevice ? host.empty(Shape(), dtype, kClip)
                                       : host.empty_on_host(Shape(), dtype, space, kClip);
}

/// A few scalar kernels that ask whether a norm is a number; ours are.
void launch_test(Host& host, const SymTensor& norm, const SymTensor& invalid, int kernels) {
  constexpr double kEqual = 4;
  const std::array<double, 2> attributes{kEqual, std::numeric_limits<double>::infinity()};
  LaunchRequest q;
  q.op = OpKind::kCompare;
  q.inputs = {&norm, 1};
  q.outputs = {&invalid, 1};
  q.attributes = attributes;
  q.kernels = kernels;
  host.launch(q);
}

}  // namespace

/// gradient.to(fp64).norm(2): a whole copy of eight bytes an element for a moment.
SymTensor Zero::wide_norm(Host& host, const SymTensor& gradient) {
  const SymTensor wide = host.cast(gradient, DType::kFloat64, kClip);
  return vector_norm(host, wide);
}

SymTensor Zero::global_norm(Host& host, const TensorList& gradients, DType dtype) {
  SymTensor square = host.empty({1}, dtype, kClip);
  if (gradients.empty()) {
    host.launch(OpKind::kFill, {}, {square}, {0.0});
  } else {
    SymTensor own;
    {
      TensorList norms;
      for (const SymTensor& g : gradients) norms.push_back(wide_norm(host, g));
      own = vector_norm(host, stack_scalars(host, norms));
    }
    own = host.cast(host.view_as(own, {1}, own->offset), dtype, kClip);
    host.launch(OpKind::kPow, {own}, {square}, {2.0});
  }
  const std::string before = std::exchange(cause_, "grad_norm");
  collective(host, CollectiveKind::kAllReduce, square, square, -1, ReduceOp::kSum);
  cause_ = before;
  SymTensor norm = host.empty(Shape(), DType::kFloat32, kClip);
  const SymTensor wide = host.cast(square, DType::kFloat32, kClip);
  host.launch(OpKind::kSqrt, {host.view_as(wide, Shape(), wide->offset)}, {norm});
  return norm;
}

/// Python adds the squares up on the device, float() reads them; one fp32 number goes up again,
/// over the ranks and back.
SymTensor Zero::offloaded_norm(Host& host, const TensorList& norms) {
  SymTensor square = host.empty({1}, DType::kFloat32, kClip);
  if (norms.empty()) {
    host.launch(OpKind::kFill, {}, {square}, {0.0});
  } else {
    SymTensor total;
    for (const SymTensor& n : norms) {
      SymTensor s = host.empty(Shape(), n->dtype, kClip);
      host.launch(OpKind::kPow, {n}, {s}, {2.0});
      if (!total) {
        total = std::move(s);
        continue;
      }
      SymTensor sum = host.empty(Shape(), n->dtype, kClip);
      host.launch(OpKind::kAdd, {total, s}, {sum});
      total = std::move(sum);
    }
    host.read_back(total);
    host.launch(OpKind::kCopy, {host.view_as(total, {1}, total->offset)}, {square});
  }
  const std::string before = std::exchange(cause_, "grad_norm");
  collective(host, CollectiveKind::kAllReduce, square, square, -1, ReduceOp::kSum);
  cause_ = before;
  SymTensor norm = host.empty(Shape(), DType::kFloat32, kClip);
  host.launch(OpKind::kSqrt, {host.view_as(square, Shape(), square->offset)}, {norm});
  SymTensor down = host.empty_on_host(Shape(), DType::kFloat32, MemorySpace::kHostPageable, kClip);
  copy_across(host, norm, down, true);
  return down;
}

SymTensor Zero::combined_norm(Host& host, const TensorList& norms) {
  if (norms.size() == 1) return norms[0];
  SymTensor stacked;
  if (in_host_memory(norms[0])) {
    stacked = host.empty_on_host({static_cast<std::int64_t>(norms.size())}, DType::kFloat32,
                                 MemorySpace::kHostPageable, kClip);
    TensorList rows;
    for (const SymTensor& n : norms) rows.push_back(host.view_as(n, {1}, n->offset));
    const TensorList out{stacked};
    launch_lists(host, OpKind::kCat, {&rows}, {&out}, {0.0});
  } else {
    stacked = stack_scalars(host, norms);
  }
  SymTensor norm = scalar_like(host, norms[0], DType::kFloat32);
  host.launch(OpKind::kNorm, {stacked}, {norm}, {2.0});
  return norm;
}

void Zero::reduce_overflow(Host& host, const SymTensor& flag) {
  const std::string before = std::exchange(cause_, "overflow");
  collective(host, CollectiveKind::kAllReduce, flag, flag, -1, ReduceOp::kMax);
  cause_ = before;
  host.read_back(flag);
}

/// -1 comes up from Python where the norm is no number; masked_fill_ (not torch.where) asks the
/// device for that number again.
void Zero::mask_invalid(Host& host, const SymTensor& norm, bool reads_value) {
  const SymTensor invalid = host.empty(norm->shape, DType::kBool, kClip);
  const SymTensor value = host.empty(Shape(), DType::kFloat32, kClip);
  Copy up;
  up.direction = CopyDirection::kHostToDevice;
  up.bytes = Bytes(value->bytes());
  up.destination = host.id_of(value);
  up.pageable = up.blocks_host = true;
  host.copy(up);
  if (reads_value) host.read_back(value);
  launch_test(host, norm, invalid, 5);
}

/// bool((~torch.isfinite(norm) | (norm < 0)).any())
void Zero::read_whether_invalid(Host& host, const SymTensor& norm) {
  if (in_host_memory(norm)) return;
  const SymTensor invalid = host.empty(Shape(), DType::kBool, kClip);
  launch_test(host, norm, invalid, 8);
  host.read_back(invalid);
}

/// amax, amin and a few scalar kernels for each gradient.
void Zero::check_finite(Host& host, const TensorList& gradients, const SymTensor& flag, bool read) {
  for (const SymTensor& g : gradients) {
    if (g->numel == 0) continue;
    SymTensor finite = host.empty({1}, DType::kFloat32, BufferCategory::kWorkspace);
    LaunchRequest q;
    q.op = OpKind::kCheckFinite;
    q.inputs = {&g, 1};
    q.outputs = {&finite, 1};
    q.kernels = 13;
    q.read_bytes = 2 * g->bytes();
    host.launch(q);
    if (read) host.read_back(finite);
  }
  host.launch(OpKind::kFill, {}, {flag},
              {0.0});  // A run that overflows would skip the step; ours do not.
}

void Zero::unscale_and_clip(Host& host, const SymTensor& gradient, const SymTensor& norm,
                            bool always) {
  if (!config_.clip) {
    if (always || loss_scale_ != 1)
      host.launch(OpKind::kMulInPlace, {gradient}, {gradient}, {1 / loss_scale_});
    return;
  }
  SymTensor coefficient = scalar_like(host, norm, DType::kFloat32);
  host.launch(OpKind::kClipCoefficient, {norm}, {coefficient}, {config_.max_norm});
  if (loss_scale_ != 1)
    host.launch(OpKind::kMulInPlace, {coefficient}, {coefficient}, {1 / loss_scale_});
  // A sub-group on the device beside an offloaded one: PyTorch hands the CPU scalar over with the
  // launch.
  if (!in_host_memory(gradient)) coefficient = to_device(host, coefficient, kClip, false);
  host.launch(OpKind::kMulInPlace, {gradient, coefficient}, {gradient});
}

}  // namespace foreshard::zero
