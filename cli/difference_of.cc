#include "cli/difference_of.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "study/step_facts.h"

namespace foreshard::cli {
namespace {

DifferenceSide side_of(const ComparedPlan& plan) {
  const SimulationResult& r = plan.evaluation.result;
  DifferenceSide s;
  s.title = plan.title;
  s.subject = plan.subject;
  s.step = r.step_time;
  const Breakdown& b = r.breakdown;
  s.time_parts = {{"compute", b.compute},
                  {"exposed communication", b.exposed_communication},
                  {"waiting for the host", b.exposed_host},
                  {"optimizer", b.optimizer},
                  {"idle", b.idle}};
  s.interference = b.interference;
  const MemoryResult& m = r.memory;
  s.device_peak = m.device_peak;
  s.fits = m.fits;
  Bytes owned;
  std::map<std::string, Bytes> categories;
  for (const Owner& o : m.owners) {
    categories[std::string(name_of(o.category))] += o.bytes;
    owned += o.bytes;
  }
  s.memory_parts.assign(categories.begin(), categories.end());
  if (owned != m.allocated_peak) s.memory_parts.emplace_back("other", m.allocated_peak - owned);
  s.memory_parts.emplace_back("reserved but unallocated", m.reserved_peak - m.allocated_peak);
  s.memory_parts.emplace_back("context", m.context);
  s.memory_parts.emplace_back("communicators", m.communicators);
  return s;
}

/// Builds the rows of one comparison; both sides have the keys of either.
class Rows {
 public:
  Rows(const ComparedPlan& a, const ComparedPlan& b, PlanDifference& out)
      : a_(a.evaluation),
        b_(b.evaluation),
        facts_a_(facts_of(a_.schedule)),
        facts_b_(facts_of(b_.schedule)),
        out_(out) {}

  void add_all() {
    add_kind("collectives", &Rows::collectives);
    add_kind("copies", &Rows::copies);
    add_kind("waits", &Rows::waits);
    add_kind("buffers", &Rows::buffers);
    add_kind("kernels", &Rows::kernels);
    add_kind("units and streams", &Rows::structure);
  }

 private:
  /// Rows of a kind, those that cost most first; a kind without rows is equal.
  void add_kind(const char* name, void (Rows::*add)()) {
    const std::size_t before = out_.rows.size();
    (this->*add)();
    const auto cost = [](const DifferenceRow& r) {
      const std::int64_t bytes =
          std::abs((r.bytes_b ? r.bytes_b->value : 0) - (r.bytes_a ? r.bytes_a->value : 0));
      const std::int64_t first = r.time     ? std::abs(r.time->value)
                                 : r.memory ? std::abs(r.memory->value)
                                            : 0;
      return std::pair(first, bytes);
    };
    std::stable_sort(
        out_.rows.begin() + static_cast<std::ptrdiff_t>(before), out_.rows.end(),
        [&](const DifferenceRow& x, const DifferenceRow& y) { return cost(x) > cost(y); });
    if (out_.rows.size() == before) out_.equal.emplace_back(name);
  }

  void row(const char* kind, std::string what, std::int64_t a, std::int64_t b,
           std::optional<Bytes> bytes_a = {}, std::optional<Bytes> bytes_b = {},
           std::optional<Time> time = {}, std::optional<Bytes> memory = {}) {
    const bool same = a == b && bytes_a == bytes_b && (!time || time->value == 0) &&
                      (!memory || memory->value == 0);
    if (!same) out_.rows.push_back({kind, std::move(what), a, b, bytes_a, bytes_b, time, memory});
  }

  static Time exposed(const Evaluation& e, const StepFacts::Key& key) {
    Time sum;
    for (const CommunicationRow& c : e.result.communication)
      if (c.kind == key.kind && c.group_size == key.group_size) sum += c.exposed;
    return sum;
  }

  /// The dtypes that carry a hundredth of the bytes or more: scalars beside them say nothing.
  static std::string dtypes_of(const StepFacts::Collectives& c) {
    std::vector<std::string> names;
    for (const auto& [dtype, bytes] : c.dtypes)
      if (bytes.value * 100 >= c.bytes.value) names.emplace_back(name_of(dtype));
    return fmt::format("{}", fmt::join(names, "+"));
  }

