// The difference of two plans in sentences: what changes, why, and what it costs.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/format.h"
#include "report/plan_difference.h"

namespace foreshard {
namespace {

constexpr double kAlike = 0.01;  ///< Bytes that differ by less are the same in words.
constexpr double kTimeWorthSaying =
    0.0005;  ///< Of the step, for a change that is only a matter of time.

bool alike(Bytes a, Bytes b) {
  return std::abs(static_cast<double>(a.value - b.value)) <=
         kAlike * static_cast<double>(std::max(a.value, b.value));
}

std::string more_or_less(Time t, const char* of) {
  return fmt::format("{} {} {}", format_time(Time(std::abs(t.value))),
                     t.value < 0 ? "less" : "more", of);
}

std::string calls(std::int64_t n) {
  return n == 1 ? "1 call" : fmt::format("{} calls", with_thousands(n));
}

std::string instead(std::int64_t b, std::int64_t a) {
  return a == 0   ? fmt::format("{}, where there was none", with_thousands(b))
         : b == 0 ? fmt::format("none instead of {}", with_thousands(a))
                  : fmt::format("{} instead of {}", with_thousands(b), with_thousands(a));
}

/// Reads the rows and parts of one difference.
class Words {
 public:
  explicit Words(const PlanDifference& d) : d_(d) {}

  std::vector<std::string> all() {
    for (const DifferenceRow& r : d_.rows)
      if (r.kind == "collective" || r.kind == "copy") transfer(r);
    host();
    kernels();
    frees();
    if (const DifferenceRow* r = row("unit", "units or buckets"))
      say("units or buckets: {}", instead(r->count_b, r->count_a));
    return std::move(out_);
  }

 private:
  template <typename... Values>
  void say(fmt::format_string<Values...> text, Values&&... values) {
    out_.push_back(fmt::format(text, std::forward<Values>(values)...));
  }

  const DifferenceRow* row(const std::string& kind, const std::string& what) const {
    const auto it = std::find_if(d_.rows.begin(), d_.rows.end(), [&](const DifferenceRow& r) {
      return r.kind == kind && r.what == what;
    });
    return it == d_.rows.end() ? nullptr : &*it;
  }

  Time part(const std::string& name) const {
    Time t;
    for (const auto& [n, value] : d_.b.time_parts)
      if (n == name) t += value;
    for (const auto& [n, value] : d_.a.time_parts)
      if (n == name) t -= value;
    return t;
  }

  bool matters(Time t) const {
    return std::abs(static_cast<double>(t.value)) >=
           kTimeWorthSaying * static_cast<double>(std::max(d_.a.step, d_.b.step).value);
  }

  /// Of one kind of collective on either side.
  std::int64_t most_bytes() const {
    std::int64_t most = 0;
    for (const DifferenceRow& r : d_.rows)
      if (r.kind == "collective")
        most =
            std::max({most, r.bytes_a.value_or(Bytes()).value, r.bytes_b.value_or(Bytes()).value});
    return most;
  }

  void transfer(const DifferenceRow& r) {
    const Bytes a = r.bytes_a.value_or(Bytes()), b = r.bytes_b.value_or(Bytes());
    const Time cost = r.time.value_or(Time());
    const bool same = r.count_a == r.count_b && alike(a, b);
    // Scalars and tables: only if the step feels them.
    if (!matters(cost) && (same || std::max(a, b).value < most_bytes() / 1000)) return;
    std::string text;
    if (r.count_a == 0)
      text = fmt::format("{} a step, {}, where there was none", with_thousands(r.count_b),
                         format_bytes_decimal(b));
    else if (r.count_b == 0)
      text = fmt::format("none, where there were {} a step, {}", with_thousands(r.count_a),
                         format_bytes_decimal(a));
    else if (same)
      text = fmt::format("the same {}, {}", calls(r.count_b), format_bytes_decimal(b));
    else if (alike(a, b))
      text = fmt::format("the same {} in {} instead of {}", format_bytes_decimal(b),
                         calls(r.count_b), with_thousands(r.count_a));
    else
      text = fmt::format("{} in {} instead of {} in {}", format_bytes_decimal(b), calls(r.count_b),
                         format_bytes_decimal(a), with_thousands(r.count_a));
    say("{}: {}; {}", r.what, text,
        matters(cost) ? more_or_less(cost, "exposed") : std::string("no time that shows"));
  }

  void host() {
    const Time cost = part("waiting for the host");
    const DifferenceRow* waits = row("wait", "the host waits for the device");
    if (waits == nullptr && !matters(cost)) return;
    std::string text;
    if (waits != nullptr)
      text = fmt::format("waits for the device, {} times a step; ",
                         instead(waits->count_b, waits->count_a));
    say("host: {}{}", text,
        matters(cost) ? more_or_less(cost, "in which the device has nothing to do yet")
                      : std::string("the device never runs out of work for longer"));
  }

  void kernels() {
    std::int64_t more = 0;
    for (const DifferenceRow& r : d_.rows)
      if (r.kind == "kernel") more += r.count_b - r.count_a;
    const Time compute = part("compute") + part("optimizer");
    if (!matters(compute)) return;
    const Time slowed = d_.b.interference - d_.a.interference;
    std::string why = more == 0 ? std::string("as many of them")
                                : fmt::format("{} {} of them", with_thousands(std::abs(more)),
                                              more < 0 ? "fewer" : "more");
    if (matters(slowed))
      why += fmt::format(", and transfers and kernels beside them slow them by {}", more_or_less(slowed, ""));
    while (why.ends_with(' ')) why.pop_back();
    say("kernels: {}; {}", more_or_less(compute, "on the compute stream"), why);
  }

  void frees() {
    const DifferenceRow* r = row("wait", "frees that wait for another stream");
    if (r == nullptr) return;
    say("frees that wait for another stream (record_stream): {}; the block stays taken meanwhile",
        instead(r->count_b, r->count_a));
  }

  const PlanDifference& d_;
  std::vector<std::string> out_;
};

}  // namespace

std::vector<std::string> words_of(const PlanDifference& d) { return Words(d).all(); }

}  // namespace foreshard
