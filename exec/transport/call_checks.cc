#include "exec/transport/call_checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace foreshard {
namespace {

/// Elements of the whole buffer, which every member must agree on.
std::int64_t whole_elements(const CollectiveCall& c) {
  switch (c.kind) {
    case CollectiveKind::kAllGather:
      return c.output.numel();
    case CollectiveKind::kBroadcast:
      return c.output.present ? c.output.numel() : c.input.numel();
    default:
      return c.input.numel();
  }
}

}  // namespace

std::string describe(const CollectiveCall& c) {
  return fmt::format("rank {} instruction {} ({} of {} B {}, group {})", c.origin.rank,
                     c.origin.instruction, name_of(c.kind),
                     std::max(c.input.bytes(), c.output.bytes()), name_of(c.dtype), c.group.value);
}

void require(bool ok, const CollectiveCall& c, const char* what) {
  if (!ok) throw RunError(fmt::format("{}: {}", describe(c), what));
}

void check_shapes(const CollectiveCall& c) {
  require(!c.input.present || c.input.contiguous(), c, "the input is not contiguous");
  require(!c.output.present || c.output.contiguous(), c, "the output is not contiguous");
  const std::int64_t in = c.input.present ? c.input.numel() : 0,
                     out = c.output.present ? c.output.numel() : 0;
  switch (c.kind) {
    case CollectiveKind::kAllGather:
      return require(out == in * c.size, c, "the output is not as long as all inputs");
    case CollectiveKind::kReduceScatter:
      return require(in == out * c.size, c, "the input is not as long as all outputs");
    case CollectiveKind::kAllReduce:
      return require(in == out, c, "input and output differ in length");
    case CollectiveKind::kAllToAll:
      return require(in == out && in % c.size == 0, c,
                     "the buffers cannot be cut into equal parts");
    case CollectiveKind::kBroadcast:
      return require((c.index != c.root || c.input.present) && c.output.present, c,
                     "a buffer is missing");
    case CollectiveKind::kReduce:
      return require(c.input.present && (c.index != c.root || out == in), c, "a buffer is missing");
    case CollectiveKind::kSendReceive:
      return;
  }
}

void check_agreement(std::span<const std::optional<CollectiveCall>> members) {
  const CollectiveCall& a = *members[0];
  for (const std::optional<CollectiveCall>& b : members) {
    if (b->kind != a.kind || b->op != a.op || b->dtype != a.dtype || b->root != a.root ||
        b->factor != a.factor || whole_elements(*b) != whole_elements(a)) {
      throw RunError(fmt::format("collectives do not match: {} met {}", describe(a), describe(*b)));
    }
  }
}

}  // namespace foreshard
