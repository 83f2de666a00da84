#pragma once

// The symbolic host: runs a model's forward programs and autograd as eager PyTorch's host thread
// would and writes every allocation, launch, event and collective into a RankProgram.
// docs/symbolic-host.md explains it in one page.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "models/module_tree.h"
#include "schedules/planner/config.h"
#include "schedules/planner/host/autograd.h"
#include "schedules/planner/host/decision_sink.h"
#include "schedules/planner/host/program_builder.h"
#include "schedules/planner/host/tensor.h"
#include "schedules/schedule.h"

namespace foreshard {

class Framework;
class HostImpl;

/// Options of one run that do not change what the real host would do.
struct HostOptions {
  bool executable = true;  ///< Write tensors and operands (PlanOptions::executable).
  /// Equal blocks are planned once (block_template.h), where the program is not executable and no
  /// sink listens.
  bool share_blocks = false;
  DecisionSink* sink = nullptr;  ///< May be null; must outlive the host.
  std::int64_t rank = 0;         ///< The rank whose program is written.
};

/// A contiguous view of a storage that nothing but launches uses: an operand without a tensor
/// object.
struct LaunchView {
  const SymStorage* storage = nullptr;
  DType dtype = DType::kFloat32;
  Shape shape;
  std::int64_t offset = 0;           ///< Elements from the start of the storage.
  GroupId group;                     ///< Of offset_per_rank.
  std::int64_t offset_per_rank = 0;  ///< Bytes, see Tensor::offset_per_rank.
  mutable TensorId id;               ///< Entry in the program's table, from the first launch on.

  /// As Host::view_as and Host::rank_view make them.
  static LaunchView of(const SymTensor& base, const Shape& shape, std::int64_t offset = 0) {
    return {base->storage.get(), base->dtype,           shape, offset,
            base->group,         base->offset_per_rank, {}};
  }
  static LaunchView of_rank(const SymTensor& base, const Shape& shape, GroupId group,
                            std::int64_t bytes_per_rank, std::int64_t offset) {
    return {base->storage.get(), base->dtype, shape, offset, group, bytes_per_rank, {}};
  }
  std::int64_t bytes() const { return shape.numel() * size_of(dtype); }
};

/// One device launch as frameworks and recipes ask for it; FLOPs come from models/ops.
struct LaunchRequest {
  OpKind op = OpKind::kCopy;
  std::span<const SymTensor> inputs, outputs;
  /// Operands of a launch over lists: the lists' tensors one after the other, behind those above.
  std::span<const std::span<const SymTensor>> input_lists, output_lists;
  /// Further operands behind all of these.
  std::span<const LaunchView> input_views, output_views;
  std::span<const double> attributes;
  /// InternalError if a kind that has dims (docs/formats/op_operands.md) comes without them.
  std::array<std::int64_t, 6> dims{};
  std::int64_t kernels = 1;  ///< InternalError beyond kMostKernels.
  /// Compute dtype; by default that of the first output.
  DType dtype = DType::kFloat32;
  bool dtype_given = false;
  /// Bytes read where that is not all of the inputs (rows picked by an index); -1: all.
  std::int64_t read_bytes = -1;
  /// FLOPs where `dims` cannot say them (values narrower than keys); -1: by the op registry.
  std::int64_t flops = -1;
};

class Host {
 public:
  Host(const Model& model, const ParallelConfig& config, const HostOptions& options);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  const Model& model() const { return model_; }
  const ParallelConfig& config() const { return config_; }
  const HostOptions& options() const { return options_; }
  ProgramBuilder& program() { return program_; }
  /// Communicators of the job; planner.cc puts them into the Schedule.
  std::vector<Group>& groups() { return groups_; }
  GroupId add_group(std::string name, std::int64_t size, std::int64_t stride);
  void set_framework(Framework* framework) { framework_ = framework; }
  Framework* framework() const { return framework_; }

  // ------------------------------------------------------------------ where we are
  StreamIndex stream() const { return stream_; }
  /// The stream of kernels that the host's CPU runs; made on first use.
  StreamIndex cpu_stream();
  void set_stream(StreamIndex s) { stream_ = s; }
  Phase phase() const { return phase_; }
  /// Emits the phase's marks; launches carry the phase.
  void set_phase(Phase p);
  ScopeId scope() const { return scope_; }
  bool grad_enabled() const { return grad_enabled_; }
  void set_grad_enabled(bool on) { grad_enabled_ = on; }
  bool in_backward() const { return backward_depth_ > 0; }
  /// A checkpointed module's forward is running again inside backward.
  bool recomputing() const { return recompute_depth_ > 0; }

