#pragma once

// The schedule: the program that one rank's host thread issues. Written by the planner, read by the
// simulator and the executor, which know each other only through it. Host order is the order of the
// instruction list: memory is claimed and returned in that order, while device work runs in stream
// order. docs/formats/schedule.md describes the file form.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/ids.h"
#include "core/op_kind.h"
#include "core/units.h"

namespace foreshard {

using BufferId = Id<struct BufferTag>;
using TensorId = Id<struct TensorTag>;
using EventId = Id<struct EventTag>;
using GroupId = Id<struct GroupTag>;
using UnitId = Id<struct UnitTag>;
using ScopeId = Id<struct ScopeTag>;  ///< A module of the model, by fully qualified name.
using StreamIndex = std::uint8_t;     ///< Index into RankProgram::streams; 0 is the compute stream.

inline constexpr int kMaxRank = 5;  ///< Highest number of tensor dimensions.

// ----------------------------------------------------------------------------------------------
// instructions

enum class InstructionKind : std::uint8_t {
  kAlloc,         ///< id = buffer. Claims the buffer now, in its pool.
  kFree,          ///< id = buffer. Returns it now.
  kRecordStream,  ///< id = buffer, stream. A later free is reusable only once `stream` has passed
                  ///< the free's position (A-9).
  kLaunch,        ///< id = index into launches. Device work on launches[id].stream.
  kCollective,    ///< id = index into collectives.
  kCopy,          ///< id = index into copies. Host-device or device-device copy.
  kRecordEvent,   ///< id = event, stream. The event completes when the stream reaches this point.
  kWaitEvent,     ///< id = event, stream. The stream waits; the host does not.
  kSyncEvent,     ///< id = event. The host waits.
  kSyncStream,    ///< stream. The host waits until the stream is empty.
  kSyncDevice,    ///< The host waits until every stream is empty.
  kHost,          ///< id = index into host_work. Host thread time without device work.
  kMark,          ///< id = index into marks. Structure for readers; no effect.
};

struct Instruction {
  InstructionKind kind = InstructionKind::kMark;
  StreamIndex stream = 0;
  std::uint16_t reserved = 0;
  std::uint32_t id = 0;
};
static_assert(sizeof(Instruction) == 8);

// ----------------------------------------------------------------------------------------------
// memory

enum class MemorySpace : std::uint8_t { kDevice, kHostPinned, kHostPageable };

/// What a buffer is for; the categories of the memory breakdown.
enum class BufferCategory : std::uint8_t {
  kShardedParameter,
  kParameter,
  kOptimizerState,
  kOptimizerTemporary,
  kGatherInput,
  kGatherOutput,
  kUnshardedParameter,
  kPostForwardShard,
  kUnshardedGradient,
  kReduceInput,
  kReduceOutput,
  kShardedGradient,
  kReduceTemporary,
  kBucket,
  kActivation,
  kRecomputedActivation,
  kLogitsAndLoss,
  kBackwardTemporary,
  kForwardTemporary,
  kWorkspace,
  kClipTemporary,
  kInput,
  kPersistent,
};
inline constexpr int kBufferCategoryCount = static_cast<int>(BufferCategory::kPersistent) + 1;
std::string_view name_of(BufferCategory c);

struct Buffer {
  Bytes bytes;           ///< As requested, before the allocator's rounding.
  StreamIndex pool = 0;  ///< The stream whose pool serves it.
  MemorySpace space = MemorySpace::kDevice;
  BufferCategory category = BufferCategory::kPersistent;
  UnitId unit;             ///< Owner unit, if any.
  ScopeId scope;           ///< Module that was running, if any.
  std::uint32_t name = 0;  ///< Index into RankProgram::names ("" allowed).
};

/// A strided view of a buffer. Element (i0, i1, ...) lies at byte
/// `offset + offset_per_rank * (index of this rank in group) + size_of(dtype) * sum(i_d *
/// stride[d])`.
struct Tensor {
  BufferId buffer;
  DType dtype = DType::kFloat32;
  std::uint8_t rank = 0;
  GroupId group;                     ///< Group of offset_per_rank; invalid where that is zero.
  std::int64_t offset = 0;           ///< Bytes.
  std::int64_t offset_per_rank = 0;  ///< Bytes.
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> stride{};  ///< Elements; 0 broadcasts.

  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= shape[d];
    return n;
  }
};

// ----------------------------------------------------------------------------------------------
// device work