  void collectives() {
    std::set<StepFacts::Key> keys;
    for (const auto& [key, value] : facts_a_.collectives) keys.insert(key);
    for (const auto& [key, value] : facts_b_.collectives) keys.insert(key);
    const auto find = [](const StepFacts& f, const StepFacts::Key& key) {
      const auto it = f.collectives.find(key);
      return it == f.collectives.end() ? StepFacts::Collectives{} : it->second;
    };
    for (const StepFacts::Key& key : keys) {
      const StepFacts::Collectives a = find(facts_a_, key), b = find(facts_b_, key);
      const std::string before = dtypes_of(a), after = dtypes_of(b);
      std::string dtypes = before.empty() ? after : before;
      if (!before.empty() && !after.empty() && before != after) dtypes += " -> " + after;
      const std::string what =
          fmt::format("{} over {}, {}", name_of(key.kind), key.group_size, dtypes);
      row("collective", what, a.count, b.count, a.bytes, b.bytes,
          exposed(b_, key) - exposed(a_, key));
    }
  }

  static Time exposed(const Evaluation& e, CopyDirection direction) {
    Time sum;
    for (const CopyRow& c : e.result.copies)
      if (c.direction == direction) sum += c.exposed;
    return sum;
  }

  void copies() {
    const auto one = [this](const char* what, const Tally& a, const Tally& b, CopyDirection d) {
      if (a.count == b.count && a.bytes == b.bytes) return;
      row("copy", what, a.count, b.count, a.bytes, b.bytes, exposed(b_, d) - exposed(a_, d));
    };
    one("host to device", facts_a_.host_to_device, facts_b_.host_to_device,
        CopyDirection::kHostToDevice);
    one("device to host", facts_a_.device_to_host, facts_b_.device_to_host,
        CopyDirection::kDeviceToHost);
  }

  void waits() {
    row("wait", "the host waits for the device", facts_a_.host_waits, facts_b_.host_waits);
    row("wait", "a stream waits for another", facts_a_.stream_waits, facts_b_.stream_waits);
    row("wait", "frees that wait for another stream", facts_a_.recorded_streams,
        facts_b_.recorded_streams);
  }

  static std::map<std::string, Bytes> at_peak(const Evaluation& e) {
    std::map<std::string, Bytes> out;
    for (const Owner& o : e.result.memory.owners) out[std::string(name_of(o.category))] += o.bytes;
    return out;
  }

  void buffers() {
    std::map<std::string, Bytes> peak_a = at_peak(a_), peak_b = at_peak(b_);
    for (int c = 0; c < kBufferCategoryCount; ++c) {
      const Tally& a = facts_a_.buffers[static_cast<std::size_t>(c)];
      const Tally& b = facts_b_.buffers[static_cast<std::size_t>(c)];
      const std::string name(name_of(static_cast<BufferCategory>(c)));
      row("buffer", name, a.count, b.count, a.bytes, b.bytes, {}, peak_b[name] - peak_a[name]);
    }
  }

  void kernels() {
    std::set<Phase> phases;
    for (const auto& [phase, n] : facts_a_.kernels) phases.insert(phase);
    for (const auto& [phase, n] : facts_b_.kernels) phases.insert(phase);
    const auto find = [](const StepFacts& f, Phase p) {
      const auto it = f.kernels.find(p);
      return it == f.kernels.end() ? std::int64_t{0} : it->second;
    };
    for (const Phase p : phases)
      row("kernel", "of " + std::string(name_of(p)), find(facts_a_, p), find(facts_b_, p));
  }

  void structure() {
    row("unit", "units or buckets", facts_a_.units, facts_b_.units);
    row("unit", "streams", facts_a_.streams, facts_b_.streams);
  }

  const Evaluation& a_;
  const Evaluation& b_;
  const StepFacts facts_a_, facts_b_;
  PlanDifference& out_;
};

}  // namespace

PlanDifference difference_of(const ComparedPlan& a, const ComparedPlan& b) {
  PlanDifference d;
  d.a = side_of(a);
  d.b = side_of(b);
  Rows(a, b, d).add_all();
  const auto merge = [&d](const std::vector<std::string>& names) {
    for (const std::string& n : names)
      if (std::find(d.not_modelled.begin(), d.not_modelled.end(), n) == d.not_modelled.end())
        d.not_modelled.push_back(n);
  };
  merge(a.evaluation.result.not_modelled);
  merge(b.evaluation.result.not_modelled);
  return d;
}

}  // namespace foreshard::cli
