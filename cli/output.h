#pragma once

// Where output goes: text or one JSON document to standard output, progress to standard error.

#include <functional>
#include <string>

#include "core/json_fwd.h"
#include "report/answer.h"

namespace foreshard::cli {

/// Colours and bars only on a terminal; NO_COLOR takes the colours.
TextStyle terminal_style();
void print(const std::string& text);
void print_json(const Json& json);
/// Why a file of this name cannot be written ("there is no folder x"); "" if it can. Asked before
/// the work whose result it holds.
std::string why_not_writable(const std::string& path);
/// A line on standard error, for warnings.
void warn(const std::string& text);
/// A counter on standard error that overwrites itself; does nothing where standard error is no
/// terminal.
std::function<void(int, int)> progress(std::string what);

}  // namespace foreshard::cli
