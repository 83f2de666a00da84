#include "study/checkpoint_memory.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/integers.h"
#include "memory/virtual_segment_source.h"
#include "study/memory_replay.h"

namespace foreshard {
namespace {

/// FileSystemWriter's per_thread_copy_ahead: copies to the host run this far ahead of the file.
constexpr std::int64_t kCopyAhead = 10'000'000;

std::int64_t bytes_of(const ParameterView& p) { return p.elements * size_of(p.dtype); }

/// Tensors of a parameter's size that the optimizer keeps for it.
std::int64_t states_of(const ParallelConfig& c) {
  switch (c.optimizer) {
    case OptimizerKind::kNone:
      return 0;
    case OptimizerKind::kSgd:
      return c.momentum != 0 ? 1 : 0;
    default:
      return 2;
  }
}

/// What a state dictionary of the whole model holds: a tied parameter under each of its names.
std::int64_t model_bytes(const Model& model) {
  std::int64_t sum = 0;
  for (const Module& m : model.modules) {
    for (const OwnedParameter& p : m.parameters) {
      const ParameterDef& d = model.parameters[p.id.value];
      sum += d.numel() * size_of(d.dtype);
    }
    for (const BufferDef& b : m.buffers) {
      std::int64_t n = b.persistent ? size_of(b.dtype) : 0;
      for (const std::int64_t d : b.shape) n *= d;
      sum += n;
    }
  }
  return sum;
}

/// A program with further work behind its last step, or in the place of all steps.
class Appendix {
 public:
  Appendix(const RankProgram& program, bool after_steps) : program_(program) {
    if (!after_steps) program_.instructions.resize(program_.init.end);
    Mark step, phase;
    step.number = static_cast<std::int32_t>(program_.steps.size());
    mark(step);
    phase.kind = MarkKind::kPhase;
    mark(phase);
  }

  std::uint32_t alloc(std::int64_t bytes) {
    Buffer b;
    b.bytes = Bytes(bytes);
    b.category = BufferCategory::kWorkspace;
    program_.buffers.push_back(b);
    const auto id = static_cast<std::uint32_t>(program_.buffers.size() - 1);
    if (bytes > 0) add(InstructionKind::kAlloc, id);
    return id;
  }
  void free(std::uint32_t id) {
    if (program_.buffers[id].bytes.value > 0) add(InstructionKind::kFree, id);
  }

  /// What the steps have left of a category on the device.
  std::vector<std::uint32_t> left(BufferCategory category) const {
    std::vector<bool> live(program_.buffers.size());
    for (const Instruction& i : program_.instructions) {
      if (i.kind == InstructionKind::kAlloc) live[i.id] = true;
      if (i.kind == InstructionKind::kFree) live[i.id] = false;
    }
    std::vector<std::uint32_t> ids;
    for (std::uint32_t id = 0; id < live.size(); ++id) {
      const Buffer& b = program_.buffers[id];
      if (live[id] && b.category == category && b.space == MemorySpace::kDevice) ids.push_back(id);
    }
    return ids;
  }
  void free_all(BufferCategory category) {
    for (const std::uint32_t id : left(category)) free(id);
  }
  /// Bytes of the largest of them.
  std::int64_t largest_left(BufferCategory category) const {
    std::int64_t most = 0;
    for (const std::uint32_t id : left(category))
      most = std::max(most, program_.buffers[id].bytes.value);
    return most;
  }

  void run(const CheckpointSetting& setting, CheckpointRow& row) const {
    ReplayOptions options;
    options.allocator = setting.allocator;
    options.device_memory = setting.device_memory;
    MemoryReplay replay = replay_memory(program_, options);
    row.fits = !replay.oom;
    if (!row.fits) {
      options.device_memory = VirtualSegmentSource::kUnlimited;
      replay = replay_memory(program_, options);
    }
    row.allocated = Bytes(replay.steps.back().peak_allocated);
    row.reserved = Bytes(replay.steps.back().peak_reserved);
  }

 private:
  void add(InstructionKind kind, std::uint32_t id) {
    Instruction i;
    i.kind = kind;
    i.id = id;
    program_.instructions.push_back(i);
  }
  void mark(const Mark& m) {
    program_.marks.push_back(m);
    add(InstructionKind::kMark, static_cast<std::uint32_t>(program_.marks.size() - 1));
  }

