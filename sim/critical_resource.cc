#include "sim/critical_resource.h"

namespace foreshard {
namespace {

std::string_view name_of_copy(CopyDirection d) {
  switch (d) {
    case CopyDirection::kHostToDevice:
      return "copy to device";
    case CopyDirection::kDeviceToHost:
      return "copy to host";
    case CopyDirection::kDeviceToDevice:
      break;
  }
  return "copy on device";
}

}  // namespace

std::string name_of(const CriticalResource& r) {
  using Kind = CriticalResource::Kind;
  switch (r.kind) {
    case Kind::kIdle:
      return "idle";
    case Kind::kHost:
      return "host";
    case Kind::kAllocator:
      return "allocator (cudaMalloc, cudaFree)";
    case Kind::kKernel:
      return std::string(name_of(r.kernel));
    case Kind::kCopy:
      return std::string(name_of_copy(r.copy));
    case Kind::kCollective:
      return std::string(name_of(r.collective)) + " (" + std::string(name_of(r.link)) + ")";
    case Kind::kStepOverhead:
      break;
  }
  return "step overhead";
}

}  // namespace foreshard
