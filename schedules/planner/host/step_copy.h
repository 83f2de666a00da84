#pragma once

// What a step does before its optimizer (micro-batches, clipping), copied from the step before:
// where the framework is at rest before both (Framework::at_rest), they issue the same but for the
// numbers of buffers and events. docs/symbolic-host.md has the rules.

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

  /// Around what runs for real. `inputs`: variables that still hold what micro-batches loaded.
  void begin();
  void end(std::span<SymTensor* const> inputs);
  /// In place of it; false: it has to run. Gradients and inputs are then those of the copy.
  bool copy();

 private:
  /// A tensor that outlives it: an input, or the gradient of a leaf.
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
  void restore();

  Host& host_;
  std::optional<ProgramPosition> from_, to_;  ///< Of what can be copied.
  Phase phase_ = Phase::kOther;               ///< At its end.
  std::vector<Held> held_;
  std::vector<SymStorage> storages_;  ///< What held_ lies in, as described by their fields.
};

}  // namespace foreshard
