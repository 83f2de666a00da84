#pragma once

// A training script on the symbolic host: init, then steps of micro-batches, clipping, optimizer.
// plan() runs whole steps; the conformance program calls the pieces in the order of its case.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "schedules/planner/frameworks/framework.h"
#include "schedules/planner/host/host.h"
#include "schedules/planner/host/step_copy.h"

namespace foreshard {

class Optimizer;

class TrainingRun {
 public:
  TrainingRun(const Model& model, const ParallelConfig& config, const HostOptions& options);
  TrainingRun(const Model& model, const ParallelConfig& config, const HostOptions& options,
              std::unique_ptr<Framework> framework);
  ~TrainingRun();

  Host& host() { return host_; }
  Framework& framework() { return *framework_; }

  /// Wraps and materialises the model, makes the optimizer.
  void initialize();
  /// One optimizer step with config.accumulate micro-batches, as a user's loop does it.
  void step();

  // Pieces of a step.
  void begin_step();
  /// Copies of one micro-batch's inputs to the device.
  void load_inputs(std::int64_t micro_batch);
  /// The root's call on the loaded inputs.
  std::vector<SymTensor> forward();
  /// Scalar loss of the outputs (config.loss); `outputs` are taken and dropped as the script drops
  /// them.
  SymTensor loss(std::vector<SymTensor>&& outputs);
  void backward(std::span<const SymTensor> losses);
  void clip();
  void optimizer_step();
  void zero_grad();
  /// One forward under no_grad; the outputs are dropped.
  void evaluate();

  /// Steps whose micro-batches were copied.
  std::size_t copied_steps() const { return copied_steps_; }

  /// Hands the program over; the run is over.
  RankProgram take();

 private:
  void micro_batches();
  SymTensor chunked_loss(std::span<const SymTensor> logits);

  std::unique_ptr<const Model>
      changed_model_;  ///< With the loss in its head; null: the caller's model as it is.
  Host host_;
  std::unique_ptr<Framework> framework_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<SymTensor> inputs_;
  SymTensor targets_;
  std::optional<StepCopy> step_copy_;  ///< Absent: every step runs for real.
  std::size_t copied_steps_ = 0;
  std::int64_t step_ = 0;
};

}  // namespace foreshard
