#pragma once

// What simulations of one schedule share, each part made by the first that needs it.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "schedules/schedule.h"
#include "sim/host_code.h"
#include "sim/memory_pass.h"
#include "sim/shapes.h"

namespace foreshard::sim {

/// Checked programs, their shapes and what was found of their memory. Safe to call from many
/// threads; the schedule must outlive it.
class Preparation {
 public:
  explicit Preparation(const Schedule& schedule);

  /// Checks the schedule, once. InputError as require_schedule() throws it.
  void check();
  /// Finds the shapes of a program, after check().
  void require(std::uint32_t program);
  /// Of the programs that the caller has required.
  const std::vector<ProgramShapes>& shapes() const { return shapes_; }

  /// Kept where no allocation calls the driver: then it is equal for all costs and options.
  std::shared_ptr<const HostCode> code(std::uint32_t program, HostCodeDetail detail,
                                       const std::vector<DriverCall>& calls);
  /// As run_memory(). The last pass is kept, and is the answer where it is asked for again.
  std::shared_ptr<const MemoryPass> memory(std::uint32_t program, const MemoryPassOptions& options);
  /// most_requested() of the program's first `steps` steps.
  std::int64_t least_memory(std::uint32_t program, std::int32_t steps);

 private:
  struct Memory {
    std::shared_ptr<const MemoryRequests> requests;
    MemoryPassOptions options;
    std::shared_ptr<const MemoryPass> pass;  ///< With these options.

    bool answers(MemoryPassOptions asked) const;
  };

  const Schedule& schedule_;
  std::mutex mutex_;
  bool checked_ = false;
  std::map<std::uint32_t, Memory> memory_;  ///< By program.
  std::map<std::pair<std::uint32_t, HostCodeDetail>, std::shared_ptr<const HostCode>> code_;
  std::map<std::pair<std::uint32_t, std::int32_t>, std::int64_t> least_;
  std::vector<bool> ready_;
  std::vector<ProgramShapes> shapes_;
};

}  // namespace foreshard::sim
