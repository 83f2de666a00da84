#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "exec/kernels/kernel_functions.h"
#include "exec/kernels/kernels.h"
#include "exec/kernels/rows.h"
#include "exec/parameters.h"
#include "exec/rank_context.h"

// Where values enter and leave the device: initial values, the data loader, and what the run
// reports.

namespace foreshard {
namespace kernels {
namespace {

/// Name for a tensor that is no parameter: that of the buffer. Only known through the launch's
/// operand.
std::vector<std::int64_t> shape_of(const TensorView& v) {
  return {v.shape.begin(), v.shape.begin() + v.rank};
}

std::string buffer_name(const KernelCall& c) {
  const RankProgram& p = *c.context->program;
  const Launch& launch = p.launches.at(p.instructions.at(c.origin.instruction).id);
  const TensorId id = p.operands.at(launch.first_operand + launch.inputs);
  return p.names.at(p.buffers.at(p.tensors.at(id.value).buffer.value).name);
}

}  // namespace

void initialize(const KernelCall& c) {
  const TensorView& y = output(c, 0);
  const Initializer& value_of = c.context->options->initialize;
  const std::int64_t index = integer_attribute(c, 0, -1);
  const auto& parameters = c.context->program->parameters;
  std::vector<float> values(static_cast<std::size_t>(y.numel()), 0.0f);
  if (index < 0) {
    const std::string name = buffer_name(c);
    const std::vector<std::int64_t> shape = shape_of(y);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(value_of(name, shape, static_cast<std::int64_t>(i)));
    }
  } else {
    if (index >= static_cast<std::int64_t>(parameters.size()))
      kernel_error(fmt::format("there is no parameter {}", index));
    const ParameterView& p = parameters[static_cast<std::size_t>(index)];
    std::int64_t whole = 1;
    for (const std::int64_t d : p.shape) whole *= d;
    const LocalElements local(*c.context, p);
    const bool all = y.numel() == whole;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto k = static_cast<std::int64_t>(i);
      if (!all && k >= local.count()) break;
      const std::int64_t global = all ? k : local.global_index(k);
      if (global < whole) values[i] = static_cast<float>(value_of(p.name, p.shape, global));
    }
  }
  from_floats(y, values.data());
}

void observe(const KernelCall& c) {
  const auto what = static_cast<Observations::What>(integer_attribute(c, 0, 0));
  if (c.origin.step < 0) return;
  c.context->observations->add(what, c.origin.step,
                               static_cast<double>(scalar_of(input(c, 0))) * c.attribute(1, 1));
}

}  // namespace kernels

void run_copy(const CopyCall& call) {
  try {
    if (!call.destination.present) return;
    if (call.source.present) return copy_elements(call.source, call.destination);
    if (call.input < 0) return;
    const ModelInput& input =
        call.context->program->inputs.at(static_cast<std::size_t>(call.input));
    const BatchPosition position{call.context->rank, call.context->schedule->world,
                                 call.origin.step, call.micro_batch};
    call.context->options->data(input, position, call.destination);
  } catch (const RunError& e) {
    throw RunError(fmt::format("rank {} instruction {} (copy): {}", call.origin.rank,
                               call.origin.instruction, e.what()));
  }
}

}  // namespace foreshard
