#include <cmath>
#include <cstdint>
#include <string>

#include "exec/kernels/rows.h"
#include "exec/run.h"

namespace foreshard {
namespace {

/// FNV-1a and a final mix: the same on every machine.
std::uint64_t hash_of(const std::string& text, std::uint64_t index) {
  std::uint64_t h = 1469598103934665603ull;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  h ^= index + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdull;
  h ^= h >> 33;
  h *= 0xc4ceb9fe1a85ec53ull;
  return h ^ (h >> 33);
}

bool ends_with(const std::string& text, const char* end) {
  const std::string e(end);
  return text.size() >= e.size() && text.compare(text.size() - e.size(), e.size(), e) == 0;
}

}  // namespace

// Vectors named *weight are taken for normalisation gains and start near one; other vectors
// (biases) near zero; matrices are uniform with the deviation 1/sqrt(fan in), fan in being the last
// dimension.
double default_initial_value(const std::string& name, const std::vector<std::int64_t>& shape,
                             std::int64_t index) {
  const double u =
      static_cast<double>(hash_of(name, static_cast<std::uint64_t>(index)) >> 11) * 0x1p-53 * 2 - 1;
  if (shape.size() <= 1) return (ends_with(name, "weight") ? 1.0 : 0.0) + 0.02 * u;
  return u * std::sqrt(3.0 / static_cast<double>(shape.back()));
}

// The row b of the whole batch is rank * rows + local row. Tokens: (37 b + 11 s + 17 step + 5 micro
// + b s) mod vocabulary at position s; targets are the tokens one position on. Floats: sin(0.3 b +
// 0.7 k + 0.11 step + 0.05 micro) with k counting the row's elements, targets cos(0.5 b + 0.9 k +
// ...). Positions count from 0 in each row.
void default_data(const ModelInput& input, const BatchPosition& at, const TensorView& out) {
  const std::int64_t rows = out.rank > 0 ? out.shape[0] : 1;
  if (rows == 0) return;
  const std::int64_t width = out.numel() / rows;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t b = at.rank * rows + r;
    for (std::int64_t k = 0; k < width; ++k) {
      const std::int64_t s = input.kind == InputKind::kTargets ? k + 1 : k;
      const double shift = 0.11 * at.step + 0.05 * at.micro_batch;
      const double row = static_cast<double>(b), column = static_cast<double>(k);
      switch (input.kind) {
        case InputKind::kTokens:
        case InputKind::kTargets: {
          const std::int64_t token = 37 * b + 11 * s + 17 * at.step + 5 * at.micro_batch + b * s;
          store_element(out, r * width + k,
                        static_cast<double>(token % std::max<std::int64_t>(input.vocabulary, 1)));
          break;
        }
        case InputKind::kPositions:
          store_element(out, r * width + k, column);
          break;
        case InputKind::kFloat:
          store_element(out, r * width + k, std::sin(0.3 * row + 0.7 * column + shift));
          break;
        case InputKind::kFloatTargets:
          store_element(out, r * width + k, std::cos(0.5 * row + 0.9 * column + shift));
          break;
      }
    }
  }
}

}  // namespace foreshard
