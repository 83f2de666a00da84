#pragma once

// Numbers as people type them: "8k", "1.5T", "1,000,000", "1_000_000", "512MiB".

#include <optional>
#include <string>
#include <string_view>

namespace foreshard::cli {

/// The same digits without their thousands separators, commas or underscores; nothing where these
/// do not part groups of three digits ("1,00").
std::optional<std::string> without_separators(std::string_view text);

/// A number with an optional K, M, B, T or its lower case. `thousand`: what K stands for, 1000 of
/// things that are counted, 1024 of tokens of a sequence (an "8k" context has 8192).
std::optional<double> parse_count(std::string_view text, double thousand);

/// Bytes: a number with an optional B, kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB, in
/// any case, of `unit` bytes without one. A bare "1G" is refused: tools differ in what it means.
std::optional<double> parse_bytes(std::string_view text, double unit);

/// What `text` was probably meant as, in a form that parse_count or parse_bytes reads; "" if
/// nothing is near.
std::string nearest_count(std::string_view text);
std::string nearest_bytes(std::string_view text);

}  // namespace foreshard::cli
