#include "study/predict.h"

#include "core/parallel.h"
#include "sim/cost_model.h"
#include "sim/simulator.h"
#include "study/needed_memory.h"

namespace foreshard {

Prediction predict(const Job& job, const SimulationOptions& options) {
  Prediction out;
  Evaluation& e = out.evaluation;
  e.schedule = plan_of(job);
  const Simulator simulator(e.schedule);
  UncertaintyStudy uncertainty(job, simulator, job.cost_parameters());
  // What memory it needs is searched beside the simulation where nothing of that is to be awaited.
  const bool beside = simulator.memory_is_timeless();
  const MemoryResult own = beside ? settled_memory(job, simulator, options) : MemoryResult();
  parallel_for(2 + uncertainty.runs(), [&](std::size_t i) {
    if (i == 0) e.result = settled_run(job, simulator, options);
    if (i == (beside ? 1 : 0))
      out.needed_memory = needed_memory(job, simulator, beside ? own : e.result.memory);
    if (i > 1) uncertainty.run(i - 2);
  });
  out.uncertainty = uncertainty.finish(e.result.step_time);
  return out;
}

}  // namespace foreshard
