// ZeRO: states in host memory and the copies between there and the device.

#include "schedules/planner/frameworks/zero.h"

namespace foreshard::zero {

SymTensor Zero::host_tensor(Host& host, std::int64_t numel, DType dtype, BufferCategory category,
                            bool pinned) {
  return host.empty_on_host(
      {numel}, dtype, pinned ? MemorySpace::kHostPinned : MemorySpace::kHostPageable, category);
}

/// Pageable memory goes through the driver's staging buffer: the call returns when the data is
/// there.
void Zero::copy_across(Host& host, const SymTensor& from, const SymTensor& to, bool blocks) {
  const bool down = in_host_memory(to);
  const SymTensor& on_host = down ? to : from;
  Copy c;
  c.direction = down ? CopyDirection::kDeviceToHost : CopyDirection::kHostToDevice;
  c.bytes = Bytes(from->bytes());
  c.source = host.id_of(from);
  c.destination = host.id_of(to);
  c.pageable = on_host->storage->space == MemorySpace::kHostPageable;
  c.blocks_host = blocks || c.pageable;
  host.copy(c);
}

SymTensor Zero::widen_to_host(Host& host, const SymTensor& t, BufferCategory category,
                              bool pinned) {
  SymTensor wide = host_tensor(host, t->numel, DType::kFloat32, category, pinned);
  if (t->dtype == DType::kFloat32) {
    copy_across(host, t, wide, true);
    return wide;
  }
  const SymTensor landed = host_tensor(host, t->numel, t->dtype, category, false);
  copy_across(host, t, landed, true);
  host.launch(OpKind::kCopy, {landed}, {wide});
  return wide;
}

SymTensor Zero::to_device(Host& host, const SymTensor& t, BufferCategory category, bool blocks) {
  if (!in_host_memory(t)) return t;
  SymTensor d = host.empty(t->shape, t->dtype, category);
  copy_across(host, t, d, blocks);
  return d;
}

}  // namespace foreshard::zero
