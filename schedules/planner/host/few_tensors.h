#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "schedules/planner/host/tensor.h"

namespace foreshard {

/// Tensors of one call, at first null: few need no memory of their own. Dropped last to first.
class FewTensors {
 public:
  explicit FewTensors(std::size_t n) : size_(n) {
    if (n > few_.size()) many_.resize(n);
  }
  ~FewTensors() {
    const std::span<SymTensor> tensors = all();
    for (std::size_t i = tensors.size(); i-- > 0;) tensors[i].reset();
  }
  FewTensors(const FewTensors&) = delete;
  FewTensors& operator=(const FewTensors&) = delete;

  std::span<SymTensor> all() {
    return many_.empty() ? std::span(few_.data(), size_) : std::span(many_);
  }

 private:
  std::size_t size_;
  std::array<SymTensor, 4> few_;
  std::vector<SymTensor> many_;
};

}  // namespace foreshard
