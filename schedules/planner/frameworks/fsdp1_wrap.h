#pragma once

// Wrapping under FSDP1: which modules become units and which parameters each manages (F1-G-1 ..
// F1-G-9), and the layout of a flat parameter (F1-P-1, F1-P-2). Source of the rules:
// torch/distributed/fsdp/{wrap,_wrap_utils,_init_utils,_flat_param}.py.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "schedules/planner/config.h"
#include "schedules/planner/frameworks/fsdp1_unit.h"

namespace foreshard::fsdp1 {

/// The units in the order of root.modules(), which is the order of the handles; the root first.
/// Fsdp1Error where PyTorch refuses: frozen beside trainable parameters without original parameters
/// (F1-G-7), several dtypes, integers, scalars, groups of a hybrid strategy for a unit without.
std::vector<Unit> wrap_units(const Model& model, const ParallelConfig& config);

/// Modules that cast inputs to fp32 and outputs back, inside the hooks of their unit, if any
/// (F1-G-5): those of the full-precision classes, under mixed precision and an automatic policy.
std::vector<ModuleId> full_precision_modules(const Model& model, const ParallelConfig& config);

/// Parameters that no unit manages because the user ignores them or their module.
std::vector<ParameterId> ignored_parameters(const Model& model, const ParallelConfig& config);

/// default_hooks.DefaultState: f = 1; while f divides n and n / f > f: f *= 2. {f, n / f} (F1-B-7).
std::pair<double, double> divide_factors(std::int64_t ranks);

/// One occurrence of a parameter below a unit's module.
struct FlatSource {
  ParameterId id;
  ModuleId owner;
  std::string full_name;  ///< By the path on which the owner is met.
  std::string name;       ///< Local name.
};

/// Lays out parameters in the order of their occurrences; repeated ones are shared. `align`:
/// elements to a multiple of which each parameter's offset is rounded up, and the end to a multiple
/// of `ranks`; 0: neither (without original parameters). Dtypes and `trainable` are left to the
/// caller.
FlatLayout lay_out(const Model& model, std::vector<FlatSource> occurrences, std::int64_t align,
                   std::int64_t ranks, bool sharded);

}  // namespace foreshard::fsdp1
