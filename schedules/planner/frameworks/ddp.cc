#include "schedules/planner/frameworks/framework.h"
#include "core/error.h"
namespace foreshard {
std::unique_ptr<Framework> make_ddp(const ParallelConfig&) { throw InternalError("ddp"); }
}  // namespace foreshard
