#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedules/schedule.h"

namespace foreshard {

/// To which compiled block a module belongs.
class BlockScopes {
 public:
  BlockScopes(const RankProgram& p, const std::vector<std::string>& blocks)
      : block_(p.scopes.size(), -1), is_block_(p.scopes.size()) {
    for (std::size_t s = 0; s < p.scopes.size(); ++s) {
      for (std::size_t b = 0; b < blocks.size(); ++b) {
        const std::string& name = p.scopes[s];
        is_block_[s] = is_block_[s] || name == blocks[b];
        if (name == blocks[b] || name.starts_with(blocks[b] + "."))
          block_[s] = static_cast<std::int32_t>(b);
      }
    }
  }

  /// -1: to none.
  std::int32_t of(ScopeId s) const { return s.valid() ? block_[s.value] : -1; }
  /// The module is a block itself.
  bool is_block(ScopeId s) const { return s.valid() && is_block_[s.value]; }

 private:
  std::vector<std::int32_t> block_;
  std::vector<bool> is_block_;
};

}  // namespace foreshard