  // ------------------------------------------------------------------ tensors
  /// torch.empty in the pool of the current stream. `unit` may be invalid.
  SymTensor empty(const Shape& shape, DType dtype, BufferCategory category, UnitId unit = {},
                  std::uint32_t name = 0);
  /// The same in host memory; no device allocation.
  SymTensor empty_on_host(const Shape& shape, DType dtype, MemorySpace space,
                          BufferCategory category, UnitId unit = {});
  /// A tensor object over a storage of `bytes` that is not allocated yet; see allocate_storage.
  SymTensor unallocated(const Shape& shape, DType dtype, std::int64_t bytes,
                        BufferCategory category, UnitId unit = {});
  /// storage.resize_(0): frees the memory now; views stay valid objects without memory. No-op if
  /// not allocated.
  void free_storage(const SymTensor& t);
  /// storage.resize_(bytes): allocates again in the pool of the current stream. No-op if allocated.
  void allocate_storage(const SymTensor& t);
  /// Another tensor object on the same storage; offset in elements from the storage's start; no
  /// autograd history.
  SymTensor view_as(const SymTensor& base, const Shape& shape, std::int64_t offset_elements = 0);
  SymTensor view_as(const SymTensor& base, const Shape& shape,
                    std::span<const std::int64_t> strides, std::int64_t offset_elements);
  /// View of this rank's part: offset = index of the rank in `group` times `bytes_per_rank`.
  SymTensor rank_view(const SymTensor& base, const Shape& shape, GroupId group,
                      std::int64_t bytes_per_rank, std::int64_t offset_elements = 0);
  SymTensor detach(const SymTensor& t);
  /// leaf.data = data: another storage, shape and dtype under the same tensor object. A change of
  /// dtype or of the memory space makes autograd forget the leaf's AccumulateGrad
  /// (VariableHooks::set_data): the next use makes a new one.
  void set_data(const SymTensor& leaf, const SymTensor& data);
  /// A leaf: its gradient is accumulated in t->grad.
  void set_requires_grad(const SymTensor& t, bool on) { t->requires_grad = on; }
  /// What the buffer is for, once that is known (a gradient that turns out to be a parameter's).
  void set_category(const SymTensor& t, BufferCategory category, UnitId unit = {});
  /// Entry of the tensor in the program's table (made on first use). Invalid if the host is not
  /// `executable`.
  TensorId id_of(const SymTensor& t);
  TensorId id_of(const LaunchView& v);

  // ------------------------------------------------------------------ device work, on the current
  // stream
  /// Operands in host memory make it a CPU kernel: it runs on the stream "cpu" and the host thread
  /// waits for it.
  void launch(const LaunchRequest& request);
  void launch(OpKind op, std::initializer_list<SymTensor> inputs,
              std::initializer_list<SymTensor> outputs,
              std::initializer_list<double> attributes = {});
  /// Returns the index of the collective in the program.
  std::uint32_t collective(const Collective& c);
  void copy(const Copy& c);
  /// The host waits for a device value and reads it: item(), bool(), nonzero()'s size.
  void read_back(const SymTensor& t);
  EventId record_event() { return program_.record_event(stream_); }
  EventId record_event(StreamIndex s) { return program_.record_event(s); }
  void wait_event(StreamIndex s, EventId e) { program_.wait_event(s, e); }
  void wait_stream(StreamIndex s, StreamIndex other) { program_.wait_stream(s, other); }
  /// tensor.to(dtype) without autograd: the same tensor if nothing changes, else a new one and a
  /// copy.
  SymTensor cast(const SymTensor& t, DType dtype, BufferCategory category, UnitId unit = {});
  /// tensor.clone(), recorded by autograd.
  SymTensor clone(const SymTensor& t);
  /// tensor.to(dtype), recorded by autograd (FSDP2's and FSDP1's casts of inputs and outputs); the
  /// same tensor if nothing changes.
  SymTensor to(const SymTensor& t, DType dtype);
  /// Small table of pointers or sizes: device buffer, H2D copy; freed when the handle goes (F2-AG-6
  /// in memory-corrections).
  SymTensor pointer_table(std::int64_t bytes);

  // ------------------------------------------------------------------ parameters and modules
  /// The tensor that statements use as this parameter now. Frameworks replace it (sharded <->
  /// unsharded).
  const SymTensor& parameter(ParameterId p) const { return parameters_[p.value]; }
  void set_parameter(ParameterId p, SymTensor t) { parameters_[p.value] = std::move(t); }
  /// Buffer `index` of a module; made on the device on first use unless `materialize_buffers` made
  /// it before.
  const SymTensor& buffer(const Module& m, std::int64_t index);
  /// buffer.data = buffer.to(dtype).
  void cast_buffer(const Module& m, std::int64_t index, DType dtype);
  /// Buffers of all modules, in module order (model.to("cuda")).
  void materialize_buffers();
  /// Framework::pre_forward / post_forward are called for watched modules only.
  void watch(ModuleId m) { watched_[m.value] = 1; }
  ScopeId scope_of(ModuleId m) const { return scopes_[m.value]; }
  /// nn.Module.__call__: pre-forward hooks, (checkpointed) forward, post-forward hooks. Hooks may
  /// replace inputs.
  void call(ModuleId m, std::span<SymTensor> inputs, std::span<SymTensor> outputs);
  /// This module's forward is checkpointed, as the configuration says: inside or around the
  /// framework's hooks.
  void set_checkpointed(ModuleId m);
  /// torch.nn.functional.linear is replaced by an autograd.Function that saves input, weight and
  /// bias themselves (DeepSpeed's LinearFunctionForZeroStage3).
  void set_function_linear(bool on) { function_linear_ = on; }
  bool function_linear() const { return function_linear_; }
  /// Reports begin and end of this module's own forward and backward to the sink (kModule...). The
  /// reports are identity functions in the autograd graph, inside the framework's hooks.
  void trace_module(ModuleId m);
  /// The same for each statement of this module that adds a parameter of its own (add_param).
  void trace_own_parameters(ModuleId m);

