#pragma once

// A model as eager PyTorch sees it: a tree of modules, each with parameters, buffers and a
// straight-line forward program. The planner's symbolic host runs these programs statement by
// statement, as Python would; importers and graph files build them. docs/formats/model.md describes
// the file form.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/ids.h"
#include "core/units.h"

namespace foreshard {

using ModuleId = Id<struct ModuleTag>;
using ParameterId = Id<struct ParameterTag>;
/// A named value inside one module's forward program: index into Module::value_names.
using ValueSlot = std::int32_t;

// Functions that a forward program may call: one row per `F.*` / tensor method that the importers
// need.
//   X(enumerator, "text name")  -- meaning of ints / floats / parameters is given with the recipes
//   in schedules/planner/recipes.
#define FORESHARD_FUNCTIONS(X)                                                                     \
  X(kCall, "call")     /* child module; Statement::child */                                        \
  X(kLinear, "linear") /* x[, weight[, bias]]; parameters where the weight is no input: weight     \
                          [out, in], bias? */                                                      \
  X(kLinear4Bit,                                                                                   \
    "linear_4bit") /* x; ints: out, in; parameters: packed NF4 weight, bias?; see below */         \
  X(kConv1D, "conv1d_linear") /* x; parameters: weight [in, out], bias (GPT-2's Conv1D: addmm) */  \
  X(kEmbedding, "embedding")  /* indices; parameters: weight */                                    \
  X(kLayerNorm, "layer_norm") /* x; parameters: weight?, bias?; floats: eps */                     \
  X(kRmsNorm, "rms_norm")     /* fused; x; parameters: weight; floats: eps */                      \
  X(kAttention, "attention")  /* q, k, v (any strides, [b, heads, s, d]), mask?; ints: causal,     \
                                 window?; floats: dropout, scale */                                \
  X(kPackedAttention,                                                                              \
    "packed_attention") /* q, k, v as [b, s, heads*d]; ints: heads, kv_heads, causal */            \
  X(kAdd, "add")                                                                                   \
  X(kSub, "sub")                                                                                   \
  X(kMul, "mul")                                                                                   \
  X(kDiv, "div")                                                                                   \
  X(kNeg, "neg")                                                                                   \
  X(kAddScalar, "add_scalar") /* floats: value */                                                  \
  X(kMulScalar, "mul_scalar") /* x[, the value as a tensor on the device, saved]; floats: value */ \
  X(kPowScalar, "pow")        /* floats: exponent */                                               \
  X(kMeanLast, "mean")        /* over the last dimension, kept; */                                 \
  X(kSumDim, "sum")           /* ints: dim, keep */                                                \
  X(kRsqrt, "rsqrt")                                                                               \
  X(kSilu, "silu")                                                                                 \
  X(kGelu, "gelu") /* ints: 1 = tanh approximation */                                              \
  X(kRelu, "relu")                                                                                 \
  X(kSigmoid, "sigmoid")                                                                           \
  X(kTanh, "tanh")                                                                                 \
  X(kSoftmax, "softmax")     /* over the last dimension; dtype: compute dtype */                   \
  X(kDropout, "dropout")     /* floats: p */                                                       \
  X(kMatmul, "matmul")       /* batched product of two values; ints: see below */                  \
  X(kCast, "cast")           /* dtype; no-op where equal; see below */                             \
  X(kDtypeOf, "dtype_of")    /* x -> its dtype alone, for cast; holds no memory */                 \
  X(kView, "view")           /* ints: shape, -1 once; never copies (error if it must) */           \
  X(kReshape, "reshape")     /* ints: shape; copies where it must */                               \
  X(kTranspose, "transpose") /* ints: dim a, dim b */                                              \
  X(kContiguous, "contiguous")                                                                     \
  X(kClone, "clone")                                                                               \
  X(kExpand, "expand")       /* ints: shape, -1 keeps */                                           \
  X(kUnsqueeze, "unsqueeze") /* ints: dim */                                                       \
  X(kSlice, "slice")         /* ints: dim, start, end (-1 = to the end) */                         \
  X(kSplit, "split")         /* ints: dim, sizes...; as many outputs */                            \
  X(kChunk, "chunk")         /* ints: dim, parts */                                                \
  X(kCat, "cat")             /* ints: dim */                                                       \
  X(kDetach, "detach")                                                                             \
  X(kAddParameter, "add_param") /* x + sum(parameter) of this module */                            \
  X(kParameter, "parameter")    /* the parameter itself as a value */                              \
  X(kBuffer, "buffer")          /* a buffer as a value; ints: index into Module::buffers */        \
  X(kAddBuffer, "add_buffer")                                                                      \
  X(kRotaryTable,                                                                                  \
    "rotary_table")    /* x [b, s, .], positions? -> cos, sin in x's dtype; ints: width */         \
  X(kArange, "arange") /* ints: length; or of an input x [., s]: positions [1, s] */               \
  X(kPositionIds,                                                                                  \
    "position_ids")      /* x [b, s, .] -> arange(s) + 0 as [1, s], as decoders make them */       \
  X(kExperts, "experts") /* every expert on every token, parameters w1, w2, w3 [E, ., .] */        \
  X(kFusedLinearCrossEntropy, "fused_linear_cross_entropy") /* x [.., h], targets -> mean loss;    \
                                                               parameters: weight [classes, h] */  \
  X(kRoutedExperts, "routed_experts") /* x, weights, indices; ints: experts, top_k; parameters */  \
  X(kTopK, "topk")                    /* ints: k; outputs values, indices */                       \
  X(kConv2d, "conv2d")      /* ints: stride, padding; parameters: weight, bias?; see below */      \
  X(kRepeatKv, "repeat_kv") /* expand + reshape copy; ints: repeats */                             \
  /* Needed by the Hugging Face families; conventions below. */                                    \
  X(kSelect, "select")          /* one index of a dimension, which disappears; ints: dim, index */ \
  X(kCausalMask, "causal_mask") /* x [b, s, .], positions? -> [b, 1, s, s]; ints: window, always,  \
                                   sliding; dtype; see below */                                    \
  X(kGather, "gather")          /* x, index; ints: dim */                                          \
  X(kIndex, "index")            /* x[index] over the first dimension; saves the index */           \
  X(kClamp, "clamp")            /* floats: low, high; saves x */                                   \
  X(kExp, "exp")                                                                                   \
  X(kSoftplus, "softplus")                                                                         \
  X(kVectorNorm,                                                                                   \
    "vector_norm")       /* over the last dimension, kept; floats: p; saves x and the result */    \
  X(kDivInPlace, "div_") /* x /= y; outputs x again; saves as div does */                          \
  X(kMaskedFill,                                                                                   \
    "masked_fill") /* x, mask; floats: value where the mask is true; saves the mask */             \
  X(kMaskedScatter, "masked_scatter") /* x, token ids, rows; ints: token whose places take the     \
                                         rows; saves the boolean mask */                           \
  X(kAvgPool2d, "avg_pool2d")         /* ints: kernel = stride; saves x */                         \
  X(kConv1dDepthwise,                                                                              \
    "conv1d_depthwise") /* x [b, c, s][, weight]; parameters: weight [c, 1, k]; ints: padding */   \
  X(kLoopedExperts, "looped_experts") /* x [T, h], weights, indices; parameters w1, v1, w2 [E * f, \
                                         h]; ints: experts, top_k, activation */                   \
  X(kViewLike, "view_like")           /* x viewed with y's shape */                                \
  X(kSliceLike, "slice_like")   /* x cut to y's size along a dimension; ints: dim of x and y */    \
  X(kExpandLike, "expand_like") /* x expanded to y's size along a dimension; ints: dim */          \
  X(kJitter, "jitter") /* x *= uniform noise of x's shape, in place; outputs x; floats: width;     \
                          saves the noise */                                                       \
  X(kAssign, "assign") /* outputs are the inputs: Python's a, b = c, d; no tensor work */          \
  X(kRelativeBuckets, "relative_buckets") /* x [b, s, .] -> bucket of each distance [s, s], int64; \
                                             ints: bidirectional, buckets, distance */             \
  X(kPositionMask, "position_mask")       /* bias [1, h, s, t] -> additive mask, contiguous; ints: \
                                             causal; saves the causal mask */                      \
  X(kZeroBias, "zero_bias") /* x [b, s, .], y [b, t, .] -> zeros [1, heads, s, t]; ints: heads */  \
  X(kPad, "pad")            /* zeros after the end; ints: dim, count */                            \
  X(kTileMask, "tile_mask") /* tiles seen [b, t], x: its dtype -> additive [b, 1, t n, t n]; ints: \
                               patches, n (padded) */                                              \
  X(kCrossMask, "cross_mask") /* tiles seen [b, s, 1, t], x: its dtype -> additive [b, 1, s, t n], \
                                 rows that see any [b, 1, s, 1]; ints: n */                        \
  X(kAxialRotaryTable, "axial_rotary_table") /* x [n, .] -> cos, sin [n, width] in fp32, rows and  \
                                                columns half each; ints: width */                  \
  X(kWindowOrder, "window_order") /* x [n, .]: groups of `unit` rows in the order of windows;      \
                                     ints: unit; saves the index */                                \
  X(kWindowedAttention,                                                                            \
    "windowed_attention") /* q, k, v [1, h, n, d] -> [1, n, h, d]; ints: lengths, repeated up to   \
                             n; floats: dropout, scale */                                          \
  X(kGatedDeltaRule, "gated_delta_rule") /* q, k [b, s, h, d], v, decay [b, s, h'], beta:          \
                                            Qwen3-Next's chunked fallback; ints: chunk */

// Conventions of the functions above.
//   view, reshape: 0 keeps the input's size of that dimension, -1 (once) is what remains. Negative
//   dims count from the
//     end everywhere. slice: ints dim, start, end (-1 = to the end), step (1 if absent).
//   A value may be absent (Python's None): causal_mask makes none where SDPA needs none, attention
//   takes it as no mask. causal_mask: window 0 = plain causal. dtype bool (SDPA): absent unless
//   `always` is 1, rows are packed or 0 < window <= s
//     (`sliding` 1: a sliding mask even with window 0, which is always made). Any other dtype
//     (eager attention): always made, additive, in x's dtype. With positions the library also looks
//     for packed rows.
//   attention: flash where there is no mask, q, k and v have equal head sizes up to 256, in 16 bit;
//   kv heads stay
//     grouped and the output has q's strides. Else memory-efficient: k and v are repeated to q's
//     heads first, a boolean mask becomes an additive one in q's dtype (saved, last dimension
//     padded to a multiple of 8), the output is laid out [b, s, heads, d]. ints[0]: causal (ignored
//     with a mask); ints[1]: keys that a query sees, for kernels that are told so in place of a
//     mask (flash-attn's own). floats: dropout, scale.
//   routed_experts (grouped_mm of the library): inputs x [T, h], weights [T, k], indices [T, k];
//   parameters gate_up
//     [E, 2 f, h], down [E, h, f]; ints: experts, top_k, activation (Activation below).
//   conv2d: a weight of rank 5 [o, c, t, r, s] takes x [n, c, t, h, w] whole in t (a patch
//   embedding of video). linear_4bit (bitsandbytes MatMul4Bit): the weight is made anew in x's
//   dtype for each product, forward and backward;
//     the module's first buffer holds the scales, in 8 bits where they are quantised themselves.
//   looped_experts: every expert is given tokens * top_k / experts tokens, whatever the indices
//   say. cast: dtype is that of the result; with a second input, that value's dtype instead; with a
//   parameter, the dtype that it has at that moment (sharded: its own; gathered: that of compute).
//   ints[0] 1: not under autocast.
//   matmul of a causal attention: ints[0] 1 for scores, 2 for values; ints[1]: keys that a query
//   sees (0: all before it). softmax: dtype of the result (a
//     16-bit input is converted inside the kernel), or with ints[0] = 1 the input's own. dropout: p
//     0 hands x on.
//   add, mul, div and so on promote as PyTorch does (bfloat16 * float32 -> float32) and broadcast.
//   A value whose name starts with '%' is a temporary: its reference goes with its last use. Other
//   values are Python
//     locals: they live until the module returns or the name is assigned again.

/// Activation codes in ints of experts.
enum class Activation : std::uint8_t {
  kSilu,
  kGelu,
  kGeluTanh,
  kRelu,
  kQuickGelu,
  kGeluNew,
  kTanh,
  kSigmoid,
  kGeluFast
};

enum class Function : std::uint8_t {
#define FORESHARD_X(enumerator, text) enumerator,
  FORESHARD_FUNCTIONS(FORESHARD_X)
#undef FORESHARD_X
};
std::string_view name_of(Function f);
std::optional<Function> parse_function(std::string_view text);

/// One line of a forward program: outputs = function(inputs).
struct Statement {
  Function function = Function::kCall;
  std::vector<ValueSlot> inputs, outputs;
  ModuleId child;  ///< kCall.
  /// Of the module that runs the statement, in the function's order; of a child where only its
  /// dtype is asked for.
  std::vector<ParameterId> parameters;
  std::vector<std::int64_t> ints;
  std::vector<double> floats;
  DType dtype = DType::kFloat32;
  bool no_grad = false;  ///< Runs under torch.no_grad().
};

struct ParameterDef {
  std::string name;  ///< Fully qualified name of its first occurrence.
  std::vector<std::int64_t> shape;
  DType dtype = DType::kFloat32;
  bool trainable = true;
  bool keeps_dtype =
      false;  ///< Whatever the model is loaded in (adapters that PEFT casts to fp32).
  std::int64_t packs =
      1;  ///< Values that one element holds (4: four-bit values in 16-bit storage).
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (const std::int64_t d : shape) n *= d;
    return n;
  }
};

