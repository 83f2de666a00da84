#include "conformance/check.h"

#include <exception>

#include "conformance/ddp_check.h"
#include "conformance/fsdp1_check.h"
#include "conformance/fsdp2_check.h"
#include "conformance/golden_files.h"
#include "conformance/memory_check.h"
#include "conformance/models_check.h"
#include "conformance/numerics_check.h"
#include "conformance/zero_check.h"

namespace foreshard {
namespace {

constexpr CheckKind kKinds[] = {
    {"ddp", check_ddp},       {"fsdp1", check_fsdp1},   {"fsdp2", check_fsdp2},
    {"memory", check_memory}, {"models", check_models}, {"numerics", check_numerics},
    {"zero", check_zero},
};

}  // namespace

std::span<const CheckKind> check_kinds() { return kKinds; }

const CheckKind* find_check_kind(const std::string& name) {
  for (const CheckKind& kind : kKinds) {
    if (name == kind.name) return &kind;
  }
  return nullptr;
}

std::vector<CheckResult> check_all(const CheckKind& kind,
                                   const std::vector<std::filesystem::path>& paths) {
  std::vector<CheckResult> all;
  for (const std::filesystem::path& file : golden_files(paths)) {
    try {
      for (CheckResult& r : kind.check(file)) all.push_back(std::move(r));
    } catch (const std::exception& error) {
      CheckResult failed;
      failed.id = file.filename().string();
      failed.first_difference = error.what();
      all.push_back(std::move(failed));
    }
  }
  return all;
}

}  // namespace foreshard
