#pragma once

// What every transport checks of a collective before it moves data.

#include <optional>
#include <span>
#include <string>

#include "exec/calls.h"

namespace foreshard {

/// "rank 2 instruction 17 (all_gather of 1024 B bfloat16, group 0)", for messages.
std::string describe(const CollectiveCall& call);

/// RunError with the call and `what` unless `ok`.
void require(bool ok, const CollectiveCall& call, const char* what);

/// RunError if the lengths of input and output do not belong together.
void check_shapes(const CollectiveCall& call);

/// RunError if two members make different calls. All are present.
void check_agreement(std::span<const std::optional<CollectiveCall>> members);

}  // namespace foreshard