struct BufferDef {
  std::string name;  ///< Local name.
  std::vector<std::int64_t> shape;
  DType dtype = DType::kFloat32;
  bool persistent = false;
  bool follows_model = false;  ///< Made in the model's dtype, as its parameters are.
};

struct OwnedParameter {
  std::string name;  ///< Local name ("weight").
  ParameterId id;    ///< Two owners of one id are tied.
};

struct ChildModule {
  std::string name;
  ModuleId id;  ///< Two names of one id are one module object (alias).
};

struct Module {
  std::string name;        ///< Fully qualified name of its first occurrence; "" is the root.
  std::string class_name;  ///< "Linear", "LlamaDecoderLayer", ...
  std::vector<OwnedParameter> parameters;  ///< In registration order.
  std::vector<BufferDef> buffers;
  std::vector<ChildModule> children;  ///< In registration order.
  bool has_forward = true;            ///< False for plain lists of modules.
  std::vector<std::string> value_names;
  std::vector<ValueSlot> inputs, outputs;
  std::vector<Statement> program;
};

/// A root argument.
struct ModelArgument {
  std::string name;
  bool tokens = true;  ///< int64 indices below `vocabulary`; otherwise floating.
  /// Empty: [micro-batch, sequence] chosen when planning; -n: n times the micro-batch; 0: the
  /// sequence.
  std::vector<std::int64_t> shape;
  std::int64_t vocabulary = 0;
  DType dtype = DType::kInt64;
  bool requires_grad = false;
};

