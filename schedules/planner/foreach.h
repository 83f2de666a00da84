#pragma once

// Launches over lists of tensors (torch._foreach_*), one launch record for each call.

#include <span>
#include <vector>

#include "schedules/planner/host/host.h"

namespace foreshard {

using TensorList = std::vector<SymTensor>;

/// Launches one list operation: operands are the lists one after the other.
void launch_lists(Host& host, OpKind op, std::initializer_list<const TensorList*> inputs,
                  std::initializer_list<const TensorList*> outputs,
                  std::initializer_list<double> attributes = {});

/// Kernels of a multi-tensor launch over `list` with `depth` lists and perhaps a scalar for each
/// tensor, which share a kernel's arguments: these bound its tensors, and its chunks of 65,536
/// elements (aten/src/ATen/native/cuda/MultiTensorApply.cuh of PyTorch 2.15; counted on a stand-in
/// H100).
std::int64_t multi_tensor_kernels(const TensorList& list, int depth, bool scalars = false);
/// Kernels of torch.cat of so many tensors.
std::int64_t cat_kernels(std::size_t inputs);

/// Device table of split_with_sizes_copy of `chunks` rows into parts of these bytes a row: one
/// entry a block of 2 KiB, more where the kernel lets a block do several rounds, and four a part
/// (aten/src/ATen/native/cuda/TensorShape.cu, H100).
std::int64_t split_copy_table_bytes(std::span<const std::int64_t> part_bytes, std::int64_t chunks);
/// Device table of _chunk_cat for parts of these bytes per rank in the output's dtype.
std::int64_t chunk_cat_table_bytes(std::span<const std::int64_t> part_bytes);

}  // namespace foreshard
