#pragma once

// DeepSpeed ZeRO on the symbolic host: what stages 1, 2 and 3 share. Source of the rules: DeepSpeed 0.19.8
// runtime/{engine,zero/*}.py; rule ids Z12-*, Z1-*, Z2-*, Z3-*, DS-*.

#include <string>
#include <vector>

#include "schedules/planner/foreach.h"
#include "schedules/planner/frameworks/framework.h"

namespace foreshard::zero {

/// What ZeRO decides, for readers of recordings (instructions say the same without names).
enum class EventKind : std::uint8_t {
  kCollective, kWait, kHostSync, kBucketAdd, kReduceBucket, kSubGroupStep, kTrace, kTraceInvalidated, kFetch, kGather, kRelease,
  kReleaseAll,
};

struct Event {
  EventKind kind = EventKind::kCollective;
  std::vector<ParameterId> parameters{};
  std::int64_t numel = 0;
  int number = -1;                         ///< Bucket buffer, sub-group, root of a broadcast or reduce.
  ModuleId module{};
  bool forward = true;
  std::string cause{};                     ///< Of collectives and host syncs; mode of a trace.
  CollectiveKind collective = CollectiveKind::kAllGather;
  std::int64_t in_bytes = 0, out_bytes = 0, group_size = 1;
  DType dtype = DType::kFloat32;
  std::string stream{}, on{};
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_event(const Event& e) = 0;
};

/// What a DeepSpeed configuration says beyond ParallelConfig::zero.
struct Extras {
  bool two_parameter_groups = false;       ///< Matrices in one optimizer group, vectors in another (weight decay).
  bool multi_rank_all_reduce = true;       ///< use_multi_rank_bucket_allreduce (Z2-G-2).
  bool has_communication_dtype = false;
  DType communication_dtype = DType::kFloat32;
  std::vector<std::string> leaf_classes;   ///< set_z3_leaf_modules: fetched as a whole (Z3-P-3).
  /// First step in which the engine's throughput timer synchronises the device (DS-TIMER: 2). A plan writes two steps and
  /// its last one stands for all later ones, hence 1.
  std::int64_t timer_from_step = 1;
  Observer* observer = nullptr;
};

/// Helpers of the stages: communicator, events, norms, the engine's own synchronisation.
class Zero : public Framework {
 public:
  Zero(const ParallelConfig& config, Extras extras);

  std::span<const LocalParameter> local_parameters() const override { return masters_; }
  void begin_step(Host&, std::int64_t step) override { step_ = step; }
  void begin_micro_batch(Host& host, std::int64_t index, bool sync) override;
  void before_model(Host& host, bool training) override;
  /// Part of step(): see before_optimizer of the stages.
  void clip_gradients(Host&, double) override {}
  void zero_gradients(Host&) override {}

 protected:
  /// Whole parameters in the compute dtype, broadcast from rank 0 `times` times (DS-INIT). Fills `parameters_`.
  void make_parameters(Host& host, int broadcasts);
  /// On the current stream, in place if `output` is `input`.
  void collective(Host& host, CollectiveKind kind, const SymTensor& input, const SymTensor& output, int root = -1,
                  ReduceOp op = ReduceOp::kNone);
  /// Stream `stream` waits for `other`; nothing if they are the same.
  void wait(Host& host, StreamIndex stream, StreamIndex other);
  void sync_device(Host& host, const std::string& cause);
  void throughput_timer(Host& host);
  void emit(const Event& e) { if (extras_.observer != nullptr) extras_.observer->on_event(e); }
  std::string stream_name(StreamIndex s) const;
  /// torch.cat of flat tensors (and `padding` zeros at the end) into a new one.
  SymTensor flatten(Host& host, const TensorList& parts, BufferCategory category, std::int64_t padding = 0);
  SymTensor flat_view(Host& host, const SymTensor& t, std::int64_t offset, std::int64_t numel);
  /// Norm over the job of `gradients` (each rank holds other elements), reduced in `dtype`, read by the host.
  SymTensor global_norm(Host& host, const TensorList& gradients, DType dtype);
  DType communication_dtype(DType own) const { return extras_.has_communication_dtype ? extras_.communication_dtype : own; }

  ParallelConfig config_;
  ZeroOptions options_;
  Extras extras_;
  std::int64_t world_, rank_ = 0, step_ = 0, micro_ = 0;
  bool boundary_ = true;                   ///< Last micro-batch of the step.
  DType dtype_;
  GroupId group_;
  StreamIndex gather_stream_ = 0, reduce_stream_ = 0;
  std::string cause_;                      ///< What running collectives are for.
  std::vector<ParameterId> ids_;           ///< All parameters, model.parameters() order.
  std::vector<ParameterId> trainable_;
  std::vector<LocalParameter> masters_;    ///< fp32 partitions that the optimizer updates.
};

std::unique_ptr<Framework> make_zero12(const ParallelConfig& config, Extras extras);
std::unique_ptr<Framework> make_zero3(const ParallelConfig& config, Extras extras);
/// The stage that the configuration names.
std::unique_ptr<Framework> make_zero(const ParallelConfig& config, Extras extras = {});

}  // namespace foreshard::zero
