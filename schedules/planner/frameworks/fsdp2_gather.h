#pragma once

// Unshard, copy-out and reshard of a parameter group (F2-AG-1 .. F2-AG-11, F2-F-3).

#include "schedules/planner/frameworks/fsdp2_group.h"
#include "schedules/planner/host/host.h"

namespace foreshard::fsdp2 {

/// tensor.view(torch.uint8) of a flat tensor.
SymTensor as_bytes(Host& host, const SymTensor& t);

class Gatherer {
 public:
  explicit Gatherer(Host& host) : host_(host) {}

  /// Issues the all-gather unless the parameters are there or on their way (F2-AG-3, F2-AG-4).
  void unshard(ParamGroup& group, bool async);
  /// Waits for it and copies it out; no-op if none is pending (F2-AG-6, F2-AG-7, F2-AG-9).
  void wait(ParamGroup& group);
  void reshard(ParamGroup& group);
  /// Drops the retained forward gather; the gather streams wait for its copy-out first, or the
  /// current stream does.
  void release_for_reuse(CommContext& comm);
  void release_on_current_stream(CommContext& comm);
  /// Drops a gather that nothing waited for (F2-B-2).
  void drop_mistargeted(ParamGroup& group);
  /// The model sees the shards, the clones after forward, or the whole parameters.
  void bind(ParamGroup& group);

 private:
  /// What a gather sends. The lists are kept between gathers: they grow once.
  struct Inputs {
    DType dtype = DType::kFloat32;   ///< Of `flat`.
    SymTensor flat;                  ///< Cast copies of several parameters.
    std::vector<LaunchView> casts;   ///< Where they lie in it.
    std::vector<SymTensor> sources;  ///< What they are made of.
    std::vector<SymTensor> tensors;  ///< One a parameter; none where `flat` holds all of them.
    std::vector<LaunchView> slots;   ///< This rank's parts of the gathered buffer.
  };
  void issue(ParamGroup& group, bool async);
  void copy_in_parts(ParamGroup& group, GatherResult& result);
  void make_inputs(ParamGroup& group);
  void cast_together(ParamGroup& group);
  SymTensor single_input(ParamGroup& group, std::size_t i);
  SymTensor float8_input(ParamGroup& group, std::size_t i, const SymTensor& shard);
  SymTensor float8_scale(ParamGroup& group, const SymTensor& x);
  std::uint32_t all_gather(ParamGroup& group, const SymTensor& output, std::int64_t bytes_per_rank,
                           DType dtype, StreamIndex stream, bool async);
  void check_mesh(const ParamGroup& group, const GatherResult& result) const;
  void copy_out(ParamGroup& group, const GatherResult& result);
  void reassemble(ParamGroup& group, std::size_t i, const SymTensor& from, std::int64_t world);
  void copy_local(ParamGroup& group);
  void make_gathered(ParamGroup& group, std::size_t i, std::int64_t numel, DType dtype);
  void make_unsharded(ParamGroup& group);
  void to_unsharded(ParamGroup& group);
  void to_sharded(ParamGroup& group);
  void to_post_forward(ParamGroup& group);
  void free_output(GatherResult& result, bool mistargeted);
  void gather_streams_wait(CommContext& comm, EventId event);

  Host& host_;
  Inputs inputs_;
  std::vector<LaunchView> copied_out_;    ///< As `inputs_`: kept to grow once.
  std::vector<std::int64_t> part_bytes_;  ///< The same.
};

}  // namespace foreshard::fsdp2
