#pragma once

// The file form of a schedule: versioned JSON, one table row per line (docs/formats/schedule.md).

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "schedules/schedule.h"

namespace foreshard {

/// Appends the file form to `out`. Deterministic; needs no more memory than the text itself.
/// `reference`: the plan of the same job on one rank, which the file then carries (may be null).
void write_schedule(const Schedule& schedule, std::string& out,
                    const Schedule* reference = nullptr);
/// Writes the file form at once or not at all. RunError if the file cannot be written.
void write_schedule_file(const Schedule& schedule, const std::filesystem::path& path,
                         const Schedule* reference = nullptr);

/// Reads the file form. InputError with every problem: wrong types, unknown keys, indices outside
/// their tables, views outside their buffers, impossible sizes. What it returns has passed
/// check_structure(), not validate().
Schedule parse_schedule(std::string_view text, const std::string& file);
Schedule read_schedule_file(const std::filesystem::path& path);
/// The reference that a file carries, checked in the same way; nullopt if it has none.
std::optional<Schedule> read_reference_file(const std::filesystem::path& path);

}  // namespace foreshard
