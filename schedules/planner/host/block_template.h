#pragma once

// Equal blocks are planned once. What the forward and the backward of one block write is kept as a
// template, with buffers and launches numbered from its own start; a further block of the same
// structure, called with tensors of the same form, copies it and stands in the autograd graph as
// one node. Hooks around and inside a block, AccumulateGrad of its leaves and everything outside
// run as ever. docs/symbolic-host.md has the rules in one place.

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "models/module_tree.h"
#include "schedules/planner/host/autograd.h"
#include "schedules/planner/host/tensor.h"
#include "schedules/schedule.h"

namespace foreshard {

class HostImpl;

/// A block turned out to behave unlike its template; the plan is made again without templates.
struct BlocksDiffer : std::exception {
  const char* what() const noexcept override { return "equal blocks behave differently"; }
};

/// Everything about a tensor on which instructions of recipes and of the engine may depend.
struct TensorForm {
  bool defined = false, live = false, requires_grad = false, leaf = false, mixed_node = false;
  DType dtype = DType::kFloat32;
  DType node_dtype = DType::kFloat32;  ///< Of the node that takes its gradient.
  StreamIndex node_stream = 0;
  std::int8_t grad_dtype = -1;
  MemorySpace space = MemorySpace::kDevice;
  std::uint16_t same_object = 0, same_storage = 0;  ///< First tensor of the list that shares it.
  std::uint32_t refs = 0, storage_refs = 0;         ///< Counted for gradients only.
  Shape shape;
  std::array<std::int64_t, kMaxRank> stride{};
  bool operator==(const TensorForm&) const = default;
};

/// What has to be equal for a template to fit.
struct TemplateKey {
  Phase phase = Phase::kOther;
  StreamIndex stream = 0;
  bool grad_enabled = false;
  std::vector<TensorForm> tensors;
  bool operator==(const TemplateKey&) const = default;
};

/// What the id of a template's instruction counts from, in Instruction::reserved: the size that a
/// table had where the range began, or the first buffer of range r for kFirstBuffers + r. Ranges
/// are numbered through: those of the forward, then those of the backward.
enum IdBase : std::uint16_t {
  kNoBase,
  kLaunchBase,
  kCopyBase,
  kHostWorkBase,
  kMarkBase,
  kFirstBuffers,
};

/// Instructions written without a break, with the entries of the program's tables that they made.
struct TemplateRange {
  std::vector<Instruction> instructions;
  std::vector<Buffer> buffers;
  std::vector<Launch> launches;
  std::vector<Copy> copies;
  std::vector<HostWork> host_work;
  std::vector<Mark> marks;
};

/// Buffer `number` of range `range`.
struct TemplateBuffer {
  std::uint16_t range = 0;
  std::uint32_t number = 0;
  bool operator==(const TemplateBuffer&) const = default;
};

/// What a hook inside a block sees of a tensor.
enum class SeenTensor : std::uint8_t { kNone, kPlain, kTakesGradient };

/// A module hook inside a block, which runs for every copy.
struct InnerHook {
  enum class Kind : std::uint8_t { kPreForward, kPostForward } kind = Kind::kPreForward;
  ModuleId module;
  std::vector<SeenTensor> inputs, outputs;
};

/// A tensor that leaves the template.
struct TemplateTensor {
  enum class Storage : std::uint8_t {
    kNone,         ///< No tensor.
    kOwn,          ///< `buffer`.
    kGiven,        ///< That of given tensor `number` (forward: input; backward: gradient).
    kGivenObject,  ///< Forward: input `number` itself.
  } storage = Storage::kNone;
  TemplateBuffer buffer;
  std::uint32_t number = 0;
  DType dtype = DType::kFloat32;
  bool has_base = false;       ///< A view that keeps its base.
  bool requires_grad = false;  ///< Forward: result of the block's graph, output `output_nr`.
  std::uint16_t output_nr = 0;
  Shape shape;
  std::array<std::int64_t, kMaxRank> stride{};
  std::int64_t offset = 0;
};

struct BackwardTemplate {
  TemplateKey key;  ///< Gradients, then parameters and buffers.
  ModuleId recorded;
  struct Step {
    enum class Kind : std::uint8_t {
      kIssue,            ///< Instructions [begin, end) of range `index`.
      kLeaf,             ///< AccumulateGrad behind edge `index` takes `gradient`.
      kExit,             ///< `gradient` goes along edge `index` to a node of another stream.
      kReleaseGradient,  ///< Gradient `index` is dropped.
      kReleaseSaved,     ///< Saved tensor `index` is dropped.
      kFunction,  ///< Function `index` that hooks of the forward applied calls its framework.
    } kind = Kind::kIssue;
    std::uint32_t index = 0, begin = 0, end = 0;
    TemplateTensor gradient;
    ScopeId scope;  ///< Of a function.
  };
  std::vector<TemplateRange> ranges;
  std::vector<Step> steps;
  std::size_t functions = 0;            ///< That hooks of the forward applied.
  std::vector<TemplateTensor> results;  ///< By edge; none for leaves and exits.
  std::vector<bool> exits;              ///< By edge.
};

struct ForwardTemplate {
  TemplateKey key;  ///< Inputs, then parameters and buffers.
  ModuleId recorded;
  std::vector<TemplateRange> ranges;
  std::vector<InnerHook> hooks;  ///< Number i stands between ranges i and i + 1.
  std::vector<TemplateTensor> outputs;
  std::vector<TemplateBuffer> alive;  ///< Own buffers that wait for backward.