/// Roles that frameworks' users name when they wrap: which modules are blocks, embeddings, head.
struct ModelRoles {
  std::vector<ModuleId> blocks;  ///< Repeated transformer blocks, in order, over all towers.
  std::vector<ModuleId> embeddings;
  std::vector<ModuleId> tail;  ///< Final norm and head.
  /// Further modules that libraries wrap as units of their own beside the blocks (BertEmbeddings,
  /// ViTEmbeddings, ...).
  std::vector<ModuleId> extra_units;
};

struct Model {
  std::string name;             ///< For people.
  std::string architecture;     ///< "LlamaForCausalLM", ...
  std::vector<Module> modules;  ///< modules[0] is the root.
  std::vector<ParameterDef> parameters;
  std::vector<ModelArgument> arguments;
  ModelRoles roles;
  std::optional<DType> stated_dtype;  ///< What the file says the weights are kept in.
  std::int64_t longest_sequence = 0;  ///< Learned positions allow no more tokens; 0: no such limit.
  std::int64_t shortest_sequence = 0;  ///< Places that a sample's images take among its tokens.
  std::string sample;  ///< What a sample is beside its tokens, or instead: "1 image of 224 x 224".
  /// Labels among which a classifier of whole samples chooses one; 0: a token for each position.
  std::int64_t classes = 0;
  std::vector<std::string> not_modelled;

