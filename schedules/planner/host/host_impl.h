#pragma once

// Inner state of the symbolic host; include in host/ and recipes/ only.

#include <cstdint>
#include <map>
#include <memory>
#include <queue>
#include <span>
#include <vector>

#include "schedules/planner/host/autograd.h"
#include "schedules/planner/host/host.h"
#include "schedules/planner/host/pool.h"
#include "schedules/planner/host/tensor.h"

namespace foreshard {

/// A checkpointed region between forward and its recomputation (torch.utils.checkpoint,
/// non-reentrant: _CheckpointFrame).
struct CheckpointFrame {
  bool in_use = false;
  ModuleId module;
  std::int32_t live_holders = 0;  ///< Saved tensors of the region that still exist.
  bool forward_running = false;
  std::vector<SavedTensor>
      arguments;  ///< Inputs of the module, packed by an outer region if there is one.
  std::vector<std::uint8_t> holder_alive;  ///< For each saved tensor, in order of saving.
  std::vector<SymTensor> recomputed;
  std::uint32_t recomputed_in = 0;  ///< Number of the backward that ran it again.
  std::int32_t counter = 0;         ///< Tensors saved again so far.
  bool autocast = false;
  std::int64_t draws = 0;  ///< HostImpl::draws before the forward (preserve_rng_state).
  // Selective checkpointing per operator (CK-5): results that forward keeps and recomputation takes
  // instead of running.
  bool selective = false;
  std::int32_t products = 0,
               products_again =
                   0;  ///< Matrix products of the forward and of the recomputation so far.
  std::vector<std::array<SymTensor, 4>> kept;  ///< Results in order; each is taken once.
  std::size_t kept_taken = 0;
};

/// Operators whose results a selective checkpoint may keep: every second matrix product, attention
/// always (CK-5).
enum class KeptOp : std::uint8_t { kProduct, kAttention };

/// Who receives tensors that functions save: innermost last.
struct SaveScope {
  std::int32_t frame = -1;  ///< -1: keep the tensor itself.
  bool recomputing = false;
};

/// Thrown when every tensor of a region is back (CK-3).
struct StopRecomputation {};

/// A module's program with the values that die after each statement.
struct CompiledModule {
  bool ready = false;
  std::int32_t slots = 0;
  std::size_t most_inputs = 0, most_outputs = 0;  ///< Of one statement.
  std::vector<std::uint32_t> release_end;  ///< For each statement: end of its range in `release`.
  std::vector<std::uint32_t>
      inputs_end;  ///< ... and end of the inputs in that range; unused outputs follow.
  std::vector<ValueSlot> release;
};

class BlockTemplates;

class HostImpl {
 public:
  explicit HostImpl(Host& host);
  ~HostImpl();

  Host& host;
  bool closing = false;

  Pool<SymStorage, false> storages;
  Pool<SymTensorImpl, false> tensors;
  Pool<AutogradNode> nodes;

  // ---------------------------------------------------------------- tensors
  SymTensor make_tensor(Ref<SymStorage> storage, const Shape& shape, DType dtype);
  Ref<SymStorage> make_storage(std::int64_t bytes, BufferCategory category, UnitId unit,
                               std::uint32_t name);
  void allocate(SymStorage& s);

  // ---------------------------------------------------------------- autograd
  std::uint64_t next_sequence = 0;
  bool node_streams = true;  ///< False: backward runs on one stream (the device is a CPU).
  std::vector<HookEntry> hooks;
  std::uint32_t backward_number = 0;
  std::uint32_t running_backward = 0;  ///< Number of the innermost backward that runs; 0: none.
  std::vector<std::uint32_t> callbacks;
  std::vector<Ref<AutogradNode>> kept_accumulators;  ///< Of leaves with tensor hooks.

  /// A node with host, scope and stream of the present moment.
  Ref<AutogradNode> new_node(std::uint64_t sequence, BackwardFunction backward);

  /// Lists of sizes too long for a node's ints, each once; nodes keep the index.
  std::vector<std::vector<std::int64_t>> size_lists;
  std::int64_t size_list(std::span<const std::int64_t> sizes);

  void add_hook(AutogradNode& n, HookEntry e);
  Ref<AutogradNode> gradient_edge_node(SymTensorImpl& t);
  /// `gradients`: of the roots; empty: ones. May run inside another backward (reentrant
  /// checkpoints).
  void run_backward(std::span<const SymTensor> roots, std::span<const SymTensor> gradients);
  /// Of each parameter the scope of the last statement that read it while gradients were recorded;
  /// of each module's scope whether a backward function of it ran. The entry behind the last scope
  /// stands for all: of parameters that are handed on as values.
  std::vector<ScopeId> read_in;
  std::vector<std::uint8_t> ran_backward;
  void release_saved(AutogradNode& n);
  void release(SavedTensor& s);

