#include "study/predict.h"

#include "sim/cost_model.h"
#include "sim/simulator.h"
#include "study/needed_memory.h"
#include "study/parallel.h"

namespace foreshard {

Prediction predict(const Job& job, const SimulationOptions& options) {
  Prediction out;
  Evaluation& e = out.evaluation;
  e.schedule = plan_of(job);
  const Simulator simulator(e.schedule);
  UncertaintyStudy uncertainty(job, simulator, job.cost_parameters());
  parallel_for(1 + uncertainty.runs(), [&](std::size_t i) {
    if (i > 0) return uncertainty.run(i - 1);
    e.result = settled_run(job, simulator, options);
    out.needed_memory = needed_memory(job, simulator, e.result.memory);
  });
  out.uncertainty = uncertainty.finish(e.result.step_time);
  return out;
}

}  // namespace foreshard
