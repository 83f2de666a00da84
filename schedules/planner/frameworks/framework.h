#pragma once

// One interface for everything that shards or synchronises a model: unsharded, DDP, FSDP2, FSDP1,
// ZeRO, the sharded optimizer. A framework is a set of hooks that fire while the symbolic host
// runs; it emits its own allocations, copies, collectives and events.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/module_tree.h"
#include "schedules/planner/config.h"
#include "schedules/planner/host/host.h"

namespace foreshard {

/// A parameter as this rank's optimizer sees it. Its gradient is local->grad.
struct LocalParameter {
  ParameterId id;
  SymTensor local;         ///< Null if this rank holds no element (the object exists, numel 0).
  std::int64_t numel = 0;  ///< Real elements held by this rank (unpadded).
};

class Optimizer;

class Framework {
 public:
  virtual ~Framework() = default;

  /// Wraps the model and materialises the parameters (the real program: wrap on the meta device,
  /// then to_empty). Fills RankProgram::{streams, units, parameters} and Host::set_parameter for
  /// each parameter.
  virtual void initialize(Host& host) = 0;
  /// Ranks with equal keys run the same program. Called before initialize, without a host.
  virtual std::uint64_t rank_class(const Model&, const ParallelConfig&,
                                   std::int64_t /*rank*/) const {
    return 0;
  }
  /// What the programs of the job's ranks leave out. Called as rank_class is.
  virtual std::vector<std::string> not_modelled(const Model&) const { return {}; }
  /// Parameters in model.parameters() order, those that require gradients.
  virtual std::span<const LocalParameter> local_parameters() const = 0;

  // -------------------------------------------------------------- module hooks (watched modules
  // only)
  /// `inputs` may be replaced (casts, views for post-backward hooks).
  virtual void pre_forward(Host&, ModuleId, std::span<SymTensor> /*inputs*/) {}
  virtual void post_forward(Host&, ModuleId, std::span<SymTensor> /*inputs*/,
                            std::span<SymTensor> /*outputs*/) {}
  /// The two above look only at which tensors take gradients, and only pass tensors through
  /// functions (Host::apply_function): a block with such hooks inside can be copied
  /// (host/block_template.h).
  virtual bool sees_no_tensors() const { return false; }
  /// The module's forward ended early because recomputation has all it needs (CK-3); called
  /// innermost module first.
  virtual void forward_aborted(Host&, ModuleId) {}

  /// Nothing that a step began is under way (gradients apart), and what else micro-batches and
  /// clipping depend on is as it was at the begin of the step: the next one can copy what it issued
  /// (host/step_copy.h).
  virtual bool at_rest() const { return false; }

  // -------------------------------------------------------------- autograd hooks
  virtual void on_tensor_hook(Host&, std::uint32_t /*payload*/, SymTensor& /*gradient*/) {}
  virtual void on_function_backward(Host&, std::uint32_t /*payload*/) {}
  virtual void on_accumulated(Host&, std::uint32_t /*payload*/) {}
  virtual void on_backward_callback(Host&, std::uint32_t /*payload*/) {}

  // -------------------------------------------------------------- the training loop
  virtual void begin_step(Host&, std::int64_t /*step*/) {}
  /// Before the forward of a micro-batch; `sync`: gradients are synchronised in this one.
  virtual void begin_micro_batch(Host&, std::int64_t /*index*/, bool /*sync*/) {}
  /// Around the call of the root module, outside every module hook (DDP's own forward).
  virtual void before_model(Host&, bool /*training*/) {}
  virtual void after_model(Host&, std::span<SymTensor> /*outputs*/) {}
  virtual void end_micro_batch(Host&) {}
  /// torch.nn.utils.clip_grad_norm_ over local_parameters(); the default is the one-rank form
  /// (clip.h).
  virtual void clip_gradients(Host&, double max_norm);
  virtual void before_optimizer(Host&) {}
  /// optimizer.step(); frameworks that own the step (ZeRO: sub-group by sub-group) do it piece by
  /// piece. May be null.
  virtual void update(Host& host, Optimizer* optimizer);
  virtual void after_optimizer(Host&) {}
  /// The loss is multiplied by these, one kernel each, before backward (DeepSpeed's
  /// engine.backward).
  virtual std::vector<double> loss_factors() const { return {}; }
  /// model.zero_grad(set_to_none=True); the default drops local->grad in parameter order.
  virtual void zero_gradients(Host&);
};

/// Parameters in the order of model.parameters(): modules before their children, tied ones once.
std::vector<ParameterId> parameter_order(const Model& model);
/// model.to_empty("cuda"): whole parameters and buffers, children first, tied weights made twice
/// and tied again. Fills the program's parameter views and `locals` (trainable ones,
/// model.parameters() order).
void materialize_whole(Host& host, std::vector<LocalParameter>& locals);

/// Those whose files have no header of their own (fsdp1.h, zero.h).
std::unique_ptr<Framework> make_unsharded();
std::unique_ptr<Framework> make_ddp(const ParallelConfig& config);
std::unique_ptr<Framework> make_fsdp2(const ParallelConfig& config);
std::unique_ptr<Framework> make_sharded_optimizer(const ParallelConfig& config);

/// The framework of a configuration; InputError if it is not supported.
std::unique_ptr<Framework> make_framework(const ParallelConfig& config);

}  // namespace foreshard
