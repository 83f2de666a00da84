#include "schedules/planner/optimizer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "schedules/planner/foreach.h"
#include "schedules/planner/framework_table.h"
#include "schedules/planner/host/host_time.h"
#include "schedules/planner/host/program_copy.h"

namespace foreshard {
namespace {

/// Parameters that have a gradient, with the state beside them.
struct Lists {
  TensorList params, grads, first, second, steps;

  explicit Lists(std::size_t parameters) {
    for (TensorList* const list : {&params, &grads, &first, &second, &steps})
      list->reserve(parameters);
  }
};

/// torch.empty_like, in pageable host memory for offloaded parameters.
SymTensor empty_like(Host& host, const SymTensor& p, BufferCategory category) {
  const MemorySpace space = p->storage->space;
  return space == MemorySpace::kDevice
             ? host.empty(p->shape, p->dtype, category, p->storage->unit)
             : host.empty_on_host(p->shape, p->dtype, MemorySpace::kHostPageable, category,
                                  p->storage->unit);
}

SymTensor zeros_like(Host& host, const SymTensor& p, BufferCategory category) {
  SymTensor t = empty_like(host, p, category);
  if (t->numel > 0) host.launch(OpKind::kFill, {}, {t}, {0.0});
  return t;
}

/// What an update issued over parameters that have their states. One over parameters like these
/// issues the same: it is written again (docs/symbolic-host.md, equal steps).
class IssuedUpdate {
 public:
  /// Around what runs for real.
  void begin(Host& host, std::span<const LocalParameter> parameters) {
    forms_.clear();
    forms_.reserve(parameters.size());
    for (const LocalParameter& p : parameters) forms_.push_back(form_of(p));
    stream_ = host.stream();
    scope_ = host.scope();
    from_.emplace(host.program().program());
    to_.reset();
  }
  void end(Host& host) { to_.emplace(host.program().program()); }
  /// In place of it; false: it has to run.
  bool repeat(Host& host, std::span<const LocalParameter> parameters) const {
    const auto same = [](const Form& f, const LocalParameter& p) { return f == form_of(p); };
    return to_ && stream_ == host.stream() && scope_ == host.scope() &&
           std::equal(forms_.begin(), forms_.end(), parameters.begin(), parameters.end(), same) &&
           write_again(host.program().program(), *from_, *to_, 0);
  }

 private:
  /// Of a parameter with a gradient; of others nothing matters.
  struct Form {
    bool updated = false;
    DType dtype = DType::kFloat32, gradient = DType::kFloat32;
    MemorySpace space = MemorySpace::kDevice, gradient_space = MemorySpace::kDevice;
    std::int64_t numel = 0;
    bool operator==(const Form&) const = default;
  };
  static Form form_of(const LocalParameter& p) {
    if (!p.local || !p.local->grad) return {};
    const SymTensorImpl &local = *p.local, &gradient = *local.grad;
    return {true,       local.dtype, gradient.dtype, local.storage->space, gradient.storage->space,
            local.numel};
  }

  std::vector<Form> forms_;
  StreamIndex stream_ = 0;
  ScopeId scope_;
  std::optional<ProgramPosition> from_, to_;
};

// ----------------------------------------------------------------------------------------------
// AdamW

class AdamW final : public Optimizer {
 public:
  explicit AdamW(const ParallelConfig& c) : c_(c) {}

  void step(Host& host, std::span<const LocalParameter> parameters, std::size_t first) override {
    state_.resize(std::max(state_.size(), first + parameters.size()));
    if (host.shares_blocks() && issued_[first].repeat(host, parameters)) return;
    Lists all(parameters.size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const SymTensor& p = parameters[i].local;
      if (!p || !p->grad) continue;
      State& s = state_[first + i];
      if (!s.first) make_state(host, p, s);
      all.params.push_back(p);
      all.grads.push_back(p->grad);
      all.first.push_back(s.first);
      all.second.push_back(s.second);
      if (s.step) all.steps.push_back(s.step);
    }
    if (all.params.empty()) return;
    if (host.shares_blocks()) issued_[first].begin(host, parameters);
    if (row_of(c_.framework).dtensor) {
      spend_host(host, dtensor_adamw_us(all.params.size(), c_.optimizer), "optimizer on DTensors");
    }
    switch (kind_of(all.params[0])) {
      case OptimizerKind::kAdamWFused:
        fused(host, all);
        break;
      case OptimizerKind::kAdamWForLoop:
        for_loop(host, all);
        break;
      default:
        foreach (host, all)
          ;
    }
    if (host.shares_blocks()) issued_[first].end(host);
  }