/// Phases of a step, as PyTorch users name them.
enum class Phase : std::uint8_t {
  kInit,
  kInput,
  kForward,
  kLoss,
  kBackward,
  kRecompute,
  kClip,
  kOptimizer,
  kZeroGrad,
  kEvaluation,
  kOther,
};
inline constexpr int kPhaseCount = static_cast<int>(Phase::kOther) + 1;
std::string_view name_of(Phase p);

/// Kernels of one launch: what the cost models count in an int.
inline constexpr std::int64_t kMostKernels = INT32_MAX;

/// One kernel, or the kernels of one framework call (`kernels` of them). Tensor operands are
/// RankProgram::operands[first_operand ...): inputs, then outputs. In-place operands are listed as
/// both.
struct Launch {
  OpKind op = OpKind::kCopy;
  DType dtype = DType::kFloat32;  ///< Compute dtype.
  StreamIndex stream = 0;
  Phase phase = Phase::kOther;
  /// Number of scalars from RankProgram::attributes[first_attribute ...).
  std::uint16_t attributes = 0;
  std::uint32_t inputs = 0, outputs = 0;
  std::uint32_t kernels = 1;  ///< Device kernels launched; at most kMostKernels.
  std::uint32_t first_operand = 0, first_attribute = 0;
  std::array<std::int64_t, 6> dims{};  ///< By kind: docs/formats/op_operands.md. 0: unused.
  Flops flops;
  Bytes read, written;  ///< Device memory traffic of the kernels.
  ScopeId scope;
};

enum class CollectiveKind : std::uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllToAll,
  kSendReceive
};
inline constexpr int kCollectiveKindCount = static_cast<int>(CollectiveKind::kSendReceive) + 1;
std::string_view name_of(CollectiveKind k);

enum class ReduceOp : std::uint8_t { kNone, kSum, kAverage, kPreMulSum, kMax };

struct Collective {
  CollectiveKind kind = CollectiveKind::kAllGather;
  ReduceOp op = ReduceOp::kNone;
  DType dtype = DType::kFloat32;
  StreamIndex stream = 0;  ///< Stream that runs it.
  Phase phase = Phase::kOther;
  GroupId group;
  TensorId input,
      output;         ///< Contiguous; all-gather: shard -> whole; reduce-scatter: whole -> shard.
  Bytes bytes;        ///< The whole buffer: output of an all-gather, input of a reduce-scatter.
  double factor = 1;  ///< kPreMulSum: factor before the sum.
  std::int32_t root = 0;  ///< Broadcast / reduce: index in the group.
  UnitId unit;
  /// Bytes of all collectives that are issued together with it (ncclGroupStart to ncclGroupEnd) and
  /// share one launch, as broadcasts from each rank in turn; 0: launched alone.
  Bytes launched_together{0};
};

enum class CopyDirection : std::uint8_t { kHostToDevice, kDeviceToHost, kDeviceToDevice };

struct Copy {
  CopyDirection direction = CopyDirection::kHostToDevice;
  StreamIndex stream = 0;
  Phase phase = Phase::kOther;
  bool blocks_host = false;  ///< Pageable memory or an explicit synchronous copy.
  Bytes bytes;
  TensorId source,
      destination;  ///< Source invalid: host data that is not a buffer (inputs, pointer tables).
  std::int32_t input = -1;  ///< Index into RankProgram::inputs if the source is a model input.
  std::int32_t micro_batch = 0;
  bool pageable = false;  ///< Its end in host memory is not page-locked.
};

/// Host thread work without device work, in nanoseconds of the reference CPU (docs/host-time.md
/// names it); the simulator scales it with the profile's CPU factor.
struct HostWork {
  std::int64_t reference_ns = 0;
  std::uint32_t name = 0;  ///< Index into RankProgram::names.
};

enum class MarkKind : std::uint8_t {
  kStep,
  kMicroBatch,
  kPhase,
  kModule,
  kRecompute,   ///< begin/end pairs
  kUnitAction,  ///< begin/end pairs: "unshard", "copy_out", "reshard", "reduce", ...
};

struct Mark {
  MarkKind kind = MarkKind::kStep;
  bool begin = true;
  Phase phase = Phase::kOther;
  std::int32_t number = 0;  ///< Step or micro-batch.
  ScopeId scope;
  UnitId unit;
  std::uint32_t name = 0;  ///< Index into RankProgram::names.
};

// ----------------------------------------------------------------------------------------------
// the whole

struct Stream {
  std::string name;  ///< "compute", "all_gather", ...
  int priority = 0;  ///< CUDA priority: negative is more urgent.
  bool on_host =
      false;  ///< Kernels of the CPU on host memory (offloaded optimizer), not of the device.
};

