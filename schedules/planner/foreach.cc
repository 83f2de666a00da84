#include "schedules/planner/foreach.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/integers.h"

namespace foreshard {

namespace {

constexpr std::size_t kMostLists = 5;  ///< Of one side of a launch.

}  // namespace

std::int64_t multi_tensor_kernels(const TensorList& list, int depth, bool scalars) {
  constexpr std::array<std::int64_t, 5> tensors_per_kernel{770, 448, 336, 252, 210};
  constexpr std::int64_t chunk = 65536, chunks_per_kernel = 2240;
  const std::int64_t most =
      scalars && depth == 1
          ? 672
          : tensors_per_kernel[static_cast<std::size_t>(std::clamp(depth, 1, 5) - 1)];
  std::int64_t kernels = 0, tensors = 0, chunks = 0;  // The last two: of the kernel being filled.
  for (const SymTensor& t : list) {
    std::int64_t left = ceil_div(t->numel, chunk);
    if (left == 0) continue;
    ++tensors;
    if (chunks + left < chunks_per_kernel && tensors < most) {
      chunks += left;
      continue;
    }
    while (left > 0) {
      const std::int64_t taken = std::min(left, chunks_per_kernel - chunks);
      left -= taken;
      chunks += taken;
      if (chunks < chunks_per_kernel && (tensors < most || left > 0)) continue;
      ++kernels;
      chunks = 0;
      tensors = left > 0 ? 1 : 0;
    }
  }
  if (chunks > 0) ++kernels;
  return std::max<std::int64_t>(kernels, 1);
}

namespace {

std::int64_t kernels_of(OpKind op, std::initializer_list<const TensorList*> inputs,
                        std::initializer_list<const TensorList*> outputs) {
  const TensorList& first = inputs.size() > 0 ? **inputs.begin() : **outputs.begin();
  if (op == OpKind::kCat) return cat_kernels(first.size());
  const auto counts = [&](const TensorList* l) { return l->size() == first.size(); };
  auto depth = std::count_if(inputs.begin(), inputs.end(), counts);
  for (const TensorList* l : outputs)
    if (counts(l) && std::find(inputs.begin(), inputs.end(), l) == inputs.end()) ++depth;
  if (op == OpKind::kFusedAdamW) --depth;  // Step counters travel beside the lists.
  return multi_tensor_kernels(first, static_cast<int>(depth), op == OpKind::kForeachDiv);
}

}  // namespace

std::int64_t cat_kernels(std::size_t inputs) {
  return std::max<std::int64_t>(ceil_div(static_cast<std::int64_t>(inputs), std::int64_t{128}), 1);
}

void launch_lists(Host& host, OpKind op, std::initializer_list<const TensorList*> inputs,
                  std::initializer_list<const TensorList*> outputs,
                  std::initializer_list<double> attributes) {
  std::array<std::span<const SymTensor>, kMostLists> in, out;
  const auto gather = [](std::initializer_list<const TensorList*> lists, auto& into) {
    std::size_t n = 0, tensors = 0;
    for (const TensorList* l : lists) {
      into.at(n++) = *l;
      tensors += l->size();
    }
    return tensors;
  };
  if (gather(inputs, in) + gather(outputs, out) == 0) return;
  LaunchRequest q;
  q.op = op;
  q.input_lists = std::span(in).first(inputs.size());
  q.output_lists = std::span(out).first(outputs.size());
  q.attributes = {attributes.begin(), attributes.size()};
  q.kernels = kernels_of(op, inputs, outputs);
  host.launch(q);
}

namespace {

constexpr std::int64_t kBlockBytes = 2048;

std::int64_t blocks_of(std::span<const std::int64_t> part_bytes, std::int64_t block_bytes) {
  std::int64_t blocks = 0;
  for (const std::int64_t b : part_bytes) blocks += ceil_div(b, block_bytes);
  return blocks;
}

}  // namespace

std::int64_t split_copy_table_bytes(std::span<const std::int64_t> part_bytes, std::int64_t chunks) {
  constexpr std::int64_t most_blocks = 132 * (2048 / 128) * 2;
  const std::int64_t work = ceil_div(blocks_of(part_bytes, kBlockBytes) * chunks, most_blocks);
  const auto root = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(work))));
  const std::int64_t chunks_per_block = std::max<std::int64_t>(std::min(root, chunks), 1);
  const std::int64_t rounds = std::max<std::int64_t>(ceil_div(work, chunks_per_block), 1);
  const auto n = static_cast<std::int64_t>(part_bytes.size());
  return 8 * (blocks_of(part_bytes, kBlockBytes * rounds) + 4 * n + 1);
}

std::int64_t chunk_cat_table_bytes(std::span<const std::int64_t> part_bytes) {
  return 8 * (blocks_of(part_bytes, kBlockBytes) +
              6 * static_cast<std::int64_t>(part_bytes.size()) + 2);
}

}  // namespace foreshard
