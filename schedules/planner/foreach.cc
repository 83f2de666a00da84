#include "schedules/planner/foreach.h"

#include <algorithm>
#include <array>

namespace foreshard {

std::uint16_t multi_tensor_kernels(const TensorList& list, int depth) {
  constexpr std::array<std::int64_t, 5> tensors_per_kernel{110, 64, 48, 36, 30};
  constexpr std::int64_t chunk = 65536, chunks_per_kernel = 320;
  std::int64_t chunks = 0;
  for (const SymTensor& t : list) chunks += (t->numel + chunk - 1) / chunk;
  const std::int64_t per = tensors_per_kernel[static_cast<std::size_t>(std::clamp(depth, 1, 5) - 1)];
  const std::int64_t by_tensors = (static_cast<std::int64_t>(list.size()) + per - 1) / per;
  const std::int64_t by_chunks = (chunks + chunks_per_kernel - 1) / chunks_per_kernel;
  return static_cast<std::uint16_t>(std::clamp<std::int64_t>(std::max(by_tensors, by_chunks), 1, UINT16_MAX));
}

void launch_lists(Host& host, OpKind op, std::initializer_list<const TensorList*> inputs,
                  std::initializer_list<const TensorList*> outputs, std::initializer_list<double> attributes) {
  TensorList in, out;
  for (const TensorList* l : inputs) in.insert(in.end(), l->begin(), l->end());
  for (const TensorList* l : outputs) out.insert(out.end(), l->begin(), l->end());
  if (in.empty() && out.empty()) return;
  LaunchRequest q;
  q.op = op;
  q.inputs = in;
  q.outputs = out;
  q.attributes = {attributes.begin(), attributes.size()};
  const TensorList& first = inputs.size() > 0 ? **inputs.begin() : **outputs.begin();
  q.kernels = multi_tensor_kernels(first, static_cast<int>(std::max(inputs.size(), outputs.size())));
  host.launch(q);
}

}  // namespace foreshard
