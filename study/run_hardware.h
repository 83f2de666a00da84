#pragma once

#include <string>
#include <vector>

#include "hwprofiles/profile.h"
#include "study/runs_table.h"

namespace foreshard {

/// Name of the box for `--on`, from what a row says of its GPUs and network; empty if the GPU is
/// not in the catalogue. What the row does not say goes to `assumptions`.
std::string hardware_of_run(const MeasuredRun& run, std::vector<std::string>& assumptions);

/// True if `text` ("NVIDIA A100-SXM4-80GB") is of another chip than `gpu`; empty text is of any.
bool names_other_gpu(const std::string& text, const GpuProfile& gpu);

/// Fewer GPUs on each of several nodes than the machine holds.
void apply_stated_nodes(const MeasuredRun& run, HardwareProfile& hardware);

/// What a row's words say of its machine beyond its type: GPUs held below their power limit
/// ("RTX3090 (280 W, ...", "power limited"), "slow PCIe lanes", "no P2P".
void apply_stated_machine(const MeasuredRun& run, HardwareProfile& hardware,
                          std::vector<std::string>& assumptions);

}  // namespace foreshard