  /// The graph seen from outside, as one node.
  bool has_graph = false;
  std::uint16_t gradients_in = 1;
  bool mixed_dtypes = false;
  DType dtype = DType::kFloat32;
  ScopeId scope;
  std::uint64_t sequences = 0, entry = 0;  ///< Nodes made; which of them outputs belong to.
  struct Edge {
    std::uint32_t tensor = 0;  ///< Index into key.tensors: whose gradient it carries.
    bool leaf = false;
    ScopeId scope;  ///< Where AccumulateGrad is made.
    bool operator==(const Edge&) const = default;
  };
  std::vector<Edge> edges;
  struct Saved {
    bool output = false;
    std::uint32_t index = 0;
  };
  std::vector<Saved> saved;  ///< Inputs and outputs that the graph holds.
  std::uint32_t nodes = 0;
  std::vector<std::unique_ptr<BackwardTemplate>> backwards;
};

/// Blocks of equal structure.
struct BlockClass {
  /// These two run for real each time: the backward of the last one is the template of the others',
  /// and what all of them share is dropped in that of the first.
  ModuleId first, last;
  std::uint32_t modules = 0;  ///< Of one block: numbers [block, block + modules).
  bool usable = true;
  std::vector<std::unique_ptr<ForwardTemplate>> templates;
};

class ForwardRecorder;
class BackwardRecorder;

class BlockTemplates {
 public:
  explicit BlockTemplates(HostImpl& impl);
  ~BlockTemplates();

  /// The forward of block `m` inside its hooks, from a template if there is one that fits.
  void call(ModuleId m, std::span<SymTensor> inputs, std::span<SymTensor> outputs);

  // ------------------------------------------------------------------ for hooks of modules
  /// Around a hook of module `m`.
  void before_hook(InnerHook::Kind kind, ModuleId m, std::span<const SymTensor> inputs,
                   std::span<const SymTensor> outputs) {
    if (forward_recorder_ != nullptr) record_hook(kind, m, inputs, outputs);
  }
  void after_hook() {
    if (forward_recorder_ != nullptr) record_after_hook();
  }
  /// A hook applies a function, whose node would be number `sequence`. True: the block is a copy,
  /// whose one node calls the function.
  bool takes_function(std::uint64_t sequence, std::uint32_t payload);
  /// Around the framework's part of such a function's backward.
  void before_function(const AutogradNode& n) {
    if (recorder_) record_function(n);
  }
  void after_function(const AutogradNode& n) {
    if (recorder_) record_after_function(n);
  }

  // ------------------------------------------------------------------ for the engine
  /// A node that outputs of a block belong to is about to run; `gradients` have arrived.
  void enter_backward(AutogradNode& node, std::span<const SymTensor> gradients);
  /// Node `n` is next; it may end the recording, or interrupt it.
  void before(AutogradNode& n) {
    if (recorder_) record_before(n);
  }
  void after(const AutogradNode& n) {
    if (recorder_) record_after(n);
  }
  void end_backward();
  /// Around the hand-over of gradient `g` of node `n` to node `next`.
  void before_edge(const AutogradNode& n, const AutogradNode& next, int input, const SymTensor& g) {
    if (recorder_) record_edge(n, next, input, g);
  }
  void after_edge(const AutogradNode& n, const AutogradNode& next) {
    if (recorder_) record_after_edge(n, next);
  }

  /// At the end of a plan: BlocksDiffer if a copied block never ran backward (nothing of it reaches
  /// the loss), since what its graph holds is given back by its backward alone.
  void finish() const {
    if (waiting_ > 0) throw BlocksDiffer();
  }

