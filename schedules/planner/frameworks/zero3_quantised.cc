// ZeRO 3: quantised gathers (qwZ) and quantised reduction (qgZ) of ZeRO++ (Z3-Q). Source: DeepSpeed
// 0.19.8 zero/partition_parameters.py (CUDAQuantizer, _all_gather_sequential,
// _all_gather_coalesced), comm/coalesced_collectives.py (all_to_all_quant_reduce),
// csrc/quantization/pt_binding.cpp.

#include <algorithm>
#include <utility>

#include "core/integers.h"
#include "schedules/planner/frameworks/zero3.h"

namespace foreshard::zero {
namespace {

constexpr std::int64_t kTargetBlock = 8000, kLargestBlock = 16000;

/// CUDAQuantizer.quantize: blocks of at most 16,000 elements, near 8,000, a multiple of 8 each.
std::int64_t blocks_of(std::int64_t numel) {
  std::int64_t blocks = ceil_div(numel, kTargetBlock);
  while (blocks < numel && numel % (8 * blocks) != 0) ++blocks;
  while (numel % (16 * blocks) == 0 && numel > kTargetBlock * blocks) blocks *= 2;
  if (numel % (8 * blocks) != 0) {
    throw ZeroError("AssertionError",
                    "Qantized weight requires the number of weights be a multiple of 8. Yet " +
                        std::to_string(numel) + " cannot be divided by 8*" +
                        std::to_string(blocks));
  }
  if (numel >= kLargestBlock * blocks) {
    throw ZeroError("AssertionError",
                    std::to_string(numel) + " / " + std::to_string(blocks) + " is larger than 16k");
  }
  return blocks;
}

/// One element a byte in int8, two in int4; a scale for each block.
struct Quantised {
  SymTensor bytes, scales;
};

Quantised empty_blocks(Host& host, std::int64_t bytes, std::int64_t blocks,
                       BufferCategory category) {
  SymTensor scales = host.empty({blocks}, DType::kFloat32, category);
  return {host.empty({bytes}, DType::kUInt8, category), std::move(scales)};
}

}  // namespace

/// int8 bytes and fp32 scales in two collectives. The kernel reads fp16: other dtypes are cast.
void Zero3::gather_quantised(Host& host, GatherHandle& handle, const TensorList& parts,
                             GroupId group) {
  std::int64_t total = 0;
  for (const std::int64_t n : handle.parts) total += n;
  handle.bytes = host.empty({handle.ranks * total}, DType::kUInt8, BufferCategory::kGatherOutput);
  TensorList here;
  for (const SymTensor& part : parts)
    here.push_back(to_device(host, part, BufferCategory::kGatherInput, true));
  const SymTensor joined =
      here.size() == 1 ? here[0] : flatten(host, here, BufferCategory::kGatherInput);
  here.clear();
  const SymTensor half = host.cast(joined, DType::kFloat16, BufferCategory::kGatherInput);
  const Quantised own = empty_blocks(host, total, blocks_of(total), BufferCategory::kGatherInput);
  host.launch(OpKind::kQuantizeBlocks, {half}, {own.bytes, own.scales});
  const auto gather_bytes = [&] {
    collective_in(host, group, CollectiveKind::kAllGather, own.bytes, handle.bytes);
  };
  if (parts.size() == 1) gather_bytes();
  handle.scales = host.empty({handle.ranks * own.scales->numel}, DType::kFloat32,
                             BufferCategory::kGatherOutput);
  if (parts.size() > 1) gather_bytes();
  collective_in(host, group, CollectiveKind::kAllGather, own.scales, handle.scales);
}

/// AllGatherHandle.wait, AllGatherCoalescedHandle.wait: one parameter becomes its own data, several
/// are cut out of the flat fp16 buffer afterwards.
void Zero3::finish_quantised(Host& host, GatherHandle& handle) {
  const bool alone = handle.parameters.size() == 1;
  PartitionedParameter& first = parameters_.at(handle.parameters[0]);
  SymTensor bytes = std::exchange(handle.bytes, SymTensor());
  const SymTensor scales = std::exchange(handle.scales, SymTensor());
  if (alone) bytes = flat_view(host, bytes, 0, first.numel);
  SymTensor wide =
      host.empty({bytes->numel}, DType::kFloat16,
                 alone ? BufferCategory::kUnshardedParameter : BufferCategory::kGatherOutput);
  host.launch(OpKind::kDequantizeBlocks, {bytes, scales}, {wide});
  if (!alone) {
    handle.flat = std::move(wide);
    return;
  }
  wide = host.cast(wide, dtype_, BufferCategory::kUnshardedParameter);
  host.set_data(first.full, host.view_as(wide, first.full->shape));
}

/// Of one node the gradients are reduced as without quantisation.
bool Zero3::reduces_quantised() const {
  return options_.quantised_gradients && world_ > options_.gpus_per_node;
}

/// A matrix that 2 W divides.
bool Zero3::exchanged_quantised(ParameterId id) const {
  const PartitionedParameter& p = parameters_.at(id);
  return p.full->grad->shape.rank >= 2 && p.numel % (2 * world_) == 0;
}

/// all_to_all_quant_reduce: matrices one by one; vectors, and what 2 W does not divide, by a
/// reduce-scatter each. All are reduced before the first is kept.
void Zero3::reduce_scatter_quantised(Host& host, const std::vector<ParameterId>& ids) {
  TensorList own;
  for (const ParameterId id : ids) {
    const PartitionedParameter& p = parameters_.at(id);
    if (!exchanged_quantised(id)) {
      own.push_back(scattered(host, {id}));
    } else {
      own.push_back(reduce_one_quantised(
          host, host.cast(p.full->grad, communication_dtype(), BufferCategory::kReduceTemporary)));
    }
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const PartitionedParameter& p = parameters_.at(ids[i]);
    const std::int64_t n = std::clamp<std::int64_t>(p.numel - rank_ * p.partition, 0, p.partition);
    if (n > 0) keep_partition(host, ids[i], flat_view(host, own[i], 0, n));
  }
}

/// int4 in blocks: all-to-all in the node, sums, int4 again, all-to-all across the nodes, mean of
/// the nodes' parts. Python's sum() starts from 0 and makes a tensor for each addition.
SymTensor Zero3::reduce_one_quantised(Host& host, const SymTensor& gradient) {
  constexpr BufferCategory kTemporary = BufferCategory::kReduceTemporary;
  const std::int64_t node = options_.gpus_per_node, nodes = world_ / node;
  const std::int64_t blocks = std::max({gradient->shape[0], gradient->shape[1], world_});
  const auto exchanged = [&](const Quantised& own, GroupId group) {
    Quantised got = empty_blocks(host, own.bytes->numel, own.scales->numel, kTemporary);
    collective_in(host, group, CollectiveKind::kAllToAll, own.bytes, got.bytes);
    collective_in(host, group, CollectiveKind::kAllToAll, own.scales, got.scales);
    return got;
  };
  const Quantised own = empty_blocks(host, gradient->numel / 2, blocks, kTemporary);
  host.launch(OpKind::kQuantizeBlocks, {gradient}, {own.bytes, own.scales});
  const Quantised of_node = exchanged(own, node_group_);
  const Quantised sums = empty_blocks(host, gradient->numel / 2 / node, blocks / node, kTemporary);
  host.launch(OpKind::kQuantizeBlocks, {of_node.bytes, of_node.scales}, {sums.bytes, sums.scales});
  const Quantised of_all = exchanged(sums, across_nodes_group_);
  const SymTensor wide = host.empty({gradient->numel / node}, DType::kFloat16, kTemporary);
  host.launch(OpKind::kDequantizeBlocks, {of_all.bytes, of_all.scales}, {wide});
  const std::int64_t part = gradient->numel / world_;
  const auto fresh = [&] { return host.empty({part}, DType::kFloat16, kTemporary); };
  SymTensor sum = fresh();
  host.launch(OpKind::kAddScalar, {flat_view(host, wide, 0, part)}, {sum}, {0.0});
  for (std::int64_t i = 1; i < nodes; ++i) {
    const SymTensor next = fresh();
    host.launch(OpKind::kAdd, {sum, flat_view(host, wide, i * part, part)}, {next});
    sum = next;
  }
  const SymTensor mean = fresh();
  host.launch(OpKind::kMulScalar, {sum}, {mean}, {1.0 / static_cast<double>(nodes)});
  return mean;
}

}  // namespace foreshard::zero
