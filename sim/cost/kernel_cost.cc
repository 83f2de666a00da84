#include "sim/cost/kernel_cost.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/error.h"

namespace foreshard {
namespace {

constexpr double kPicosecond = 1e12;

/// Rounds up; saturates far below the end of the range.
Time from_picoseconds(double ps) {
  return Time(static_cast<std::int64_t>(std::ceil(std::clamp(ps, 0.0, 2e18))));
}

/// Used where a profile says nothing: values of the A100, whose tables are the widest.
constexpr double kDefaultCeiling = 0.70, kDefaultDepth = 145, kDefaultExponent = 0.64,
                 kDefaultLaunchUs = 4.6;
/// Attention: sequence length that reaches half the rate; flash-attention 1 to 2, each way.
constexpr double kDefaultHalfLength = 400, kDefaultFlash1[2] = {0.64, 0.57};
constexpr double kDefaultMemoryLaunchUs = 3;

double seconds_or(const GpuProfile& gpu, std::string_view key, double fallback_us) {
  return gpu.efficiency_or(key, fallback_us * 1e-6) * kPicosecond;
}

double tiles_for(std::int64_t extent, std::int64_t tile) {
  return std::ceil(static_cast<double>(extent) / static_cast<double>(tile));
}

double integrate_maximum(std::int64_t n) {
  // E[max] = integral of x d(Phi(x)^n), summed over small steps.
  constexpr double kFrom = -8, kTo = 9;
  constexpr int kSteps = 2000;
  const auto below = [&](double x) {
    return std::pow(0.5 * std::erfc(-x / std::sqrt(2.0)), static_cast<double>(n));
  };
  double sum = 0, last = below(kFrom);
  for (int i = 0; i < kSteps; ++i) {
    const double x = kFrom + (kTo - kFrom) * (i + 1) / kSteps;
    const double next = below(x);
    sum += (x - (kTo - kFrom) / kSteps / 2) * (next - last);
    last = next;
  }
  return sum;
}

}  // namespace

double expected_maximum(std::int64_t n) {
  if (n < 2) return 0;
  static std::mutex mutex;  // few numbers of GPUs, asked for again in every simulation
  static std::map<std::int64_t, double> known;
  const std::lock_guard lock(mutex);
  const auto [at, fresh] = known.try_emplace(n);
  if (fresh) at->second = integrate_maximum(n);
  return at->second;
}

KernelCostModel::KernelCostModel(const GpuProfile& gpu, const CostParameters& parameters)
    : gpu_(gpu), parameters_(parameters) {
  if (!gpu.memory_bandwidth.known() || gpu.memory_bandwidth.value <= 0) {
    throw InputError(
        Issue{gpu.name, "memory_bandwidth", "is not known", "every kernel time needs it"});
  }
  multiprocessors_ = gpu.multiprocessors.value_or(0);
  bandwidth_ = gpu.memory_bandwidth.value * gpu.efficiency_or_usual("memory_bound") *
               parameters.memory_bound.scale;
  launch_ps_ = seconds_or(gpu, "memory_bound_launch", kDefaultMemoryLaunchUs);
  matmul_launch_ps_ = seconds_or(gpu, "matmul_launch", kDefaultLaunchUs);
  training_ = gpu.efficiency_or("matmul_training", kDefaultCeiling);
  fp32_ = gpu.efficiency_or("matmul_fp32", parameters.matmul.fp32_ceiling);
  depth_ = gpu.efficiency_or("matmul_depth_constant", kDefaultDepth);
  exponent_ = gpu.efficiency_or("matmul_wave_exponent", kDefaultExponent);
  weight_gradient_ = gpu.efficiency_or("matmul_weight_gradient", 1);
  fp8_ = gpu.efficiency_or("fp8_matmul", 1);
  const auto math =
      parameters.matmul.tf32 ? GpuProfile::Float32Math::kTf32 : GpuProfile::Float32Math::kIeee;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (is_floating(dtype)) peak_[static_cast<std::size_t>(i)] = gpu.peak(dtype, math).value_or(0);
  }
  const double fallback =
      gpu.peak(DType::kFloat16).value_or(gpu.peak(DType::kFloat32).value_or(0)) * 0.5;
  for (int k = 0; k < kAttentionKernelCount; ++k) {
    const auto kernel = static_cast<AttentionKernel>(k);
    for (const int size : {64, 128}) {
      for (const Direction d : {Direction::kForward, Direction::kBackward}) {
        const std::string key = attention_rate_key(gpu, kernel, size, d).key;
        Rate& rate = attention_[k][size == 64 ? 0 : 1][static_cast<int>(d)];
        rate = {gpu.efficiency_or(key, fallback),
                gpu.efficiency_or(key + "_half_length", kDefaultHalfLength)};
        if (kernel != AttentionKernel::kFlash1) continue;
        rate.peak *= gpu.efficiency_or(flash1_ratio_key(d), kDefaultFlash1[static_cast<int>(d)]);
      }
    }
  }
}