  /// Calls of blocks that were copied.
  std::size_t copies() const { return copies_; }

 private:
  friend class BackwardRecorder;
  struct Block {
    std::int32_t block_class = -1;
    bool hooks_inside = false;
    std::vector<ParameterId> parameters;
    std::vector<std::pair<ModuleId, std::int64_t>> buffers;
  };
  /// A call of a block: run for real with its graph, or copied.
  struct Instance {
    ForwardTemplate* forward = nullptr;
    ModuleId module;
    std::vector<std::uint32_t> first_buffers;  ///< Of each range of the forward.
    /// What hooks inside it applied, in order: numbers of the nodes, of a copy the payloads.
    std::vector<std::uint64_t> functions;
    // Of one that ran for real.
    std::uint64_t first_sequence = 0;
    std::vector<AutogradNode*> targets;        ///< Behind each edge ...
    std::vector<std::uint16_t> inputs;         ///< ... and which of their gradients it carries.
    std::vector<std::uint32_t> saved_buffers;  ///< Beside ForwardTemplate::saved.
  };

  // block_classes.cc
  void find_classes();
  bool describe_block(ModuleId m, std::uint32_t& modules, Block& block) const;
  bool equal_blocks(ModuleId a, const Block& of_a, ModuleId b, const Block& of_b,
                    std::uint32_t modules) const;

  // block_record.cc
  /// Of a call that begins now; valid until the next.
  const TemplateKey& key_of(const Block& block, std::span<const SymTensor> given, bool count_refs);
  void run_inside(ForwardRecorder& recorder, ModuleId m, std::span<SymTensor> inputs,
                  std::span<SymTensor> outputs);
  void record_hook(InnerHook::Kind kind, ModuleId m, std::span<const SymTensor> inputs,
                   std::span<const SymTensor> outputs);
  void record_after_hook();
  void record_forward(BlockClass& c, ModuleId m, std::span<SymTensor> inputs,
                      std::span<SymTensor> outputs);
  void run_source(ForwardTemplate& t, ModuleId m, std::span<SymTensor> inputs,
                  std::span<SymTensor> outputs);
  void record_before(AutogradNode& n);
  void record_after(const AutogradNode& n);
  void record_edge(const AutogradNode& n, const AutogradNode& next, int input, const SymTensor& g);
  void record_after_edge(const AutogradNode& n, const AutogradNode& next);
  void record_function(const AutogradNode& n);
  void record_after_function(const AutogradNode& n);

  // block_replay.cc
  void replay_forward(ForwardTemplate& t, ModuleId m, std::span<SymTensor> inputs,
                      std::span<SymTensor> outputs);
  static void replay_backward(BackwardContext& ctx);
  const BackwardTemplate& template_of(BackwardContext& ctx, const Instance& copy);
  void replay(BackwardContext& ctx);
  Ref<AutogradNode> graph_node(const ForwardTemplate& t, ModuleId m,
                               std::span<const SymTensor> inputs);
  void run_leaf(AutogradNode& node, int edge, SymTensor&& gradient);
  void run_hook(const InnerHook& hook, ModuleId from, ModuleId to);
  const SymTensor& stand_in(SeenTensor seen);
  /// Scope inside block `from` as that of block `to`.
  ScopeId moved(ScopeId s, ModuleId from, ModuleId to) const;
  void append(const TemplateRange& range, ModuleId from, ModuleId to);
  void issue(const TemplateRange& range, std::uint32_t begin, std::uint32_t end,
             std::span<std::uint32_t> bases);
  SymTensor make(const TemplateTensor& t, const SymTensor& given,
                 std::span<const std::uint32_t> bases);

  HostImpl& impl_;
  bool classes_known_ = false;
  bool inside_ = false;               ///< A block of a class runs for real.
  Instance* running_ = nullptr;       ///< The call whose forward runs or is copied.
  bool copying_ = false;              ///< ... is copied.
  SymTensor plain_, takes_gradient_;  ///< What hooks inside a copy see of tensors.
  TemplateKey key_;                   ///< Of the call that begins.
  std::vector<std::uint32_t> bases_;  ///< By IdBase, of the call that is copied.
  std::vector<Block> blocks_;         ///< By module.
  std::vector<BlockClass> classes_;
  std::vector<Instance> instances_;
  ForwardRecorder* forward_recorder_ = nullptr;
  std::unique_ptr<BackwardRecorder> recorder_;
  std::size_t copies_ = 0;
  std::size_t waiting_ = 0;  ///< Copies whose graph waits for its backward.
};

}  // namespace foreshard
