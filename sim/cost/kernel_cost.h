#pragma once

// Time of one kernel alone on the GPU, from its kind, shape, dtype and bytes.

#include <array>
#include <cstdint>

#include "core/units.h"
#include "hwprofiles/profile.h"
#include "schedules/schedule.h"
#include "sim/cost/attention_rates.h"
#include "sim/cost/parameters.h"
#include "sim/cost_model.h"

namespace foreshard {

/// Facts of one GPU, looked up once. Immutable.
class KernelCostModel {
 public:
  /// InputError if the GPU lacks a fact that every kernel needs (memory bandwidth).
  KernelCostModel(const GpuProfile& gpu, const CostParameters& parameters);

  /// Device time of a launch. InputError if the GPU cannot compute in its dtype.
  Time time(const Launch& launch) const;

  /// Share of the reachable memory bandwidth that a launch of this time takes, 0..1.
  double memory_share(const Launch& launch, Time time) const;

  /// C[m, n] = A[m, k] B[k, n], `batch` times, by tile and wave quantisation:
  ///   max(2mnk / (peak * ceiling * tile * q^a) * (1 + K0/k), bytes / bandwidth) + launch time,
  ///   q = tiles / (waves * SMs) * useful area of the tiles; the fastest tile wins.
  /// `row_scales`: 8-bit operands with a scale for each row.
  Time matmul(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t batch, DType dtype,
              bool weight_gradient, bool row_scales = false) const;

  using Direction = AttentionDirection;
  /// Launch::dims of attention (docs/formats/op_operands.md); `flops` with the causal half counted
  /// once, 0 to derive them from dims (a sliding window has fewer); `kernel` may differ from the
  /// parameters' (other library).
  Time attention(const std::array<std::int64_t, 6>& dims, Flops flops, Direction direction,
                 AttentionKernel kernel) const;

  /// Kernels that read and write `bytes` in all.
  Time memory_bound(Bytes bytes, int kernels) const;

 private:
  struct Rate {
    double peak = 0, half_length = 0;  ///< FLOP/s; sequence length that reaches half of it
  };
  Rate attention_rate(Direction direction, AttentionKernel kernel, double head_dim) const;
  double ceiling(DType dtype) const;

  GpuProfile gpu_;
  CostParameters parameters_;
  double multiprocessors_ = 0;  ///< 0: unknown, no quantisation.
  double bandwidth_ = 0;        ///< Achievable, B/s.
  double launch_ps_ = 0, matmul_launch_ps_ = 0;
  double training_ = 0, fp32_ = 0, depth_ = 0, exponent_ = 0, weight_gradient_ = 1, fp8_ = 1;
  std::array<double, kDTypeCount> peak_{};  ///< FLOP/s; 0: cannot.
  /// By kernel, head size (64, 128), direction.
  Rate attention_[kAttentionKernelCount][2][2];
};

/// E[max of n standard normal numbers].
double expected_maximum(std::int64_t n);

}  // namespace foreshard
