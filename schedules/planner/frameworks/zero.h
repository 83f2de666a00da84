#pragma once

// DeepSpeed ZeRO on the symbolic host: what stages 1, 2 and 3 share. Source of the rules: DeepSpeed
// 0.19.8 runtime/{engine,zero/*}.py; rule ids Z12-*, Z1-*, Z2-*, Z3-*, DS-*.

#include <functional>
#include <string>
#include <vector>

#include "core/error.h"
#include "schedules/planner/foreach.h"
#include "schedules/planner/frameworks/framework.h"

namespace foreshard::zero {

/// What ZeRO decides, for readers of recordings (instructions say the same without names).
enum class EventKind : std::uint8_t {
  kCollective,
  kWait,
  kHostSync,
  kBucketAdd,
  kReduceBucket,
  kSubGroupStep,
  kTrace,
  kTraceInvalidated,
  kFetch,
  kGather,
  kRelease,
  kReleaseAll,
};

struct Event {
  EventKind kind = EventKind::kCollective;
  std::vector<ParameterId> parameters{};
  std::int64_t numel = 0;
  int number = -1;  ///< Bucket buffer, sub-group, root of a broadcast or reduce.
  ModuleId module{};
  bool forward = true;
  std::string cause{};  ///< Of collectives and host syncs; mode of a trace.
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

/// A job that DeepSpeed itself stops with this exception.
class ZeroError : public InputError {
 public:
  ZeroError(std::string type, const std::string& message)
      : InputError(Issue{"", "zero", "DeepSpeed stops here with " + type + ": " + message,
                         "another configuration"}),
        type_(std::move(type)),
        message_(message) {}
  const std::string& type() const { return type_; }
  const std::string& message() const { return message_; }

 private:
  std::string type_, message_;
};

/// What a DeepSpeed job says beyond ParallelConfig.
struct Extras {
  bool two_parameter_groups =
      false;  ///< Matrices in one optimizer group, vectors in another (weight decay).
  /// First step in which the engine's throughput timer synchronises the device (DS-TIMER).
  std::int64_t timer_from_step = 2;
  Observer* observer = nullptr;
};

/// Helpers of the stages: communicator, events, norms, copies to and from host memory, the engine's
/// synchronisation.
class Zero : public Framework {
 public:
  Zero(const ParallelConfig& config, Extras extras);

  std::span<const LocalParameter> local_parameters() const override { return masters_; }
  void begin_step(Host&, std::int64_t step) override { step_ = step; }
  void begin_micro_batch(Host& host, std::int64_t index, bool sync) override;
  void before_model(Host& host, bool training) override;
  /// engine.backward(): the loss over the number of micro-batches, times the loss scale (fp16).
  std::vector<double> loss_factors() const override;
  /// Part of the step: see update() of the stages.
  void clip_gradients(Host&, double) override {}
  void zero_gradients(Host&) override {}

 protected:
  /// Whole parameters in the compute dtype (the module is cast before it moves to the device),
  /// broadcast from rank 0 (DS-INIT). `made` runs after each: a model built under zero.Init cuts a
  /// parameter as soon as it is there.
  void make_parameters(Host& host, const std::function<void(ParameterId)>& made = {});
  void broadcast(Host& host, ParameterId id);
  /// On the current stream, in place if `output` is `input`.
  void collective(Host& host, CollectiveKind kind, const SymTensor& input, const SymTensor& output,
                  int root = -1, ReduceOp op = ReduceOp::kNone);
  void collective_in(Host& host, GroupId group, CollectiveKind kind, const SymTensor& input,
                     const SymTensor& output);
  /// Stream `stream` waits for `other`; nothing if they are the same.
  void wait(Host& host, StreamIndex stream, StreamIndex other);
  void wait_event(Host& host, StreamIndex stream, EventId event);
  void sync_device(Host& host, const std::string& cause);
  void sync_event(Host& host, EventId event, const std::string& cause = {});
  void throughput_timer(Host& host);
  /// wall_clock_breakdown: reads so many intervals between events of the compute stream.
  void read_timers(Host& host, std::int64_t intervals);
  /// The end of engine.step(), with or without an update.
  void end_engine_step(Host& host);
  /// Whether anybody reads events: without, those of every hook need not be written.
  bool observed() const { return extras_.observer != nullptr; }
  void emit(const Event& e) {
    if (extras_.observer != nullptr) extras_.observer->on_event(e);
  }
  std::string stream_name(StreamIndex s) const;
  /// torch.cat of flat tensors (and `padding` zeros at the end) into a new one.
  SymTensor flatten(Host& host, const TensorList& parts, BufferCategory category,
                    std::int64_t padding = 0);
  SymTensor flat_view(Host& host, const SymTensor& t, std::int64_t offset, std::int64_t numel);
  DType communication_dtype() const { return options_.communication_dtype.value_or(dtype_); }
  DType grad_accum_dtype() const { return options_.grad_accum_dtype.value_or(dtype_); }

