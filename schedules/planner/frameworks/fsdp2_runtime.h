#pragma once

// What FSDP2 holds on the device between hooks: shards, gathered parameters, buffers kept for
// overlap, and the events that order them (F2-AG-7, F2-RS-4, F2-AR-1).

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "schedules/planner/host/host.h"

namespace foreshard::fsdp2 {

struct ParamGroup;
struct State;
struct CommContext;

/// The stream of c10d's asynchronous and functional collectives (N-1), made at the first.
StreamIndex communicator_stream(Host& host, CommContext& comm);

struct ParameterTensors {
  SymTensor shard;  ///< Flat, padded; original dtype.
  SymTensor local;  ///< This rank's rows; a view of `shard`. Its gradient is the sharded gradient.
  SymTensor post_forward;  ///< Clone kept after resharding to a smaller group (F2-P-5).
  SymTensor
      gathered;  ///< Flat storage of the whole parameter, resized as it comes and goes (F2-AG-6).
  SymTensor unsharded;  ///< The leaf that the model computes with; a view of `gathered`.
  /// Scales of 8-bit weights: of the gather under way (then `unsharded` has it), of all gathers
  /// until the next optimizer step.
  SymTensor next_scale, precomputed_scale;
};

/// One rank's part of a parameter as it is gathered.
struct GatherPart {
  DType dtype = DType::kFloat32;
  std::int64_t numel = 0;
  std::int64_t bytes() const { return numel * size_of(dtype); }
};

/// An all-gather that was issued and not yet copied out.
struct GatherResult {
  SymTensor output;
  UnitId unit;
  std::optional<EventId> event;  ///< Completion of the collective.
  bool async = false;            ///< Issued on the communicator's own stream.
  bool local = false;            ///< One shard rank: nothing was gathered (F2-AG-11).
  bool as_bytes = false;         ///< Mixed dtypes travel as bytes (F2-AG-5).
};

struct HeldBuffer {
  SymTensor buffer;
  std::optional<EventId> event;
};

struct GroupRuntime {
  std::vector<ParameterTensors> parameters;
  std::optional<GatherResult> pending;
  std::vector<GatherPart> gather_parts;  ///< Of the gather that is pending, one a parameter.
  std::optional<EventId> post_reduce_event, reshard_event;
  std::optional<HeldBuffer> all_reduce;  ///< F2-AR-1
  SymTensor partial_output;              ///< Reduce-scattered, not yet all-reduced (F2-AR-2).
  /// Parameters inside partial_output with their padded sizes, in packing order.
  std::vector<std::pair<std::size_t, std::int64_t>> partial_layout;
  std::vector<EventId> offload_events;  ///< F2-OFF-2
};

/// Streams and buffers shared by all states of one root.
struct CommContext {
  bool initialised = false;
  StreamIndex copy_in = 0, gather = 0, reduce = 0, all_reduce = 0;
  std::optional<StreamIndex> internal;  ///< Of the communicator, for asynchronous operations (N-1).
  std::optional<std::pair<GatherResult, EventId>>
      retained;  ///< Forward's last gather and its copy-out (F2-AG-7).
  struct ReduceInput {
    HeldBuffer held;
    StreamIndex allocation_stream = 0;
    ParamGroup* group = nullptr;
  };
  std::vector<ReduceInput> reduce_inputs;  ///< F2-RS-4, oldest first.
  std::int64_t max_reduce_inputs = 1;
  std::vector<ParamGroup*> post_forward_order;
  std::vector<std::pair<StreamIndex, EventId>> last_post_reduce;  ///< One per stream (F2-B-7).
  void set_last_post_reduce(StreamIndex stream, EventId event) {
    for (auto& [known, last] : last_post_reduce)
      if (known == stream) return void(last = event);
    last_post_reduce.emplace_back(stream, event);
  }
};

/// Shared by all states under one root.
struct StateContext {
  std::vector<State*> all_states;  ///< named_modules order.
  State* forward_root = nullptr;
  bool callback_queued = false;
  bool is_last_backward = true;
  bool manual_finalization = false;  ///< set_manual_backward_finalization
  /// The mode in which the backward iteration that is not finalised yet began.
  std::optional<bool> active_manual_finalization;
  bool reduction_pending = false;  ///< Finalised with async_op, not waited on.
};

}  // namespace foreshard::fsdp2