double KernelCostModel::ceiling(DType dtype) const {
  const double scale = parameters_.matmul.scale;
  switch (dtype) {
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      return training_ * fp8_ * scale;
    case DType::kFloat32:
      return (parameters_.matmul.tf32 ? training_ : fp32_) * scale;
    case DType::kFloat64:
      return parameters_.matmul.fp32_ceiling * scale;
    default:
      return training_ * scale;
  }
}

Time KernelCostModel::matmul(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t batch,
                             DType dtype, bool weight_gradient, bool row_scales) const {
  if (m <= 0 || n <= 0 || k <= 0) return Time(0);
  batch = std::max<std::int64_t>(batch, 1);
  const double peak = peak_[static_cast<std::size_t>(dtype)];
  if (peak <= 0) {
    const bool fp16_instead =
        dtype == DType::kBFloat16 && peak_[static_cast<std::size_t>(DType::kFloat16)] > 0;
    throw InputError(
        Issue{gpu_.name, std::string("peak_") + std::string(name_of(dtype)),
              "is not known, but the job multiplies matrices in " + std::string(name_of(dtype)),
              fp16_instead ? "this GPU has none for it: --param-dtype fp16 (or fp32)"
                           : "another dtype, or a profile with this peak"});
  }
  const double count = static_cast<double>(batch);
  const double flops =
      2 * count * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const double full = peak * ceiling(dtype) * (weight_gradient ? weight_gradient_ : 1) *
                      (row_scales ? parameters_.matmul.fp8_rowwise : 1);
  double best = 1e300;
  for (const MatmulParameters::Tile& tile : parameters_.matmul.tiles) {
    const double blocks = tiles_for(m, tile.m) * tiles_for(n, tile.n) * count;
    double q = count * static_cast<double>(m) * static_cast<double>(n) /
               (blocks * static_cast<double>(tile.m * tile.n));
    if (multiprocessors_ > 0)
      q *= blocks / (std::ceil(blocks / multiprocessors_) * multiprocessors_);
    best = std::min(best, flops / (full * tile.rate * std::pow(q, exponent_)));
  }
  best *= 1 + depth_ / static_cast<double>(k);
  const double bytes = count * static_cast<double>(size_of(dtype)) *
                       (static_cast<double>(m) * static_cast<double>(k) +
                        static_cast<double>(k) * static_cast<double>(n) +
                        static_cast<double>(m) * static_cast<double>(n));
  return from_picoseconds(std::max(best, bytes / bandwidth_) * kPicosecond + matmul_launch_ps_);
}

KernelCostModel::Rate KernelCostModel::attention_rate(Direction direction, AttentionKernel kernel,
                                                      double head_dim) const {
  const int d = static_cast<int>(direction);
  const auto& by_size = attention_[static_cast<int>(kernel)];
  if (kernel == AttentionKernel::kFlash1) return by_size[1][d];  // One rate for any head size.
  const double x = wide_share(kernel, head_dim);  // Between the sizes that were measured.
  const Rate &small = by_size[0][d], &large = by_size[1][d];
  return {small.peak + x * (large.peak - small.peak),
          small.half_length + x * (large.half_length - small.half_length)};
}

