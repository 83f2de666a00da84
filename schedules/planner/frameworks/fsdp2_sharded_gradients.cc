// The end of a reduction: the reduced buffer becomes the gradients of the shards (F2-RS-7,
// F2-AC-1).

#include <utility>

#include "schedules/planner/frameworks/fsdp2_reduce.h"

namespace foreshard::fsdp2 {

std::vector<SymTensor> Reducer::sharded_gradients(ParamGroup& group, const SymTensor& output,
                                                  const std::vector<std::size_t>& parameters) {
  struct Run {
    std::optional<DType> dtype;
    std::size_t begin = 0, end = 0;
    std::int64_t numel = 0;
  };
  std::vector<Run> runs;
  std::int64_t cast_numel = 0;
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    const ShardedParameter& p = group.parameters[parameters[k]];
    const auto dtype = p.sharded_grad_dtype();
    if (runs.empty() || runs.back().dtype != dtype) runs.push_back({dtype, k, k, 0});
    runs.back().end = k + 1;
    runs.back().numel += p.padded_local_numel();
    if (dtype && *dtype != output->dtype) cast_numel += p.padded_local_numel();
  }
  const bool copy_uncast = cast_numel > output->numel - cast_numel;
  std::vector<SymTensor> gradients;
  gradients.reserve(parameters.size());
  std::int64_t at = 0;
  for (const Run& run : runs) {
    SymTensor part =
        run.numel == output->numel ? output : host_.view_as(output, Shape{run.numel}, at);
    const bool casts = run.dtype && *run.dtype != output->dtype;
    if (casts) {
      part = host_.cast(part, *run.dtype, BufferCategory::kShardedGradient, group.unit);
    } else if (copy_uncast) {
      const SymTensor clone =
          host_.empty(Shape{run.numel}, part->dtype, BufferCategory::kShardedGradient, group.unit);
      host_.launch(OpKind::kCopy, {part}, {clone});
      part = clone;
    } else {
      host_.set_category(part, BufferCategory::kShardedGradient, group.unit);
    }
    std::int64_t offset = part->offset;
    for (std::size_t k = run.begin; k < run.end; ++k) {
      const ShardedParameter& p = group.parameters[parameters[k]];
      gradients.push_back(host_.view_as(part, p.local_shape, offset));
      offset += p.padded_local_numel();
    }
    at += run.numel;
  }
  return gradients;
}

void Reducer::accumulate(ParamGroup& group, const std::vector<std::size_t>& parameters,
                         std::vector<SymTensor> gradients, StreamIndex stream) {
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    const ShardedParameter& p = group.parameters[parameters[k]];
    SymTensor& local = group.runtime.parameters[parameters[k]].local;
    const bool add = static_cast<bool>(local->grad);
    if (p.offload) {
      SymTensor on_host =
          host_.empty_on_host(gradients[k]->shape, gradients[k]->dtype, local->storage->space,
                              BufferCategory::kShardedGradient, group.unit);
      Copy copy;
      copy.direction = CopyDirection::kDeviceToHost;
      copy.stream = stream;
      copy.phase = host_.phase();
      copy.pageable = local->storage->space != MemorySpace::kHostPinned;
      copy.blocks_host = add || copy.pageable;
      copy.bytes = Bytes(gradients[k]->bytes());
      copy.source = host_.id_of(gradients[k]);
      copy.destination = host_.id_of(on_host);
      host_.copy(copy);
      if (!copy.blocks_host) group.runtime.offload_events.push_back(host_.record_event(stream));
      gradients[k] = std::move(on_host);
    }
    if (add) {
      host_.launch(OpKind::kAddInPlace, {local->grad, gradients[k]}, {local->grad});
    } else {
      local->grad = gradients[k];
    }
  }
}

}  // namespace foreshard::fsdp2
