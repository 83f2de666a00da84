#pragma once

namespace foreshard {

/// Tells the C library to keep freed memory instead of handing its pages back to the system.
/// Studies make and drop plans of several megabytes thousands of times; touching fresh pages for
/// each takes as long as planning. For programs, at their start; without effect where the library
/// is not glibc.
void keep_freed_memory();

}  // namespace foreshard
