#include "conformance/numerics_check.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include <fmt/format.h>

#include "conformance/numerics_model.h"
#include "core/json.h"
#include "exec/run.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

/// How far a quantity may be from the recording, relative to its size; sums of a parameter relative
/// to its 1-norm bound sqrt(n * sum of squares).
struct Bounds {
  double loss, norm, parameters;
};

/// fp32: the goldens' stated agreement. bf16: one rounding is 2^-9 relative; losses and gradient
/// norms are results of products in bf16, so two roundings that fall apart between two correct
/// implementations (order of additions) move them by about one unit, 2^-8, on the path of each of
/// the few bf16 results that enter a mean. Parameters are fp32 and move by steps of the learning
/// rate, of which AdamW's sign-like update may differ where a gradient is near zero.
Bounds bounds_of(bool bf16) {
  return bf16 ? Bounds{0x1p-8, 0x1p-6, 0x1p-8} : Bounds{1e-5, 1e-5, 1e-4};
}

struct Init {
  double base, scale, a, b;
};

/// The recordings are of PyTorch's CPU kernels, whose layer norm keeps mean and rstd in the input's
/// dtype (on a GPU, and in our plans, they are fp32).
void round_layer_norm_statistics(Schedule& schedule) {
  for (RankProgram& p : schedule.programs) {
    for (const Launch& l : p.launches) {
      if (l.op != OpKind::kLayerNorm ||
          p.tensors[p.operands[l.first_operand].value].dtype == DType::kFloat32)
        continue;
      for (std::uint32_t k = 1; k < l.outputs; ++k) {
        const BufferId buffer = p.tensors[p.operands[l.first_operand + l.inputs + k].value].buffer;
        for (Tensor& t : p.tensors) {
          if (t.buffer == buffer) t.dtype = DType::kBFloat16;
        }
      }
    }
  }
}

class NumericsCase {
 public:
  explicit NumericsCase(const Json& golden) : golden_(golden), config_(golden.at("config")) {
    bf16_ = config_.at("precision") == "bf16";
    for (const Json& p : config_.at("parameters")) {
      const Json& i = p.at("init");
      inits_[p.at("fqn").get<std::string>()] = {i.at("base").get<double>(),
                                                i.at("scale").get<double>(),
                                                i.at("a").get<double>(), i.at("b").get<double>()};
    }
  }

  CheckResult check() {
    CheckResult result;
    result.id = config_.at("id").get<std::string>();
    Json predicted = Json::object();
    for (const auto& [name, expected] : golden_.at("runs").items()) {
      const RunResult run = train(world_of(name), name != "unsharded");
      predicted[name] = {{"loss", run.trace.losses}, {"grad_norm", run.trace.gradient_norms}};
      if (result.first_difference.empty()) result.first_difference = compare(name, expected, run);
    }
    result.ok = result.first_difference.empty();
    result.predicted = predicted.dump();
    return result;
  }

 private:
  /// "unsharded" is 1, "fsdp2_w4" is 4.
  static std::int64_t world_of(const std::string& run) {
    const std::size_t w = run.rfind("_w");
    return w == std::string::npos ? 1 : std::stoll(run.substr(w + 2));
  }

  ParallelConfig parallel(const Model& model, std::int64_t world, bool sharded) const {
    ParallelConfig c;
    c.framework = sharded ? FrameworkKind::kFsdp2 : FrameworkKind::kUnsharded;
    c.shard = world;
    c.micro_batch = config_.at("micro_batch_size").get<std::int64_t>() / world;
    c.sequence = config_.at("model").value("seq", std::int64_t{1});
    c.accumulate = config_.at("micro_batches").get<std::int64_t>();
    c.sync_each_micro_batch = config_.at("accumulate") != "no_sync";
    c.average_micro_batches = true;
    c.wrap.kind = WrapPolicy::Kind::kCalls;
    for (const ModuleId block : model.roles.blocks)
      c.calls.emplace_back().modules = {model.at(block).name};
    c.calls.emplace_back().modules = {""};
    c.precision = MixedPrecision{};
    if (bf16_) c.precision = {DType::kBFloat16, DType::kFloat32, std::nullopt, std::nullopt, true};
    if (config_.at("checkpointing").get<bool>()) c.checkpoint = CheckpointKind::kFull;
    const Json& o = config_.at("optimizer");
    c.optimizer = o.at("kind") == "sgd" ? OptimizerKind::kSgd : OptimizerKind::kAdamWForLoop;
    c.learning_rate = o.at("lr").get<double>();
    c.momentum = o.value("momentum", 0.0);
    if (o.contains("betas")) {
      c.beta1 = o.at("betas").at(0).get<double>();
      c.beta2 = o.at("betas").at(1).get<double>();
      c.epsilon = o.at("eps").get<double>();
      c.weight_decay = o.at("weight_decay").get<double>();
    }
    c.clip = true;  // without a limit the norm is computed all the same
    c.max_norm = config_.at("max_grad_norm").is_null() ? INFINITY
                                                       : config_.at("max_grad_norm").get<double>();
    c.loss = config_.at("model").at("kind") == "mlp" ? LossKind::kMeanSquare
                                                     : LossKind::kCrossEntropyFloat;
    return c;
  }

