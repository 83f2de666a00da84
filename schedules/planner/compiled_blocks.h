#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "schedules/schedule.h"

namespace foreshard {

/// To which compiled block a module belongs.
class BlockScopes {
 public:
  BlockScopes(const RankProgram& p, const std::vector<std::string>& blocks)
      : block_(p.scopes.size(), -1), is_block_(p.scopes.size()) {
    std::unordered_map<std::string_view, std::int32_t> index;
    for (std::size_t b = 0; b < blocks.size(); ++b)
      index.emplace(blocks[b], static_cast<std::int32_t>(b));
    for (std::size_t s = 0; s < p.scopes.size(); ++s) {
      const std::string_view name = p.scopes[s];
      is_block_[s] = index.contains(name);
      // The innermost block around it: names of blocks end where a part of the path does.
      for (std::size_t end = name.size(); block_[s] < 0 && end != std::string_view::npos && end > 0;
           end = name.rfind('.', end - 1))
        if (const auto b = index.find(name.substr(0, end)); b != index.end()) block_[s] = b->second;
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
