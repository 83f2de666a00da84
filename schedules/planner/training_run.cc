#include "schedules/planner/training_run.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "schedules/planner/loss_head.h"
#include "schedules/planner/optimizer.h"
#include "schedules/planner/recipes/recipe.h"
#include "schedules/planner/recipes/special.h"

namespace foreshard {
namespace {

Shape shape_of(const ModelArgument& a, const ParallelConfig& c) {
  if (a.shape.empty()) return {c.micro_batch, c.sequence};
  Shape s{std::span<const std::int64_t>(a.shape)};
  for (int d = 0; d < s.rank; ++d)
    if (s[d] <= 0) s[d] = s[d] == 0 ? c.sequence : -s[d] * c.micro_batch;
  return s;
}

ModelInput input_row(const ModelArgument& a, const Shape& s) {
  ModelInput row;
  row.name = a.name;
  row.kind = a.tokens ? InputKind::kTokens : InputKind::kFloat;
  row.shape.assign(s.dim.begin(), s.dim.begin() + s.rank);
  row.dtype = a.dtype;
  row.vocabulary = a.vocabulary;
  return row;
}

/// Labels that a loss over logits compares with: one for each sample, or one for each token of the
/// first argument that has tokens.
ModelInput targets_row(const Model& m, const ParallelConfig& c) {
  ModelInput row;
  if (m.classes > 0) {
    row.shape = {c.micro_batch};
    row.vocabulary = m.classes;
  } else {
    auto text = std::find_if(m.arguments.begin(), m.arguments.end(),
                             [](const ModelArgument& a) { return a.tokens; });
    if (text == m.arguments.end()) text = m.arguments.begin();
    row = input_row(*text, shape_of(*text, c));
  }
  row.name = "targets";
  row.kind = InputKind::kTargets;
  return row;
}

/// Arguments that the root takes; with a mean square loss a further one is its target.
std::size_t model_inputs(const Model& m, const ParallelConfig& c) {
  return c.loss == LossKind::kMeanSquare ? std::min(m.arguments.size(), m.root().inputs.size())
                                         : m.arguments.size();
}

bool token_loss(LossKind k) {
  return k != LossKind::kMeanSquare && k != LossKind::kMeanSquareOutput;
}

/// Modules whose forward is checkpointed.
std::vector<ModuleId> checkpointed_modules(const Model& model, const ParallelConfig& c) {
  std::vector<ModuleId> result;
  switch (c.checkpoint) {
    case CheckpointKind::kNone:
      break;
    case CheckpointKind::kFull:
    case CheckpointKind::kSelectiveOp:
      result = model.roles.blocks;
      break;
    case CheckpointKind::kEveryK:  // CK-4: blocks with index % k == 0.
      for (std::size_t i = 0; i < model.roles.blocks.size(); ++i) {
        if (static_cast<std::int64_t>(i) % c.checkpoint_every == 0)
          result.push_back(model.roles.blocks[i]);
      }
      break;
    case CheckpointKind::kModules:
      for (const std::string& name : c.checkpoint_modules) {
        const ModuleId m = model.find_module(name);
        if (!m.valid())
          throw InputError(
              Issue{"", "checkpoint", "no module '" + name + "'", "a module of the model"});
        result.push_back(m);
      }
      break;
  }
  return result;
}

}  // namespace

TrainingRun::TrainingRun(const Model& model, const ParallelConfig& config,
                         const HostOptions& options)
    : TrainingRun(model, config, options, make_framework(config)) {}

TrainingRun::TrainingRun(const Model& model, const ParallelConfig& config,
                         const HostOptions& options, std::unique_ptr<Framework> framework)
    : changed_model_(changes_head(config.loss)
                         ? std::make_unique<const Model>(with_loss_head(model, config))
                         : nullptr),
      host_(changed_model_ ? *changed_model_ : model, config, options),
      framework_(std::move(framework)),
      optimizer_(make_optimizer(config)) {
  host_.set_framework(framework_.get());
  if (host_.shares_blocks()) step_copy_.emplace(host_);
}

TrainingRun::~TrainingRun() { host_.close(); }

void TrainingRun::initialize() {
  RankProgram& p = host_.program().program();
  for (const ModuleId m : checkpointed_modules(host_.model(), host_.config()))
    host_.set_checkpointed(m);
  framework_->initialize(host_);
  for (const ModelArgument& a : host_.model().arguments)
    p.inputs.push_back(input_row(a, shape_of(a, host_.config())));
  const ParallelConfig& c = host_.config();
  for (std::size_t i = model_inputs(host_.model(), c); i < p.inputs.size(); ++i)
    p.inputs[i].kind = InputKind::kFloatTargets;
  if (token_loss(c.loss) && !host_.model().arguments.empty())
    p.inputs.push_back(targets_row(host_.model(), c));
  p.init = {0, host_.program().position()};
}

void TrainingRun::begin_step() {
  host_.impl().draws = 0;
  framework_->begin_step(host_, step_);
  host_.decide({.kind = DecisionKind::kStepBegin, .number = static_cast<std::int32_t>(step_)});
}

void TrainingRun::load_inputs(std::int64_t micro_batch) {
  host_.set_phase(Phase::kInput);
  const RankProgram& p = host_.program().program();
  inputs_.resize(model_inputs(host_.model(), host_.config()));
  for (std::size_t i = 0; i < p.inputs.size(); ++i) {
    const ModelInput& row = p.inputs[i];
    SymTensor t = host_.empty(Shape(std::span<const std::int64_t>(row.shape)), row.dtype,
                              BufferCategory::kInput);
    Copy c;
    c.bytes = Bytes(t->bytes());
    c.destination = host_.id_of(t);
    c.input = static_cast<std::int32_t>(i);
    c.micro_batch = static_cast<std::int32_t>(micro_batch);
    c.blocks_host = true;
    host_.copy(c);
    if (i < inputs_.size()) {
      host_.set_requires_grad(t, host_.model().arguments[i].requires_grad);
      inputs_[i] = std::move(t);
    } else {
      targets_ = std::move(t);
    }
  }
}

std::vector<SymTensor> TrainingRun::forward() {
  host_.set_phase(Phase::kForward);
  const Module& root = host_.model().root();
  std::vector<SymTensor> in = inputs_, out(root.outputs.size());
  if (host_.config().loss == LossKind::kFused) in.push_back(targets_);
  if (host_.config().autocast && !host_.impl().autocast) host_.impl().begin_autocast();
  framework_->before_model(host_, true);
  host_.call(ModuleId(0), in, out);
  framework_->after_model(host_, out);
  if (host_.config().checkpoint == CheckpointKind::kNone) host_.impl().packed_mask.reset();
  return out;
}

/// Sum over the chunks, each converted to fp32 on its own, divided by the number of targets.
SymTensor TrainingRun::chunked_loss(std::span<const SymTensor> logits) {
  std::int64_t from = 0;
  SymTensor total;
  for (const SymTensor& chunk : logits) {
    const std::int64_t n = chunk->shape[1];
    SymTensor targets =
        reshape(host_, slice(host_, targets_, 1, from, from + n), {chunk->shape[0] * n});
    SymTensor rows = reshape(host_, chunk, {chunk->shape[0] * n, chunk->shape[2]});
    SymTensor part =
        cross_entropy(host_, cast(host_, rows, DType::kFloat32), targets, LossReduction::kSum);
    total = total ? add(host_, total, part) : part;
    from += n;
  }
  return unary(host_, Function::kMulScalar, total, 1.0 / static_cast<double>(targets_->numel));
}

SymTensor TrainingRun::loss(std::vector<SymTensor>&& outputs) {
  host_.set_phase(Phase::kLoss);
  const ParallelConfig& c = host_.config();
  SymTensor result;
  if (c.loss == LossKind::kMeanSquareOutput) {
    for (SymTensor& t : outputs) {
      SymTensor x = cast(host_, t, DType::kFloat32);
      SymTensor part = mean_square(host_, x);
      result = result ? add(host_, result, part) : part;
    }
  } else if (c.loss == LossKind::kMeanSquare) {
    result = mse_loss(host_, cast(host_, outputs[0], DType::kFloat32), targets_);
  } else if (c.loss == LossKind::kFused) {
    result = outputs[0];
  } else if (c.loss == LossKind::kChunked) {
    result = chunked_loss(outputs);
  } else {
    SymTensor logits =
        view(host_, outputs[0], {outputs[0]->numel / outputs[0]->shape[-1], outputs[0]->shape[-1]});
    SymTensor targets = view(host_, targets_, {targets_->numel});
    SymTensor wide =
        c.loss == LossKind::kCrossEntropy ? logits : cast(host_, logits, DType::kFloat32);
    result = cross_entropy(host_, wide, targets);
  }
  if (host_.config().autocast) host_.impl().end_autocast();
  if (host_.options().executable) {
    host_.launch(OpKind::kObserve, {result}, {}, {0.0, 1.0 / static_cast<double>(c.accumulate)});
  }
  std::vector<double> factors = framework_->loss_factors();
  if (factors.empty() && c.average_micro_batches && c.accumulate > 1)
    factors = {1.0 / static_cast<double>(c.accumulate)};
  for (const double f : factors) result = unary(host_, Function::kMulScalar, result, f);
  outputs.clear();
  return result;
}

void TrainingRun::backward(std::span<const SymTensor> losses) {
  host_.set_phase(Phase::kBackward);
  host_.decide({.kind = DecisionKind::kBackwardBegin});
  host_.backward(losses);
  host_.impl().packed_mask.reset();
  host_.decide({.kind = DecisionKind::kBackwardEnd});
}

void TrainingRun::clip() {
  host_.set_phase(Phase::kClip);
  host_.decide({.kind = DecisionKind::kClip});
  framework_->clip_gradients(host_, host_.config().max_norm);
}

void TrainingRun::optimizer_step() {
  if (optimizer_) host_.set_phase(Phase::kOptimizer);
  host_.decide({.kind = DecisionKind::kOptimizerStep});
  framework_->before_optimizer(host_);
  framework_->update(host_, optimizer_.get());
  framework_->after_optimizer(host_);
  ++step_;
}

void TrainingRun::zero_grad() {
  host_.set_phase(Phase::kZeroGrad);
  framework_->zero_gradients(host_);
}

void TrainingRun::evaluate() {
  host_.set_phase(Phase::kEvaluation);
  host_.decide({.kind = DecisionKind::kEvaluationBegin});
  const NoGradGuard no_grad(host_);
  std::vector<SymTensor> in = inputs_, out(host_.model().root().outputs.size());
  if (host_.config().loss == LossKind::kFused) in.push_back(targets_);
  framework_->before_model(host_, false);
  host_.call(ModuleId(0), in, out);
  framework_->after_model(host_, out);
  out.clear();
  host_.decide({.kind = DecisionKind::kEvaluationEnd});
}

void TrainingRun::micro_batches() {
  const ParallelConfig& c = host_.config();
  for (std::int64_t m = 0; m < c.accumulate; ++m) {
    Mark micro;
    micro.kind = MarkKind::kMicroBatch;
    micro.number = static_cast<std::int32_t>(m);
    host_.set_phase(Phase::kOther);
    host_.program().mark(micro);
    load_inputs(m);
    host_.decide({.kind = DecisionKind::kMicroBatchBegin, .number = static_cast<std::int32_t>(m)});
    framework_->begin_micro_batch(host_, m, c.sync_each_micro_batch || m + 1 == c.accumulate);
    {
      const SymTensor l = loss(forward());
      backward({&l, 1});
    }
    framework_->end_micro_batch(host_);
    host_.set_phase(Phase::kOther);
    micro.begin = false;
    host_.program().mark(micro);
  }
}

void TrainingRun::step() {
  RankProgram& p = host_.program().program();
  const std::uint32_t begin = host_.program().position();
  Mark mark;
  mark.number = static_cast<std::int32_t>(step_);
  host_.program().mark(mark);
  begin_step();
  host_.set_phase(Phase::kOther);
  if (step_copy_ && step_copy_->copy()) {
    ++copied_steps_;
  } else {
    if (step_copy_) step_copy_->begin();
    micro_batches();
    if (host_.config().clip) clip();
    std::vector<SymTensor*> held{&targets_};
    for (SymTensor& t : inputs_) held.push_back(&t);
    if (step_copy_) step_copy_->end(held);
  }
  optimizer_step();
  zero_grad();
  for (SymTensor& t : inputs_) t.reset();
  targets_.reset();
  host_.set_phase(Phase::kOther);
  mark.begin = false;
  host_.program().mark(mark);
  p.steps.push_back({begin, host_.program().position()});
}

RankProgram TrainingRun::take() {
  host_.program().require_complete();
  host_.close();
  return std::move(host_.program().program());
}

}  // namespace foreshard