 private:
  struct State {
    SymTensor step, first, second;
  };

  /// Beside DeepSpeedCPUAdam the sub-groups that stay on the device have torch.optim.AdamW with its
  /// defaults (stage3.py: backup_optimizer).
  OptimizerKind kind_of(const SymTensor& p) const {
    const bool backup = c_.zero.offload_ratio < 1 && p->storage->space == MemorySpace::kDevice;
    return backup ? OptimizerKind::kAdamWForeach : c_.optimizer;
  }

  /// Step counters are on the CPU unless fused; the moments have the parameter's dtype and unpadded
  /// shape (F2-P-4).
  void make_state(Host& host, const SymTensor& p, State& s) {
    if (kind_of(p) == OptimizerKind::kAdamWFused && p->storage->space == MemorySpace::kDevice) {
      s.step =
          host.empty(Shape(), DType::kFloat32, BufferCategory::kOptimizerState, p->storage->unit);
      host.launch(OpKind::kFill, {}, {s.step}, {0.0});
    }
    s.first = zeros_like(host, p, BufferCategory::kOptimizerState);
    s.second = zeros_like(host, p, BufferCategory::kOptimizerState);
  }

  void fused(Host& host, Lists& a) {
    if (!a.steps.empty()) launch_lists(host, OpKind::kForeachAdd, {&a.steps}, {&a.steps}, {1.0});
    launch_lists(host, OpKind::kFusedAdamW, {&a.params, &a.grads, &a.first, &a.second, &a.steps},
                 {&a.params, &a.first, &a.second, &a.steps},
                 {c_.learning_rate, c_.beta1, c_.beta2, c_.epsilon, c_.weight_decay});
  }

  /// _multi_tensor_adam: one list of temporaries as large as all parameters (F2-O-2).
  void foreach (Host& host, Lists & a) {
    if (c_.weight_decay != 0) {
      launch_lists(host, OpKind::kForeachMul, {&a.params}, {&a.params},
                   {1 - c_.learning_rate * c_.weight_decay});
    }
    launch_lists(host, OpKind::kForeachLerp, {&a.first, &a.grads}, {&a.first}, {1 - c_.beta1});
    launch_lists(host, OpKind::kForeachMul, {&a.second}, {&a.second}, {c_.beta2});
    launch_lists(host, OpKind::kForeachAddcmul, {&a.second, &a.grads, &a.grads}, {&a.second},
                 {1 - c_.beta2});
    a.grads.clear();
    TensorList root;
    root.reserve(a.second.size());
    for (const SymTensor& s : a.second) {
      root.push_back(empty_like(host, s, BufferCategory::kOptimizerTemporary));
    }
    launch_lists(host, OpKind::kForeachSqrt, {&a.second}, {&root});
    launch_lists(host, OpKind::kForeachDiv, {&root}, {&root}, {0.0, c_.beta2});
    launch_lists(host, OpKind::kForeachAdd, {&root}, {&root}, {c_.epsilon});
    launch_lists(host, OpKind::kForeachAddcdiv, {&a.params, &a.first, &root}, {&a.params},
                 {0.0, c_.learning_rate, c_.beta1});
    while (!root.empty()) root.pop_back();  // A list drops its last item first.
  }