  // ------------------------------------------------------------------ autograd
  /// Leaf or recorded result.
  bool requires_grad(const SymTensor& t) const { return t && t->requires_grad; }
  /// tensor.register_hook: Framework::on_tensor_hook(payload, gradient) before the node of `t` runs
  /// (a leaf: before accumulation). Hooks on one tensor run in order of registration.
  void register_tensor_hook(const SymTensor& t, std::uint32_t payload);
  /// A torch.autograd.Function that passes its arguments through: tensors[i] become its outputs. In
  /// backward Framework::on_function_backward(payload) runs once every gradient of the outputs is
  /// there.
  void apply_function(std::span<SymTensor> tensors, std::uint32_t payload);
  /// AccumulateGrad of a leaf (made now if need be). The caller keeps the reference while it wants
  /// the node (and its hooks).
  Ref<AutogradNode> grad_accumulator(const SymTensor& leaf);
  /// Post hook of AccumulateGrad (DDP, FSDP1): Framework::on_accumulated(payload) after the
  /// gradient is in leaf.grad.
  void register_accumulate_hook(const Ref<AutogradNode>& accumulator, std::uint32_t payload);
  /// Backward runs every node on the compute stream: what PyTorch does on a CPU.
  void run_backward_on_one_stream();
  /// Takes all post hooks off an AccumulateGrad.
  void remove_accumulate_hooks(const Ref<AutogradNode>& accumulator);
  /// The node that takes the gradient of `t`.
  Ref<AutogradNode> gradient_node(const SymTensor& t);
  /// The running backward reaches this node (or has done so).
  bool will_run(const Ref<AutogradNode>& node) const;
  bool will_run(const SymTensor& t) const;
  /// Leaves whose gradients a backward from `roots` would accumulate.
  std::vector<const SymTensorImpl*> leaves_of(std::span<const SymTensor> roots);
  /// Engine callback at the end of the running backward: Framework::on_backward_callback(payload).
  void queue_callback(std::uint32_t payload);
  /// loss.backward(); gradients of ones are made for each root.
  void backward(std::span<const SymTensor> roots);

  /// Stops writing instructions and drops what the host itself holds; tensors held by others may
  /// still be dropped later.
  void close();

  // ------------------------------------------------------------------ decisions
  bool has_sink() const { return options_.sink != nullptr; }
  void decide(const Decision& d) {
    if (options_.sink) options_.sink->on_decision(d);
  }

  /// Equal blocks are planned once (block_template.h), equal steps, too (step_copy.h).
  bool shares_blocks() const;

  /// Schedule::remarks.
  void remark(std::string text) { remarks_.push_back(std::move(text)); }
  const std::vector<std::string>& remarks() const { return remarks_; }

  HostImpl& impl() { return *impl_; }

 private:
  friend class HostImpl;
  friend class BlockTemplates;
  friend class StepCopy;
  [[noreturn]] void refuse_freed_operand() const;
  /// call() without a checkpoint around the hooks.
  void call_hooked(ModuleId m, std::span<SymTensor> inputs, std::span<SymTensor> outputs);

  const Model& model_;
  const ParallelConfig& config_;
  HostOptions options_;
  ProgramBuilder program_;
  std::unique_ptr<HostImpl> impl_;  // Before everything that holds tensors.
  std::vector<Group> groups_;
  std::vector<std::string> remarks_;
  Framework* framework_ = nullptr;
  StreamIndex stream_ = 0;
  std::optional<StreamIndex> cpu_stream_;
  bool function_linear_ = false;
  Phase phase_ = Phase::kInit;
  ScopeId scope_;
  bool grad_enabled_ = true;
  int backward_depth_ = 0, recompute_depth_ = 0;
  std::vector<SymTensor> parameters_;
  std::vector<std::vector<SymTensor>> buffers_;  // By module.
  std::vector<std::uint8_t> watched_;
  std::vector<ScopeId> scopes_;
};

/// Sets the host's current stream for a scope.
class StreamGuard {
 public:
  StreamGuard(Host& host, StreamIndex s) : host_(host), before_(host.stream()) {
    host.set_stream(s);
  }
  ~StreamGuard() { host_.set_stream(before_); }
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  Host& host_;
  StreamIndex before_;
};

/// torch.no_grad().
class NoGradGuard {
 public:
  explicit NoGradGuard(Host& host) : host_(host), before_(host.grad_enabled()) {
    host.set_grad_enabled(false);
  }
  ~NoGradGuard() { host_.set_grad_enabled(before_); }
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;

 private:
  Host& host_;
  bool before_;
};

}  // namespace foreshard
