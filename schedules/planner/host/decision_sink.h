#pragma once

// What the planner decided, as records: for `--explain` and for the conformance program.
// Instructions say what the host issued; these say why and what it did not issue. A Host without a
// sink writes none.

#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "models/module_tree.h"
#include "schedules/schedule.h"

namespace foreshard {

enum class DecisionKind : std::uint8_t {
  kStepBegin,
  kMicroBatchBegin,
  kBackwardBegin,
  kBackwardEnd,
  kOptimizerStep,
  kClip,
  kEvaluationBegin,
  kEvaluationEnd,
  kModuleForwardBegin,
  kModuleForwardEnd,  ///< module, parameter; flag: during recomputation
  kModuleBackwardBegin,
  kModuleBackwardEnd,  ///< module, parameter
  kRecomputeBegin,
  kRecomputeEnd,  ///< module
  kRootPreForward,
  kUnshard,           ///< status
  kCopyOut,           ///< bytes, bytes2 = temporaries, flag: frees a post-forward shard
  kFreeGatherOutput,  ///< flag: mistargeted
  kReshard,           ///< status, bytes of a kept clone
  kPrefetch,          ///< unit, target = other unit; flag: backward
  kPreBackward,
  kPostBackward,   ///< flag: by the final callback
  kGradientsKept,  ///< indices, bytes, dtypes
  kReduceCopyIn,   ///< indices (packing order), bytes of gradients, bytes2 padded input, dtype
  kReduced,        ///< pre, post division; bytes of the cast; flag: accumulated; flag2: all-reduce
                   ///< pending
  kFreeReduceInput,
  kFreeAllReduceBuffer,
  kFinalCallbackBegin,
  kFinalCallbackEnd,
  kFinalize,
  kCollective,  ///< collective = index into RankProgram::collectives; bytes = per-rank shard,
                ///< bytes2 = cast copy
  kAllReduceHook,
  kBucketRebuilt,
  kBucketReady,    ///< DDP
  kGradientReady,  ///< target = parameter index
};

enum class DecisionStatus : std::uint8_t {
  kNone,
  kIssue,
  kLocal,
  kPending,
  kAlready,
  kSkipped,
  kFree,
  kKept,
  kPostForward,
  kFromPostForward,
};

struct Decision {
  DecisionKind kind = DecisionKind::kStepBegin;
  DecisionStatus status = DecisionStatus::kNone;
  bool flag = false, flag2 = false;
  Phase phase = Phase::kOther;
  DType dtype = DType::kFloat32;
  UnitId unit{}, target{};
  ModuleId module{};
  ParameterId parameter{};  ///< Valid: the report is about a statement that uses this parameter
                            ///< (add_param).
  std::int32_t number = 0;  ///< Step, micro-batch.
  std::uint32_t collective = UINT32_MAX;
  std::int64_t bytes = 0, bytes2 = 0;
  double pre_divide = 1, post_divide = 1;
  std::span<const std::uint32_t>
      indices{};                    ///< Into the unit's parameters; valid during the call only.
  std::span<const DType> dtypes{};  ///< Beside `indices`; valid during the call only.
};

class DecisionSink {
 public:
  virtual ~DecisionSink() = default;
  virtual void on_decision(const Decision& d) = 0;
};

}  // namespace foreshard
