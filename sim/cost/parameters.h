#pragma once

// Every number of the kernel, host and interference models that is not a fact of a hardware
// profile, in one place, each with its source. Facts of a profile (peaks, bandwidths, fitted
// efficiencies) stand in hwprofiles/catalogue. `calibrate` writes these fields; nothing else does.
//
// Sources: [H] measured host dispatch of PyTorch 2.15 on the reference CPU (docs/host-time.md); [T]
// fit to public training runs, leave-one-laboratory-out; [K] fit to public kernel tables (SimuMax
// A100 and H100 shapes); [J] judgement.

#include <array>
#include <cstdint>
#include <optional>

#include "core/units.h"

namespace foreshard {

/// Which attention kernel runs: worth more than any other fact after the GPU type [T].
enum class AttentionKernel : std::uint8_t { kFlash2, kFlash1, kFlash3, kCudnn };
inline constexpr int kAttentionKernelCount = static_cast<int>(AttentionKernel::kCudnn) + 1;

/// Matrix products. The large-shape ceiling, the wave exponent, the depth constant and the launch
/// time are facts of the GPU ("matmul_*" of its efficiency section).
struct MatmulParameters {
  struct Tile {
    std::int64_t m, n;
    double rate;  ///< Relative to the largest tiles.
  };
  /// Tiles that a library kernel may use; the fastest wins [K].
  std::array<Tile, 5> tiles{
      {{256, 128, 1}, {128, 256, 1}, {128, 128, 0.95}, {128, 64, 0.8}, {64, 64, 0.65}}};
  /// Ceiling of fp32 products on CUDA cores, where the tensor cores' power limit does not act [J];
  /// "matmul_fp32" of the GPU where it was measured.
  double fp32_ceiling = 0.85;
  /// fp32 products on tensor cores (torch.backends.cuda.matmul.allow_tf32).
  bool tf32 = false;
  /// 8-bit products with a scale for each row against one for the tensor: the epilogue multiplies
  /// by two vectors [T].
  double fp8_rowwise = 0.8;
  /// Scales every rate; 1 leaves the profile's ceiling. For calibration.
  double scale = 1;
};

/// Attention: rate = peak rate * s / (s + half length), facts of the GPU ("attention_*").
struct AttentionParameters {
  AttentionKernel kernel = AttentionKernel::kFlash2;
  /// Few blocks: forward 1 / (1 + (a / x)^e), backward 1 / (1 + b / x) with x = batch * heads *
  /// queries / 128 thread blocks on the 108 multiprocessors of an A100, relative to x = 2048 where
  /// the rates were measured [K].
  double forward_blocks = 155, forward_exponent = 1.3, backward_blocks = 60, measured_blocks = 2048;
  double reference_multiprocessors = 108;
  double forward_scale = 1, backward_scale = 1;  ///< For calibration.
};

/// Kernels bound by memory: bytes / (fraction * bandwidth) + launch time, facts of the GPU
/// ("memory_bound*").
struct MemoryBoundParameters {
  double scale = 1;  ///< Of the bandwidth; for calibration.
};

/// How transfers slow kernels down: gamma ("overlap_slowdown" of the GPU) at full NVLink ring
/// speed, less in proportion below it [T, gamma = 0.23, factor 1.5]: about one multiprocessor in
/// five is held by the collective.
struct InterferenceParameters {
  /// Full ring speed as a share of the NVLink bandwidth: 12 x 20 of 300 GB/s on A100, 12 x 30 of
  /// 450 on H100 (NCCL's channels).
  double ring_share = 0.8;
  /// Full ring speed as a share of memory bandwidth where there is no NVLink: 240 / 2039 and 360 /
  /// 3350.
  double memory_share = 0.11;
  double scale = 1;  ///< For calibration.
  /// How much longer a transfer at full ring speed takes while kernels run on its GPUs, less in
  /// proportion below it. Rashidi et al. (ACE, ISCA 2021, figure 5, from memory, unverified): NCCL
  /// all-reduces on 8 V100 take 1.16 times as long beside matrix products, 1.42 times beside
  /// embedding look-ups; training is mostly the former.
  double transfer_slowdown = 0.16;
};

/// Links, for transfers that share them.
struct LinkParameters {
  double nvlink_share = 0.85;  ///< Of the bandwidth as sold: peer writes reach 0.83 to 0.91.
  double pcie_share =
      0.82;  ///< Of the slot's bandwidth: 26 of 31.5, 51.5 of 63 GB/s host to device.
  /// Bytes to or from pageable memory pass the driver's staging buffer, copied by one host thread:
  /// 6.7 GB/s for memcpy by pieces of 4 MiB on a cloud Xeon, measured.
  double pageable_rate = 6.7e9;
  Time copy_latency = microseconds(10);  ///< From issue to the first byte of a copy over PCIe [J].
  /// Bus bandwidths (nccl-tests' convention) that were measured on the very machines of a run, over
  /// all of its ranks, with messages of `bytes`: the time of collectives over several nodes is
  /// scaled by modelled / measured. B/s; 0: not measured.
  struct MeasuredBus {
    double all_gather = 0, reduce_scatter = 0, all_reduce = 0;
    double bytes = 256e6;
  } measured;
};

/// Host thread, in microseconds of the reference CPU unless said; times the node's CPU factor.
struct HostParameters {
  double cold_forward = 1.5,
         cold_backward = 1.25;  ///< Real blocks against tight loops: cold caches [H].
  double optimizer = 1.2;       ///< Optimizer and clipping calls in real models [H].
  // Driver calls; their published values come from server hosts and are not scaled by the CPU
  // factor.
  double launch_us = 2.3;  ///< One kernel (1.5 to 2.9).
  double record_event_us = 1.0, wait_event_us = 0.5;
  double collective_us = 10;      ///< NCCL enqueue (8 to 15, factor 2).
  double copy_us = 2.3;           ///< As a launch [J].
  double sync_us = 5;             ///< Return of a blocking call [J].
  double segment_alloc_us = 600;  ///< cudaMalloc of a large segment: 150 to 2500, geometric middle.
  double segment_free_us = 570;   ///< cudaFree: 200 to 1600, geometric middle.
  std::int64_t launch_queue = 1024;  ///< Launches that the driver accepts ahead (unverified).
};

/// Kernels that the CPU runs on host memory (offloaded optimizers). They are bound by memory; the
/// GPUs' processes share it.
struct HostKernelParameters {
  /// Of the bandwidth as sold. Ren and others, USENIX ATC 2021 (table 4, from memory, unverified):
  /// CPU-Adam updates 1, 4 and 10 B parameters in 0.22, 1.03 and 2.57 s on two Xeon 8168 (256 GB/s
  /// as sold); at 28 bytes a parameter that is 0.50, 0.43 and 0.43.
  double memory_share = 0.45;
  double unknown_memory_bandwidth = 200e9;  ///< B/s of a node whose profile does not say [J].
};

/// Whole steps.
struct StepParameters {
  /// Standard deviation of GPU speeds where the profile has no "speed_spread": kernels take 1 +
  /// sigma * (E[max of n] - E[max of 8]) times their time, n GPUs, because a step waits for the
  /// slowest [T, factor 1.4].
  double slowest_gpu_sigma = 0.026;
  /// Work of each step that the schedule does not hold (a recipe's metrics).
  Time fixed;
};

/// Device memory outside the allocator.
struct MemoryParameters {
  /// NCCL: bytes of buffers per channel and connection (Simple 4 MiB, LL128 4.7 MiB, LL 0.5 MiB),
  /// two connections.
  double bytes_per_channel = 2 * 9.2 * 1048576;
};

struct CostParameters {
  MatmulParameters matmul;
  AttentionParameters attention;
  MemoryBoundParameters memory_bound;
  InterferenceParameters interference;
  LinkParameters links;
  HostParameters host;
  HostKernelParameters host_kernels;
  StepParameters step;
  MemoryParameters memory;
};

}  // namespace foreshard
