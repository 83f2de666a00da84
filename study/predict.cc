#include "study/predict.h"

#include "core/parallel.h"
#include "sim/cost_model.h"
#include "sim/simulator.h"
#include "study/needed_memory.h"
#include "study/suggestion_study.h"
#include "study/task_pool.h"

namespace foreshard {
namespace {

/// The parts of an answer, each begun as soon as what it needs is there.
class Answer {
 public:
  Answer(const Job& job, const SimulationOptions& options, std::size_t most_suggestions)
      : job_(job), options_(options), most_suggestions_(most_suggestions) {}

  Prediction find() {
    pool_.add(TaskPool::Order::kAwaited, [this] { plan(); });
    if (most_suggestions_ > 0) suggestions_.emplace(job_, pool_);
    pool_.run();
    const Evaluation& e = out_.evaluation;
    out_.uncertainty = uncertainty_->finish(e.result.step_time);
    if (suggestions_) out_.suggestions = suggestions_->finish(e, most_suggestions_);
    return std::move(out_);
  }

 private:
  void plan() {
    Evaluation& e = out_.evaluation;
    e.schedule = plan_of(job_);
    simulator_.emplace(e.schedule);
    uncertainty_.emplace(job_, *simulator_, job_.cost_parameters());
    for (std::size_t i = 0; i < uncertainty_->runs(); ++i)
      pool_.add(TaskPool::Order::kAnyTime, [this, i] { uncertainty_->run(i); });
    OwnMemory own = settled_memory(job_, *simulator_, options_);
    follow(own.memory);
    e.result = settled_run(job_, *simulator_, std::move(own));
    if (suggestions_) suggestions_->compare(e);
  }

  /// What depends on the memory that the job takes of its device.
  void follow(const MemoryResult& own) {
    pool_.add(TaskPool::Order::kAwaited,
              [this, own] { out_.needed_memory = needed_memory(job_, *simulator_, own); });
    if (suggestions_) suggestions_->begin(own, *simulator_);
  }

  const Job& job_;
  const SimulationOptions& options_;
  std::size_t most_suggestions_;
  Prediction out_;
  std::optional<Simulator> simulator_;
  std::optional<UncertaintyStudy> uncertainty_;
  TaskPool pool_;
  std::optional<SuggestionStudy> suggestions_;
};

}  // namespace

Prediction predict(const Job& job, const SimulationOptions& options, std::size_t most_suggestions) {
  return Answer(job, options, most_suggestions).find();
}

}  // namespace foreshard