  RankProgram program_;
};

/// How a framework's parameters reach a checkpoint.
enum class StateForm {
  kUnknown,  ///< Files of its own, which are not studied.
  kWhole,    ///< Every rank holds them whole.
  kTensors,  ///< Each a DTensor, gathered by itself.
  kFlat,     ///< Flat parameters, gathered unit by unit.
  kParts,    ///< DeepSpeed: each rank writes its part of the optimizer.
};

StateForm state_form(FrameworkKind framework) {
  switch (framework) {
    case FrameworkKind::kUnsharded:
    case FrameworkKind::kDdp:
      return StateForm::kWhole;
    case FrameworkKind::kFsdp2:
      return StateForm::kTensors;
    case FrameworkKind::kFsdp1:
      return StateForm::kFlat;
    case FrameworkKind::kZero1:
    case FrameworkKind::kZero2:
    case FrameworkKind::kZero3:
      return StateForm::kParts;
    case FrameworkKind::kShardedOptimizer:
      break;
  }
  return StateForm::kUnknown;
}

class CheckpointStudy {
 public:
  CheckpointStudy(const Model& model, const ParallelConfig& config, const RankProgram& program,
                  const CheckpointSetting& setting)
      : model_(model),
        config_(config),
        form_(state_form(config.framework)),
        program_(program),
        setting_(setting),
        whole_model_(model_bytes(model)) {
    for (const ParameterView& p : program.parameters) {
      const std::int64_t tensors = 1 + (p.trainable ? states_of(config) : 0);
      local_ += bytes_of(p) * tensors;
      largest_local_ = std::max(largest_local_, bytes_of(p));
      largest_ = std::max(largest_, whole_numel(p) * size_of(p.dtype));
      if (p.trainable) whole_states_ += states_of(config) * whole_numel(p) * size_of(p.dtype);
    }
  }

  std::vector<CheckpointRow> rows() {
    if (form_ == StateForm::kUnknown) return {};
    if (form_ == StateForm::kParts) return parts_rows();
    const bool sharded = form_ != StateForm::kWhole;
    const std::int64_t ranks = setting_.ranks_per_node;
    const std::int64_t whole = whole_model_ + whole_states_;
    Appendix gather(program_, true), resting(program_, true), loading(program_, false),
        empty(program_, false);
    gather_whole(gather);
    add("save", sharded ? "whole, gathered to rank 0" : "whole, by rank 0", gather, whole, whole);
    if (form_ == StateForm::kTensors && config_.shard > 1) {
      Appendix keeping(program_, true);
      for (const ParameterView& p : program_.parameters) gather_tensor(keeping, p, true);
      add("save", "model alone, whole on every device", keeping, largest_, largest_);
    }
    if (sharded) {
      const std::int64_t ahead = std::min(local_, kCopyAhead + largest_local_);
      add("save", "sharded", resting, ahead, ahead * ranks);
      add("save", "sharded, in the background", resting, local_, local_ * ranks);
    }
    add("load", "whole file in every process", empty, whole_model_, whole_model_ * ranks);
    if (sharded && config_.offload == OffloadKind::kNone) {
      broadcast_whole(loading);
      add("load", "whole file in rank 0, broadcast", loading, whole_model_, whole_model_);
    }
    if (sharded) add("load", "sharded", empty, largest_local_, largest_local_ * ranks);
    return std::move(rows_);
  }

 private:
  static std::int64_t whole_numel(const ParameterView& p) {
    std::int64_t n = 1;
    for (const std::int64_t d : p.shape) n *= d;
    return n;
  }

  void add(const char* phase, const char* way, const Appendix& appendix, std::int64_t host,
           std::int64_t node) {
    CheckpointRow row;
    row.phase = phase;
    row.way = way;
    row.host = Bytes(host);
    row.host_node = Bytes(node);
    row.host_fits = !setting_.host_memory || row.host_node <= *setting_.host_memory;
    appendix.run(setting_, row);
    rows_.push_back(std::move(row));
  }

  /// full_state_dict with cpu_offload: one tensor after the other is gathered and copied down, on
  /// every rank; rank 0 keeps the copies.
  void gather_whole(Appendix& a) {
    if (form_ == StateForm::kFlat) return gather_flat(a);
    if (form_ != StateForm::kTensors || config_.shard == 1) return;
    for (const ParameterView& p : program_.parameters) gather_tensor(a, p);
    for (const ParameterView& p : program_.parameters) {
      for (std::int64_t k = 0; p.trainable && k < states_of(config_); ++k) gather_tensor(a, p);
    }
  }

