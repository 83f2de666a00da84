#pragma once

// One running backward of the engine; include in host/ only.

#include <queue>
#include <vector>

#include "schedules/planner/host/host_impl.h"

namespace foreshard {

struct HostImpl::GraphTask {
  std::uint32_t number = 0;
  std::vector<SymTensor> slots;           ///< Input buffers of the nodes that wait.
  std::vector<EventId> ready_events;      ///< Beside them: what the node's stream waits for first.
  std::vector<StreamIndex> leaf_streams;  ///< Streams of the AccumulateGrads that ran.
  std::priority_queue<ReadyNode>
      ready;  ///< Ties as std::priority_queue resolves them: PyTorch's own.
  std::vector<AutogradNode*> stack;
  /// State of nodes that an outer backward still waits for (a nested backward may share
  /// AccumulateGrad with it).
  struct Outer {
    Ref<AutogradNode> node;
    std::uint32_t visit;
    std::int32_t pending;
    std::uint32_t slots;
  };
  std::vector<Outer> outer;
};

}  // namespace foreshard
