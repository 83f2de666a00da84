#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "exec/rank_context.h"
#include "exec/rank_memory.h"
#include "exec/run.h"

namespace foreshard {

/// Which elements of a whole parameter the elements of one rank's local view are.
class LocalElements {
 public:
  LocalElements(const RankContext& context, const ParameterView& parameter);
  /// Row-major index in the whole parameter of the local element `i` (row-major, i < count()).
  std::int64_t global_index(std::int64_t i) const;
  std::int64_t count() const { return count_; }

 private:
  std::int64_t count_ = 0;
  std::int64_t first_ = 0;
  std::int64_t row_ =
      0;  ///< Elements of one index of the dimensions before the shard dimension, locally ...
  std::int64_t whole_row_ =
      0;  ///< ... and in the whole parameter; both 0 if the local elements are consecutive.
};

/// Puts the rank's shards of all parameters into `into`.
void add_local_parameters(const RankContext& context, const RankMemory& memory,
                          std::map<std::string, FinalParameter>& into);

}  // namespace foreshard