  /// DTensor.full_tensor(): shards of fewer rows are padded first, offloaded ones come up. `keep`:
  /// full_state_dict without cpu_offload, or scripts that collect full tensors.
  void gather_tensor(Appendix& a, const ParameterView& p, bool keep = false) {
    if (p.shard_dim < 0) return;
    const std::int64_t rows = p.shape[static_cast<std::size_t>(p.shard_dim)];
    const std::int64_t each = ceil_div(rows, config_.shard);
    const std::int64_t padded = whole_numel(p) / rows * each * size_of(p.dtype);
    const std::uint32_t up = a.alloc(config_.offload != OffloadKind::kNone ? bytes_of(p) : 0);
    const std::uint32_t wide = a.alloc(bytes_of(p) < padded ? padded : 0);
    const std::uint32_t whole = a.alloc(padded * config_.shard);
    a.free(up);
    a.free(wide);
    if (!keep) a.free(whole);
  }

  /// FSDP1 unshards one flat parameter after the other in full precision, the root's first, and
  /// again for those that stay in host memory meanwhile. Gradients of the original parameters go
  /// when the first does. Optimizer states are gathered apart, parameter by parameter.
  void gather_flat(Appendix& a) {
    if (config_.fsdp1.use_orig_params) a.free_all(BufferCategory::kShardedGradient);
    for (const ShardUnit& u : program_.units) {
      const DType dtype =
          program_.parameters.empty() ? DType::kFloat32 : program_.parameters.front().dtype;
      a.free(a.alloc(u.padded_numel.value * size_of(dtype)));
    }
  }

  /// broadcast_from_rank0: each whole tensor passes through every rank's device.
  void broadcast_whole(Appendix& a) {
    for (const ParameterView& p : program_.parameters)
      a.free(a.alloc(whole_numel(p) * size_of(p.dtype)));
  }

  /// DeepSpeed's save_checkpoint (runtime/engine.py): torch.save brings one storage after the other
  /// to the host. Every rank writes its fp32 parts with the optimizer's states; rank 0 also the
  /// 16-bit parameters, which stages 1 and 2 hold in flat tensors and stage 3 in no whole form.
  std::vector<CheckpointRow> parts_rows() {
    Appendix parts(program_, true);
    const bool stage3 = config_.framework == FrameworkKind::kZero3;
    if (stage3) partition_all(parts);
    const std::int64_t part = std::max(parts.largest_left(BufferCategory::kShardedParameter),
                                       parts.largest_left(BufferCategory::kOptimizerState));
    const std::int64_t first =
        std::max(part, stage3 ? 0 : parts.largest_left(BufferCategory::kParameter));
    add("save", "parts, by every rank", parts, first, first + part * (setting_.ranks_per_node - 1));
    if (stage3) {
      Appendix gathering(program_, true);
      partition_all(gathering);
      const std::int64_t whole = gather_modules(gathering);
      add("save", "model alone, whole, gathered to rank 0", gathering, whole, whole);
    }
    return std::move(rows_);
  }

  /// checkpoint_event_prologue of stage 3: parameters that stay gathered between steps go.
  static void partition_all(Appendix& a) {
    a.free_all(BufferCategory::kGatherOutput);
    a.free_all(BufferCategory::kUnshardedParameter);
  }

  /// _zero3_consolidated_16bit_state_dict (stage3_gather_16bit_weights_on_model_save): the
  /// parameters of one module after the other are gathered, each padded to equal parts, and copied
  /// to rank 0's host memory, a shared one once. Answers the bytes there.
  std::int64_t gather_modules(Appendix& a) const {
    const std::int64_t size = size_of(config_.precision.param.value_or(config_.model_dtype));
    const std::int64_t ranks = config_.world();
    std::vector<bool> copied(model_.parameters.size());
    std::int64_t host = 0;
    for (const Module& m : model_.modules) {
      std::vector<std::uint32_t> gathered;
      for (const OwnedParameter& p : m.parameters) {
        const std::int64_t numel = model_.parameters[p.id.value].numel();
        gathered.push_back(a.alloc(ceil_div(numel, ranks) * ranks * size));
        if (!copied[p.id.value]) host += numel * size;
        copied[p.id.value] = true;
      }
      for (const std::uint32_t id : gathered) a.free(id);
    }
    return host;
  }

  const Model& model_;
  const ParallelConfig& config_;
  StateForm form_;
  const RankProgram& program_;
  const CheckpointSetting& setting_;
  std::int64_t whole_model_ = 0, whole_states_ = 0, local_ = 0;
  std::int64_t largest_ = 0, largest_local_ = 0;  ///< Of one tensor.
  std::vector<CheckpointRow> rows_;
};

}  // namespace

std::vector<CheckpointRow> study_checkpoints(const Model& model, const ParallelConfig& config,
                                             const RankProgram& program,
                                             const CheckpointSetting& setting) {
  return CheckpointStudy(model, config, program, setting).rows();
}

}  // namespace foreshard