  // ---------------------------------------------------------------- checkpointing
  std::vector<CheckpointFrame> frames;
  std::vector<std::int32_t> free_frames;
  std::vector<SaveScope> save_scopes;
  std::vector<std::uint8_t> checkpointed;  ///< For each module.

  /// Fills `results` (null entries allowed) and returns true if a recomputation takes them from its
  /// selective checkpoint.
  bool take_kept(KeptOp op, std::span<SymTensor* const> results);
  /// Offers the results of an operator that ran to the selective checkpoint around it, if there is
  /// one.
  void offer_kept(KeptOp op, std::span<SymTensor* const> results);
  SavedTensor pack(const SymTensor& t);
  SymTensor unpack(SavedTensor& s);
  void call_checkpointed(ModuleId m, std::span<SymTensor> inputs, std::span<SymTensor> outputs);
  void call_reentrant(ModuleId m, std::span<SymTensor> inputs, std::span<SymTensor> outputs);
  /// What a checkpoint wraps: the module's forward, or the framework's hooks with it.
  void run_checkpointed(ModuleId m, std::span<SymTensor> inputs, std::span<SymTensor> outputs);
  void recompute(std::int32_t frame);
  /// Runs a reentrant checkpoint's forward again with autograd on.
  void rerun(ModuleId module, std::int64_t first_draw, std::span<SymTensor> arguments,
             std::span<SymTensor> outputs);
  void drop_frame_if_done(std::int32_t frame);

  // ---------------------------------------------------------------- modules
  std::vector<CompiledModule> compiled;
  std::vector<SymTensor> value_stack;
  std::size_t value_top = 0;

  std::vector<std::uint8_t>
      traced;  ///< Modules whose forward and backward are reported to the sink.
  std::vector<std::uint8_t>
      traced_parameters;  ///< Modules whose add_param statements are reported.
  /// A reported call (of a module, or of a statement if `parameter` is valid).
  struct ReportedCall {
    ModuleId module;
    ParameterId parameter{};
    bool backward_seen = false;
  };
  std::vector<ReportedCall> reported_calls;

  const CompiledModule& compile(ModuleId m);
  void set_scope(ScopeId s) { host.scope_ = s; }
  /// A function that passes its arguments through and runs `backward` when all their gradients are
  /// there.
  void identity(std::span<SymTensor> tensors, BackwardFunction backward, std::uint32_t payload);
  /// Reports the begin of the call's backward when a gradient of one of `outputs` arrives.
  void report_backward(const ReportedCall& call, std::span<SymTensor> outputs);
  /// A module inside the framework's hooks: checkpointed or plain.
  void run_block(ModuleId m, std::span<SymTensor> inputs, std::span<SymTensor> outputs);
  void run_module(ModuleId m, std::span<SymTensor> inputs, std::span<SymTensor> outputs);
  void run_program(ModuleId m, std::span<SymTensor> inputs, std::span<SymTensor> outputs);

  std::unique_ptr<BlockTemplates> block_templates;  ///< Null: every block runs for real.

  /// Frequencies for long contexts, kept by a rotary embedding (by module) from its first call on.
  std::map<std::uint32_t, SymTensor> long_frequencies;
  bool idle_experts = false;  ///< PlanOptions::idle_experts.
  /// State of the generator of random numbers: how many draws the step has made.
  std::int64_t draws = 0;
  int reentrant_forwards = 0;  ///< Inside these grad mode is off, but the module trains.
  SymTensor packed_mask;       ///< Of the running forward, see ParallelConfig::packed_sequences.

  // ---------------------------------------------------------------- autocast (torch.autocast,
  // bf16)
  bool autocast = false;
  struct CachedCast {
    SymTensorImpl* source;
    SymTensor source_ref;
    SymTensor result;
  };
  std::vector<CachedCast> autocast_cache;
  int autocast_depth = 0;
  void begin_autocast();
  void end_autocast();

 private:
  struct ReadyNode {
    AutogradNode* node;
    bool operator<(const ReadyNode& o) const { return node->sequence < o.node->sequence; }
  };
  friend class BlockTemplates;
  friend class BackwardRecorder;
  struct GraphTask;
  GraphTask* running_task = nullptr;  ///< Of the innermost backward that runs.
  void count_dependencies(GraphTask& task, AutogradNode* root);
  void accumulate_input(GraphTask& task, StreamIndex producer, AutogradNode* next, int input,
                        SymTensor&& g);
  void use_on_stream(const SymTensor& t, StreamIndex stream);
  void evaluate(GraphTask& task, AutogradNode* node);
  void evaluate_leaf(GraphTask& task, AutogradNode& node);
  bool run_pre_hooks(GraphTask& task, const AutogradNode& node, std::span<SymTensor> gradients);
  void run_post_hooks(const AutogradNode& node);
  void validate_outputs(AutogradNode& node, std::span<SymTensor> out);
  void accumulate_gradient(AutogradNode& node, SymTensor&& gradient, bool has_post_hooks);
};

}  // namespace foreshard