  RunResult train(std::int64_t world, bool sharded) const {
    const bool low = bf16_ && sharded;
    const Model model =
        numerics_model(config_.at("model"), low ? DType::kBFloat16 : DType::kFloat32);
    PlanOptions plan_options;
    plan_options.steps = config_.at("steps").get<std::int64_t>();
    Schedule schedule = plan(model, parallel(model, world, sharded), plan_options);
    round_layer_norm_statistics(schedule);
    RunOptions o;
    o.gather_parameters = true;
    o.record_spans = false;
    o.initialize = [this](const std::string& name, const std::vector<std::int64_t>& shape,
                          std::int64_t i) {
      const auto it = inits_.find(name);
      if (it == inits_.end()) return numerics_buffer_value(config_.at("model"), shape, i);
      const Init& init = it->second;
      return init.base + init.scale * std::sin(init.a * static_cast<double>(i) + init.b);
    };
    return run(schedule, o);  // its default data are the formulas of the goldens
  }

  std::string compare(const std::string& name, const Json& expected,
                      const RunResult& actual) const {
    if (bf16_ && name == "unsharded")
      return {};  // another program: a bf16 copy beside an fp32 master, see the sharded runs
    const Bounds bounds = bounds_of(bf16_);
    std::string d =
        compare_list(name + ".loss", expected.at("loss"), actual.trace.losses, bounds.loss);
    if (d.empty())
      d = compare_list(name + ".grad_norm", expected.at("grad_norm"), actual.trace.gradient_norms,
                       bounds.norm);
    for (const Json& p : expected.at("parameters")) {
      if (d.empty()) d = compare_parameter(name, p, actual, bounds.parameters);
    }
    return d;
  }

  static std::string compare_list(const std::string& what, const Json& expected,
                                  const std::vector<double>& actual, double bound) {
    if (expected.size() != actual.size())
      return fmt::format("{}: expected {} values, found {}", what, expected.size(), actual.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const double e = expected.at(i).get<double>();
      if (std::fabs(actual[i] - e) <= bound * std::fabs(e)) continue;
      return fmt::format("{}[{}]: expected {:.9g}, found {:.9g} (relative {:.2g})", what, i, e,
                         actual[i], std::fabs(actual[i] / e - 1));
    }
    return {};
  }

  static std::string compare_parameter(const std::string& run, const Json& expected,
                                       const RunResult& actual, double bound) {
    const std::string fqn = expected.at("fqn").get<std::string>();
    const auto it = actual.parameters.find(fqn);
    if (it == actual.parameters.end()) return fmt::format("{}.parameters: no {}", run, fqn);
    const std::vector<double>& v = it->second.values;
    const auto n = static_cast<double>(v.size());
    double sum = 0, squares = 0;
    for (const double x : v) {
      sum += x;
      squares += x * x;
    }
    const double expected_squares = expected.at("sum_of_squares").get<double>();
    const auto differs = [&](const char* key, double found, double size) -> std::string {
      const double e = expected.at(key).get<double>();
      if (std::fabs(found - e) <= bound * size) return {};
      return fmt::format("{}.parameters.{}.{}: expected {:.9g}, found {:.9g}", run, fqn, key, e,
                         found);
    };
    if (v.size() != expected.at("numel").get<std::size_t>())
      return fmt::format("{}.parameters.{}: {} elements", run, fqn, v.size());
    std::string d = differs("sum", sum, std::sqrt(n * expected_squares));
    return d.empty() ? differs("sum_of_squares", squares, expected_squares) : d;
  }

  const Json& golden_;
  const Json& config_;
  bool bf16_ = false;
  std::map<std::string, Init> inits_;
};

}  // namespace

std::vector<CheckResult> check_numerics(const std::filesystem::path& file) {
  const Json golden = read_json_file(file);
  if (!golden.is_object() || !golden.contains("config") || !golden.contains("runs")) return {};
  return {NumericsCase(golden).check()};
}

}  // namespace foreshard
