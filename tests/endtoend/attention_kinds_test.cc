// All ways to compute attention are one function: the fused kernel with its causal flag, the same
// kernel with a mask, products with a bias (SDPA's own and transformers' eager form). A small causal
// model trains on one rank to the same losses and gradient norms under each.

#include "core/json.h"
#include "models/load_model.h"
#include "tests/toy_training.h"

namespace foreshard {
namespace {

constexpr std::int64_t kRowTokens = 12;

/// Mistral's decoder, whose masks the library makes; `window` 0: none.
Model decoder(std::int64_t window) {
  Json config = {{"model_type", "mistral"}, {"architectures", {"MistralForCausalLM"}},
                 {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                 {"hidden_size", 32},        {"intermediate_size", 48},
                 {"num_hidden_layers", 2},   {"vocab_size", 61}};
  config["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
  return model_from_json(config, "toy");
}

ParallelConfig one_rank(AttentionKind kind, bool packed = false) {
  ParallelConfig c;
  c.framework = FrameworkKind::kUnsharded;
  c.sequence = kRowTokens;
  c.micro_batch = 2;
  c.precision = MixedPrecision{};
  c.attention = kind;
  c.packed_sequences = packed;
  return c;
}

/// Loss and gradient norm of the first step, then of all steps.
struct Learnt {
  std::vector<double> first, all;
};

Learnt learnt(const Model& model, const ParallelConfig& config, std::int64_t steps = 3) {
  const Trace t = trained(model, config, steps);
  Learnt out{{t.losses.at(0), t.gradient_norms.at(0)}, t.losses};
  out.all.insert(out.all.end(), t.gradient_norms.begin(), t.gradient_norms.end());
  return out;
}

constexpr AttentionKind kWays[] = {AttentionKind::kFlash, AttentionKind::kSdpa,
                                   AttentionKind::kMath, AttentionKind::kEager};
/// Sums in another order, in fp32; and through steps of Adam, which looks at signs.
constexpr double kSumOrder = 1e-6, kThroughAdam = 1e-4;

void expect_one_function(const Model& model, const Learnt& expected, bool packed) {
  for (const AttentionKind kind : kWays) {
    SCOPED_TRACE(static_cast<int>(kind));
    const Learnt found = learnt(model, one_rank(kind, packed));
    expect_near(found.first, expected.first, kSumOrder, "first step");
    expect_near(found.all, expected.all, kThroughAdam, "all steps");
  }
}

// The reference is the fused kernel's causal flag: no mask tensor at all.
TEST(AttentionKinds, AreOneFunctionOfACausalModel) {
  const Model own_masks = decoder(0), plain = plain_llama(uneven_sizes(2));
  for (const Model* m : {&own_masks, &plain}) {
    SCOPED_TRACE(m->name);
    const auto expected = learnt(*m, one_rank(AttentionKind::kFlash));
    expect_one_function(*m, expected, false);
    // Rows of one document: the boolean mask says what the causal flag says.
    expect_one_function(*m, expected, true);
  }
}

// A window as long as the row is made into a mask that hides what the causal flag hides.
TEST(AttentionKinds, AWindowOverTheWholeRowIsCausal) {
  expect_one_function(decoder(kRowTokens), learnt(decoder(0), one_rank(AttentionKind::kFlash)),
                      false);
}

// Nothing before a row's last four tokens is seen: another function, the same for all.
TEST(AttentionKinds, AreOneFunctionUnderAShortWindow) {
  const Model near = decoder(4);
  const auto expected = learnt(near, one_rank(AttentionKind::kFlash)),
             causal = learnt(decoder(0), one_rank(AttentionKind::kFlash));
  EXPECT_GT(std::abs(expected.first[1] - causal.first[1]), 100 * kSumOrder * causal.first[1]);
  expect_one_function(near, expected, false);
  expect_one_function(near, expected, true);
}

// In 16 bits the fused kernel is flash-attention's (flash-attn's own functions hand it the window, so
// that no mask is made), eager products round their scores, and the mask holds the lowest number of
// the dtype: the differences are rounding of 8 (bf16) and 11 (fp16) bits.
TEST(AttentionKinds, AreOneFunctionInSixteenBits) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(name_of(dtype));
    for (const std::int64_t window : {std::int64_t{0}, std::int64_t{4}}) {
      Model m = decoder(window);
      m.set_dtype(dtype);
      const auto with = [&](AttentionKind kind) {
        ParallelConfig c = one_rank(kind);
        c.model_dtype = dtype;
        return learnt(m, c, 1).first;
      };
      const auto expected = with(AttentionKind::kFlashLibrary);
      const double rounding = dtype == DType::kBFloat16 ? 1.0 / 128 : 1.0 / 1024;
      for (const AttentionKind kind : kWays) {
        SCOPED_TRACE(static_cast<int>(kind));
        expect_near(with(kind), expected, 2 * rounding);
      }
    }
  }
}

}  // namespace
}  // namespace foreshard