  /// _single_tensor_adam: the previous parameter's `denom` is dropped when the next one is there.
  void for_loop(Host& host, Lists& a) {
    SymTensor denominator;
    for (std::size_t i = 0; i < a.params.size(); ++i) {
      const TensorList p{a.params[i]}, g{a.grads[i]}, m{a.first[i]}, v{a.second[i]};
      if (c_.weight_decay != 0)
        host.launch(OpKind::kMulInPlace, {p[0]}, {p[0]}, {1 - c_.learning_rate * c_.weight_decay});
      launch_lists(host, OpKind::kForeachLerp, {&m, &g}, {&m}, {1 - c_.beta1});
      host.launch(OpKind::kMulInPlace, {v[0]}, {v[0]}, {c_.beta2});
      launch_lists(host, OpKind::kForeachAddcmul, {&v, &g, &g}, {&v}, {1 - c_.beta2});
      SymTensor root = empty_like(host, v[0], BufferCategory::kOptimizerTemporary);
      host.launch(OpKind::kSqrt, {v[0]}, {root});
      SymTensor next = empty_like(host, v[0], BufferCategory::kOptimizerTemporary);
      const TensorList d{next};
      {
        const TensorList r{std::move(root)};
        launch_lists(host, OpKind::kForeachDiv, {&r}, {&d}, {0.0, c_.beta2});
      }
      launch_lists(host, OpKind::kForeachAdd, {&d}, {&d}, {c_.epsilon});
      denominator = next;
      launch_lists(host, OpKind::kForeachAddcdiv, {&p, &m, &d}, {&p},
                   {0.0, c_.learning_rate, c_.beta1});
    }
  }

  ParallelConfig c_;
  std::vector<State> state_;
  std::map<std::size_t, IssuedUpdate> issued_;  ///< By the first parameter.
};

// ----------------------------------------------------------------------------------------------
// SGD

/// _multi_tensor_sgd: the momentum buffer of the first step is a copy of the gradient.
class Sgd final : public Optimizer {
 public:
  explicit Sgd(const ParallelConfig& c) : c_(c) {}

  void step(Host& host, std::span<const LocalParameter> parameters, std::size_t first) override {
    momentum_.resize(std::max(momentum_.size(), first + parameters.size()));
    TensorList params, grads, buffers;
    bool begins = false;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const SymTensor& p = parameters[i].local;
      if (!p || !p->grad) continue;
      params.push_back(p);
      grads.push_back(p->grad);
      if (c_.momentum == 0) continue;
      SymTensor& momentum = momentum_[first + i];
      if (!momentum) {
        momentum = zeros_like(host, p, BufferCategory::kOptimizerState);
        begins = true;
      }
      buffers.push_back(momentum);
    }
    if (!params.empty()) update(host, params, grads, buffers, begins);
  }

 private:
  /// Momentum times its factor, plus the gradient; then the parameter. The first step has the last
  /// of these alone.
  void update(Host& host, const TensorList& params, const TensorList& grads,
              const TensorList& buffers, bool begins) const {
    const std::array<std::span<const SymTensor>, 3> in{params, grads, buffers};
    const std::array<std::span<const SymTensor>, 2> out{params, buffers};
    const std::array<double, 3> scalars{c_.learning_rate, c_.momentum, 0.0};
    LaunchRequest q;
    q.op = OpKind::kSgdUpdate;
    q.input_lists = in;
    q.output_lists = out;
    q.attributes = scalars;
    q.kernels = multi_tensor_kernels(params, 2);
    if (!buffers.empty() && !begins)
      q.kernels += multi_tensor_kernels(params, 1) + multi_tensor_kernels(params, 2);
    host.launch(q);
  }

  ParallelConfig c_;
  TensorList momentum_;
};

}  // namespace

namespace {

/// With an offloaded optimizer DeepSpeed takes DeepSpeedCPUAdam for any Adam: one pass over the
/// states, as the fused form.
bool takes_cpu_adam(const ParallelConfig& c) {
  return row_of(c.framework).deepspeed &&
         (c.offload == OffloadKind::kOptimizer || c.offload == OffloadKind::kBoth);
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const ParallelConfig& config) {
  switch (config.optimizer) {
    case OptimizerKind::kNone:
      return nullptr;
    case OptimizerKind::kSgd:
      return std::make_unique<Sgd>(config);
    default:
      break;
  }
  ParallelConfig c = config;
  if (takes_cpu_adam(c)) c.optimizer = OptimizerKind::kAdamWFused;
  return std::make_unique<AdamW>(c);
}

}  // namespace foreshard