Time KernelCostModel::attention(const std::array<std::int64_t, 6>& dims, Flops flops,
                                Direction direction, AttentionKernel kernel) const {
  const AttentionParameters& p = parameters_.attention;
  const double queries = static_cast<double>(std::max<std::int64_t>(dims[2], 1));
  const double keys = static_cast<double>(std::max<std::int64_t>(dims[3], 1));
  if (dims[0] <= 0 || dims[1] <= 0) return Time(0);
  const double sequences = static_cast<double>(dims[0]) * static_cast<double>(dims[1]);
  const double blocks = sequences * std::max(queries / 128, 1.0);
  const Rate rate = attention_rate(direction, kernel, static_cast<double>(dims[4]));
  const double width = multiprocessors_ > 0 ? multiprocessors_ / p.reference_multiprocessors : 1;
  const auto filled = [&](double x) {
    return direction == Direction::kForward
               ? 1 / (1 + std::pow(p.forward_blocks * width / x, p.forward_exponent))
               : 1 / (1 + p.backward_blocks * width / x);
  };
  const double fill = std::min(1.0, filled(blocks) / filled(p.measured_blocks * width));
  const double scale = direction == Direction::kForward ? p.forward_scale : p.backward_scale;
  // Two products forward, five backward, half of them under a causal mask.
  const double pair =
      (direction == Direction::kForward ? 2 : 5) * 2 * sequences * static_cast<double>(dims[4]);
  const double half = dims[5] > 0 ? 0.5 : 1;
  const double work =
      flops.value > 0 ? static_cast<double>(flops.value) : pair * queries * keys * half;
  // A window shortens the loop over keys: as long as in a triangle (or square) of as many pairs.
  const double seen = pair > 0 ? work / (pair * queries * half) : keys;
  const double loop = seen < 0.99 * keys ? seen : keys;
  const double reached = rate.peak * loop / (loop + rate.half_length) * fill * scale;
  if (reached <= 0)
    throw InputError(
        Issue{gpu_.name, "efficiency", "has no attention rate and no peak to derive it from", ""});
  return from_picoseconds(work / reached * kPicosecond + launch_ps_);
}

Time KernelCostModel::memory_bound(Bytes bytes, int kernels) const {
  return from_picoseconds(static_cast<double>(bytes.value) / bandwidth_ * kPicosecond +
                          launch_ps_ * kernels);
}

double KernelCostModel::memory_share(const Launch& l, Time time) const {
  if (time.value <= 0) return 0;
  const double seconds = static_cast<double>(time.value) / kPicosecond;
  return std::min(1.0, static_cast<double>((l.read + l.written).value) / bandwidth_ / seconds);
}

Time KernelCostModel::time(const Launch& l) const {
  const int kernels = std::max<int>(l.kernels, 1);
  switch (l.op) {
    case OpKind::kMatmul:
    case OpKind::kMatmulBias:
    case OpKind::kGroupedMatmul:
    case OpKind::kConv2d:
    case OpKind::kConv2dBackward: {
      const Time extra = kernels > 1 ? from_picoseconds(launch_ps_ * (kernels - 1)) : Time(0);
      return matmul(l.dims[0], l.dims[1], l.dims[2], l.dims[3], l.dtype,
                    l.dims[4] == kWeightGradientProduct, l.dims[5] == kRowScales) +
             extra;
    }
    case OpKind::kFlashAttention:
    case OpKind::kFlashAttentionBackward:
    case OpKind::kEfficientAttention:
    case OpKind::kEfficientAttentionBackward: {
      const Time extra = kernels > 1 ? from_picoseconds(launch_ps_ * (kernels - 1)) : Time(0);
      return attention(l.dims, l.flops, attention_direction_of(l),
                       attention_kernel_of(l, parameters_.attention.kernel)) +
             extra;
    }
    case OpKind::kObserve:
      return Time(0);
    default:
      return memory_bound(l.read + l.written, kernels);
  }
}

}  // namespace foreshard
