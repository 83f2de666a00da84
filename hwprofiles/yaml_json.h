#pragma once

#include <string>
#include <string_view>

#include "core/json_fwd.h"

namespace foreshard {

/// What every reader of YAML checks before it parses: no binary data, no nesting that would exhaust
/// the parser's stack, one document (yaml-cpp reads some malformed texts as documents without end).
/// InputError, YAML::Exception for malformed text.
void check_yaml_text(std::string_view text, const std::string& file);

/// Parses one YAML document into Json under the limits of `parse_json`: duplicate keys, anchors
/// that expand without end, depth and malformed text are InputErrors with line and column. Plain
/// scalars become null, booleans or numbers by the rules of YAML 1.2's core schema; quoted ones
/// stay strings.
Json parse_yaml(std::string_view text, const std::string& file);

/// `parse_yaml` for files that end in .yaml or .yml, `parse_json` otherwise.
Json parse_json_or_yaml(std::string_view text, const std::string& file);

}  // namespace foreshard