  const Module& root() const { return modules[0]; }
  Module& at(ModuleId id) { return modules[id.value]; }
  const Module& at(ModuleId id) const { return modules[id.value]; }
  const ParameterDef& at(ParameterId id) const { return parameters[id.value]; }
  /// As loaded in this dtype: packed parameters and those that keep theirs are left.
  void set_dtype(DType dtype);
  /// module.to(dtype): every parameter that is not packed.
  void cast(DType dtype);
  /// Its first argument is tokens, as many as the job's sequence has. Tokens of a shape of their own
  /// (a text tower's 77) are a sample's, as pixels are.
  bool takes_sequences() const;
  /// Tied parameters once; packed values counted singly.
  Elements parameter_count() const;
  Elements trainable_count() const;
  /// By fully qualified name, following aliases; invalid id if there is none.
  ModuleId find_module(std::string_view path) const;
};

/// Builds a Model module by module; the only place that assigns ids and fully qualified names.
class ModelBuilder {
 public:
  explicit ModelBuilder(std::string root_class);

  ModuleId root() const { return ModuleId(0); }
  ModuleId add_module(ModuleId parent, const std::string& name, const std::string& class_name);
  /// A second name of an existing module object.
  void add_alias(ModuleId parent, const std::string& name, ModuleId target);
  ParameterId add_parameter(ModuleId owner, const std::string& name,
                            std::vector<std::int64_t> shape, DType dtype = DType::kFloat32,
                            bool trainable = true);
  /// `owner.name` becomes the same object as `source`; replaces an existing parameter of that name.
  void tie_parameter(ModuleId owner, const std::string& name, ParameterId source);
  /// Slot of a named value in the module's program; made on first use.
  ValueSlot value(ModuleId module, const std::string& name);
  void set_signature(ModuleId module, const std::vector<std::string>& inputs,
                     const std::vector<std::string>& outputs);
  Statement& add_statement(ModuleId module, Function f, const std::vector<std::string>& inputs,
                           const std::vector<std::string>& outputs);
  void call(ModuleId module, ModuleId child, const std::vector<std::string>& inputs,
            const std::vector<std::string>& outputs);

  /// Leaf modules with the parameters and program of torch.nn's; input "x", output "y".
  ModuleId linear(ModuleId parent, const std::string& name, std::int64_t in, std::int64_t out,
                  bool bias);
  ModuleId embedding(ModuleId parent, const std::string& name, std::int64_t rows, std::int64_t dim);
  ModuleId layer_norm(ModuleId parent, const std::string& name, std::int64_t dim, bool bias,
                      double eps);
  ModuleId rms_norm(ModuleId parent, const std::string& name, std::int64_t dim,
                    double eps);  ///< Fused F.rms_norm.

  Model& model() { return model_; }
  /// Checks the whole (InternalError: unknown values, a call of itself, wrong arity) and hands it
  /// over.
  Model take();

 private:
  Model model_;
};

}  // namespace foreshard
