#pragma once

// What torch.compile saves of one compiled block between forward and backward: the choice of
// min_cut_rematerialization_partition (torch/_functorch/partitioners.py of PyTorch 2.15, Inductor's
// default) over the values of the block's forward.

#include <cstdint>
#include <vector>

namespace foreshard {

/// A tensor of the block's forward: an argument, or what one kernel leaves.
struct JointValue {
  std::int64_t bytes = 0;
  std::int64_t read_bytes = 0;  ///< Of the arguments of the kernel that makes it.
  bool argument = false;        ///< Of the block; it cannot be made again.
  bool free_to_save = false;    ///< It lives anyway: a parameter.
  bool generated = false;       ///< A generated kernel makes it: it may be fused with its readers.
  bool concatenation = false;   ///< Any value may be fused into it, it into none.
  bool may_run_again = false;   ///< By the kind of kernel that makes it.
  bool output = false;          ///< Read by others than the block's forward and backward.
  bool read_backward = false;   ///< By the block's backward,
  bool read_whole = false;      ///< ... there by a kernel that is not generated.
  std::vector<std::uint32_t> readers;  ///< Values of the forward that are made of it; later ones.

  bool operator==(const JointValue&) const = default;
};

/// Values in the order of the forward. A value is fused with what it is read by.
using JointGraph = std::vector<JointValue>;

/// For each value whether it is kept for backward; the others that backward reads are made again
/// from those. Not applied: the limit of 100 kernels on chains that could be fused into one.
std::vector<bool> saved_values(const JointGraph& graph);

}  // namespace foreshard
