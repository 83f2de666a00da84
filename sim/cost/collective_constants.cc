#include "sim/cost/collective_constants.h"

namespace foreshard {
namespace {

constexpr ProtocolConstants kOff{0, 0, 0, false};

// Which numbers are NCCL's own [N] and which are fits [F]: the table of docs/collectives.md.
constexpr GenerationConstants kVolta{{6.6, 0.6, 21}, kOff, {17, 7.5, 1.0}, {}, 0, 24};
constexpr GenerationConstants kAmpere{
    {6.6, 0.6, 16}, {14, 5.0, 0.22}, {42, 3.8, 0.97}, {}, 0.33, 24};
constexpr GenerationConstants kHopper{
    {6.6, 0.68, 141}, {14, 1.45, 0.87}, {6, 6.2, 1.0}, {25, 7, 272.5}, 0, 24};
// Blackwell rings: no public table of an NVLink-only ring; Simple as Hopper, assumed.
constexpr GenerationConstants kBlackwell{
    {6.6, 1.4, 30}, {14, 1.2, 0.45}, {6, 6.2, 1.0}, {25, 7.5, 480}, 0, 32};
// AMD (RCCL): no single-node table; latencies as Ampere, assumed.
constexpr GenerationConstants kCdna{{6.6, 0.6, 20}, kOff, {42, 3.8, 1.0}, {}, 0, 24};
// PCIe boxes: LL128 is off there [N].
constexpr GenerationConstants kPcie{{6.6, 1.8, 8.0}, kOff, {8.4, 17, 1.0}, {}, 0, 8};

}  // namespace

const GenerationConstants& collective_constants(GpuGeneration generation, bool over_nvlink) {
  if (!over_nvlink) return kPcie;
  switch (generation) {
    case GpuGeneration::kVolta:
    case GpuGeneration::kTuring:
      return kVolta;
    case GpuGeneration::kAmpere:
    case GpuGeneration::kAda:
      return kAmpere;
    case GpuGeneration::kHopper:
      return kHopper;
    case GpuGeneration::kBlackwell:
      return kBlackwell;
    case GpuGeneration::kCdna:
      return kCdna;
  }
  return kAmpere;
}

}  // namespace foreshard