  // ------------------------------------------------------------ zero_norm.cc
  /// Norm over the job of `gradients` (each rank holds other elements): fp64 norms of each, their
  /// squares added up and all-reduced in `dtype`; read by the host.
  SymTensor global_norm(Host& host, const TensorList& gradients, DType dtype);
  /// The norm of one tensor in fp64, a device scalar.
  SymTensor wide_norm(Host& host, const SymTensor& gradient);
  /// Sum over ranks and root of the squares of `norms` where the optimizer is offloaded; a scalar
  /// in host memory.
  SymTensor offloaded_norm(Host& host, const TensorList& norms);
  /// combine_grad_norm_groups.
  SymTensor combined_norm(Host& host, const TensorList& norms);
  /// Overflow flag of one rank, reduced over the job and read by the host.
  void reduce_overflow(Host& host, const SymTensor& flag);
  /// mask_nan_or_inf_with_val_inplace: what a norm that is no number is made.
  void mask_invalid(Host& host, const SymTensor& norm, bool reads_value);
  /// is_invalid_grad_norm: the host asks the device; nothing for a norm in host memory.
  void read_whether_invalid(Host& host, const SymTensor& norm);
  /// has_inf_or_nan(gradient), read by the host if `read`.
  void check_finite(Host& host, const TensorList& gradients, const SymTensor& flag, bool read);
  /// In place: over the loss scale, and clipped.
  void unscale_and_clip(Host& host, const SymTensor& gradient, const SymTensor& norm, bool always);

  // ------------------------------------------------------------ zero_offload.cc
  SymTensor host_tensor(Host& host, std::int64_t numel, DType dtype, BufferCategory category,
                        bool pinned);
  /// Copies over PCIe on the current stream. Pageable memory, and `blocks`, make the host wait for
  /// it.
  void copy_across(Host& host, const SymTensor& from, const SymTensor& to, bool blocks);
  /// tensor.to("cpu", fp32), blocking: the tensor crosses in its own dtype and the CPU converts it
  /// (ATen/native/cuda/Copy.cu), so that the device holds no wide copy.
  SymTensor widen_to_host(Host& host, const SymTensor& t, BufferCategory category, bool pinned);
  /// tensor.to(device) of a host tensor.
  SymTensor to_device(Host& host, const SymTensor& t, BufferCategory category, bool blocks);
  /// Kernels that test gradients or fill buffers in host memory run on the CPU (Host::launch).
  bool in_host_memory(const SymTensor& t) const {
    return t->storage->space != MemorySpace::kDevice;
  }

  ParallelConfig config_;
  ZeroOptions options_;
  Extras extras_;
  std::int64_t world_, rank_ = 0, step_ = 0, micro_ = 0;
  bool boundary_ = true;  ///< Last micro-batch of the step.
  bool offload_optimizer_, offload_parameters_;
  DType dtype_;
  double loss_scale_;  ///< fp16: some power of two; its value changes no instruction.
  GroupId group_;
  StreamIndex gather_stream_ = 0, reduce_stream_ = 0;
  std::string cause_;             ///< What running collectives are for.
  std::vector<ParameterId> ids_;  ///< All parameters, model.parameters() order.
  std::vector<ParameterId> trainable_;
  std::vector<LocalParameter> masters_;  ///< fp32 partitions that the optimizer updates.
};

std::unique_ptr<Framework> make_zero12(const ParallelConfig& config, Extras extras);
std::unique_ptr<Framework> make_zero3(const ParallelConfig& config, Extras extras);
/// The stage that the configuration names.
std::unique_ptr<Framework> make_zero(const ParallelConfig& config, Extras extras = {});

}  // namespace foreshard::zero
