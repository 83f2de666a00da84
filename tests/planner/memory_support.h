#pragma once

// Recorded memory cases (golden/memory) for tests: the case as model and configuration, the
// allocator's requests in order, and our program's requests in the same form.

#include <cstdint>
#include <string>
#include <vector>

#include "models/module_tree.h"
#include "schedules/planner/config.h"
#include "schedules/schedule.h"

namespace foreshard::fixture {

/// One request: size > 0 allocates block `id`, size 0 frees it.
struct Request {
  std::int64_t id = 0, size = 0;
  int stream = 0;
  bool operator==(const Request&) const = default;
};

struct Stream {
  std::vector<Request> requests;
  std::vector<std::string> phases;  ///< Of each request: "init" or "step/phase".
};

struct MemoryCase {
  std::string id;
  Model model;
  ParallelConfig config;
  std::int64_t rank = 0, steps = 3;
  Stream recorded;
};

/// Folder of the recordings, or empty if they are not there.
std::string memory_goldens();
/// Reads one case; ids of blocks are numbered by allocation.
MemoryCase read_memory_case(const std::string& folder, const std::string& id);
/// Device requests of a program, numbered by allocation; pools as the recording numbers streams is
/// the caller's matter.
Stream requests_of(const RankProgram& program);
/// "" if equal, else the first difference with some lines before it. Stream numbers are compared up
/// to renaming.
std::string first_difference(const Stream& expected, const Stream& found);

}  // namespace foreshard::fixture
