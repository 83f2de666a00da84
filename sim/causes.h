#pragma once

#include <algorithm>

#include "sim/analysis.h"

namespace foreshard::sim {

/// One piece of a chain of causes.
struct CausePiece {
  enum class Kind : std::uint8_t { kOperation, kHost, kAllocator, kUnknown } kind = Kind::kUnknown;
  std::uint32_t rank_class = 0;
  std::uint32_t op = 0;  ///< kOperation: index into the rank's records.
  std::uint32_t instruction = UINT32_MAX;
  std::int64_t start = 0, end = 0;
};

/// Walks back in time from `end`, where `cause` ended, to `start`: which operation or host stretch
/// had to end for the next to begin. Calls `visit` for each piece, latest first; the pieces cover
/// [start, end] without gaps.
template <typename Visit>
void walk_back(const EngineOutput& output, std::int64_t start, std::int64_t end, Cause cause,
               Visit&& visit) {
  using Kind = CausePiece::Kind;
  std::int64_t now = end;
  const auto piece = [&](Kind kind, std::int64_t from, std::uint32_t op,
                         std::uint32_t instruction) {
    from = std::max(from, start);
    if (from < now) visit(CausePiece{kind, cause.rank_class, op, instruction, from, now});
    now = std::min(now, from);
  };
  while (now > start) {
    const RankRecord& rank = output.ranks[cause.rank_class];
    if (cause.op == Cause::kUnknown) {
      piece(Kind::kUnknown, start, 0, UINT32_MAX);
    } else if (cause.op == Cause::kHost) {
      auto block = std::upper_bound(rank.blocks.begin(), rank.blocks.end(), now,
                                    [](std::int64_t t, const HostBlock& b) { return t < b.end; });
      if (block == rank.blocks.begin()) {
        piece(Kind::kHost, start, 0, UINT32_MAX);
        continue;
      }
      --block;
      piece(Kind::kHost, block->end, 0, UINT32_MAX);
      if (now <= start) return;
      if (block->kind == HostBlock::Kind::kAllocator) {
        piece(Kind::kAllocator, block->start, 0, block->instruction);
      } else if (block->cause.op == Cause::kHost) {
        piece(Kind::kHost, block->start, 0, block->instruction);
      } else {
        cause = block->cause;
      }
    } else {
      const OpRecord& op = rank.ops[cause.op];
      if (op.end < now) piece(Kind::kUnknown, op.end, 0, UINT32_MAX);
      const std::uint32_t index = cause.op;
      piece(Kind::kOperation, op.start, index, op.instruction);
      cause = op.cause;
    }
  }
}

}  // namespace foreshard::sim
