#pragma once

// The micro-batches of a step, from the first input to the end of the last backward, copied from
// the step before: where the framework is at rest before both (Framework::at_rest), they issue the
// same but for the numbers of buffers and events. docs/symbolic-host.md has the rules.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "schedules/planner/host/host.h"
#include "schedules/planner/host/program_position.h"

namespace foreshard {

class StepCopy {
 public:
  explicit StepCopy(Host& host) : host_(host) {}

  /// Around micro-batches that run for real. `inputs`: variables that still hold what they loaded.
  void begin();
  void end(std::span<SymTensor* const> inputs);
  /// In place of them; false: they have to run. Gradients and inputs are then those of the copy.
  bool copy();

 private:
  /// A tensor that outlives the micro-batches: an input, or the gradient of a leaf.
  struct Held {
    SymTensor* holder = nullptr;
    DType dtype = DType::kFloat32;
    bool requires_grad = false;
    std::uint32_t storage = 0;  ///< Index into storages_.
    Shape shape;
    std::array<std::int64_t, kMaxRank> stride{};
    std::int64_t offset = 0;
  };
  bool ready() const;
  bool describe(SymTensor& t, std::span<std::uint32_t> places);
  bool closed() const;
  void append(const ProgramPosition& now);
  void restore();

  Host& host_;
  std::optional<ProgramPosition> from_, to_;  ///< Of micro-batches that can be copied.
  std::vector<Held> held_;
  std::vector<SymStorage> storages_;  ///< What held_ lies in, as described by their fields.
};

}  // namespace foreshard
