#include "cli/nccl_log.h"

#include <fmt/format.h>

#include "core/json.h"

namespace foreshard::cli {
namespace {

std::optional<CollectiveKind> kind_option(Arguments& a) {
  if (!a.has("collective")) return std::nullopt;
  const auto kind = parse_nccl_test_name(a.text("collective"));
  if (!kind)
    a.report("collective", fmt::format("found \"{}\"", a.text("collective")),
             "allowed: all_reduce, all_gather, reduce_scatter, broadcast, ...");
  return kind;
}

}  // namespace

CollectiveTable read_nccl_log(Arguments& a, const std::string& file) {
  const auto kind = kind_option(a);
  a.check();
  return parse_nccl_log(read_text_file(file), file, kind);
}

}  // namespace foreshard::cli