/// A parameter as one rank holds it. `local` is this rank's part; the rows are along `shard_dim` of
/// `shape`.
struct ParameterView {
  std::string name;                 ///< Fully qualified.
  std::vector<std::int64_t> shape;  ///< Of the whole parameter.
  DType dtype = DType::kFloat32;
  bool trainable = true;
  TensorId local;  ///< Flat or shaped view of this rank's elements; invalid if it holds none.
  std::int64_t first_element = 0;  ///< Flat index in the whole parameter of local's first element
                                   ///< (shard_dim 0 or flat shards).
  std::int64_t elements = 0;       ///< Number of real (unpadded) elements held.
  GroupId group;                   ///< Group of first_element_per_rank; invalid where that is zero.
  std::int64_t first_element_per_rank =
      0;              ///< Added to first_element once per index of the rank in group.
  int shard_dim = 0;  ///< -1: not sharded (whole).
};

/// Parameters gathered, freed and reduced together.
struct ShardUnit {
  std::string name;
  std::vector<std::string> modules;
  std::vector<std::string> parameters;        ///< In buffer order.
  Elements numel, padded_numel, shard_numel;  ///< All; padded to the ranks; of one rank.
  DType gather_dtype = DType::kFloat32, reduce_dtype = DType::kFloat32;
};

/// Ranks r with equal (r / (size*stride), r % stride) form one communicator of `size` ranks.
struct Group {
  std::string name;  ///< "shard", "replicate", "world", ...
  std::int64_t size = 1;
  std::int64_t stride = 1;
  std::int64_t index_of(std::int64_t rank) const { return rank / stride % size; }
  std::int64_t first_of(std::int64_t rank) const { return rank - index_of(rank) * stride; }
};

enum class InputKind : std::uint8_t { kTokens, kTargets, kFloat, kFloatTargets, kPositions };

/// A tensor that the data loader provides for each micro-batch.
struct ModelInput {
  std::string name;
  InputKind kind = InputKind::kTokens;
  std::vector<std::int64_t> shape;  ///< Per rank and micro-batch.
  DType dtype = DType::kInt64;
  std::int64_t vocabulary = 0;  ///< Tokens: values are below this.
};

/// A half-open range of instructions.
struct Segment {
  std::uint32_t begin = 0, end = 0;
};

/// Where a repeated last step continues: buffer `now`, live at its end, takes the place of
/// `before`, live at its start.
struct Carry {
  BufferId before, now;
};

/// The program of one class of ranks (all ranks whose instruction lists are equal).
struct RankProgram {
  std::vector<Instruction> instructions;
  Segment init;  ///< Model, shards, communicators.
  std::vector<Segment>
      steps;  ///< Optimizer steps in order; the last one is the steady state and may be repeated.
  std::vector<Carry> carries;  ///< For repeating the last step.

  std::vector<Stream> streams;
  std::vector<Buffer> buffers;
  std::vector<Tensor> tensors;
  std::uint32_t events = 0;  ///< Number of event ids.
  std::vector<Launch> launches;
  std::vector<TensorId> operands;
  std::vector<double> attributes;
  std::vector<Collective> collectives;
  std::vector<Copy> copies;
  std::vector<HostWork> host_work;
  std::vector<Mark> marks;
  std::vector<std::string> names;   ///< names[0] == "".
  std::vector<std::string> scopes;  ///< Fully qualified module names; "" is the root.
  std::vector<ShardUnit> units;
  std::vector<ParameterView> parameters;
  std::vector<ModelInput> inputs;
};

/// Plan of a whole job: one program for each class of ranks.
struct Schedule {
  static constexpr int kFormatVersion = 1;
  std::string model;        ///< Name for people.
  std::string description;  ///< Framework and options in one line, for people.
  std::int64_t world = 1;
  std::vector<Group> groups;
  std::vector<RankProgram> programs;
  std::vector<std::uint32_t>
      program_of_rank;               ///< `world` entries, or one entry that serves all ranks.
  std::int64_t tokens_per_step = 0;  ///< Of the whole job; 0 if the model has no tokens.
  /// FLOPs of the whole job without recomputation (for MFU); 64 bits do not hold those of large
  /// jobs.
  double model_flops_per_step = 0;
  std::vector<std::string> not_modelled;
  /// What the framework does with this job that its user may not expect.
  std::vector<std::string> remarks;

  const RankProgram& program_for(std::int64_t rank) const {
    return programs[program_of_rank.size() == 1 ? program_of_rank[0]
                                                : program_of_rank[static_cast<std::size_t>(rank)]];
  }
};

}  // namespace foreshard
