// golden_check KIND PATH... [--json]: compares our predictions with golden cases; see docs of
// conformance/check.h.

#include <fmt/core.h>

#include <cstring>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "conformance/check.h"
#include "core/error.h"
#include "core/json.h"

namespace foreshard {
namespace {

void print_usage(std::FILE* out) {
  std::string kinds;
  for (const CheckKind& kind : check_kinds())
    kinds += (kinds.empty() ? "" : "|") + std::string(kind.name);
  fmt::print(out, "usage: golden_check {} PATH... [--json]\n", kinds);
}

void print_json(const std::vector<CheckResult>& results, std::size_t passed) {
  Json cases = Json::array();
  for (const CheckResult& r : results) {
    Json one;
    one["id"] = r.id;
    one["ok"] = r.ok;
    one["first_difference"] = r.ok ? Json() : Json(r.first_difference);
    one["predicted"] = parse_json(r.predicted, r.id);
    cases.push_back(std::move(one));
  }
  Json all;
  all["passed"] = passed;
  all["failed"] = results.size() - passed;
  all["cases"] = std::move(cases);
  fmt::print("{}\n", all.dump(1));
}

int run(int argc, char** argv) {
  bool json = false;
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else if (std::strcmp(argv[i], "--help") == 0) {
      print_usage(stdout);
      return 0;
    } else {
      words.emplace_back(argv[i]);
    }
  }
  const CheckKind* kind = words.empty() ? nullptr : find_check_kind(words[0]);
  if (kind == nullptr || words.size() < 2) {
    print_usage(stderr);
    return 2;
  }
  const auto results =
      check_all(*kind, std::vector<std::filesystem::path>(words.begin() + 1, words.end()));
  std::size_t passed = 0;
  for (const CheckResult& r : results) {
    passed += r.ok ? 1 : 0;
    if (!json && !r.ok) fmt::print("{}: {}\n", r.id, r.first_difference);
  }
  if (json) {
    print_json(results, passed);
  } else {
    fmt::print("{} passed, {} failed\n", passed, results.size() - passed);
  }
  return passed == results.size() ? 0 : 4;
}

}  // namespace
}  // namespace foreshard

int main(int argc, char** argv) {
  try {
    return foreshard::run(argc, argv);
  } catch (const foreshard::InputError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "golden_check: {}\n", error.what());
    return 1;
  }
}
