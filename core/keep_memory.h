#pragma once

namespace foreshard {

/// Tells the C library to keep freed memory instead of handing its pages back to the system, and
/// the system to give large pages. Studies make and drop plans of several megabytes thousands of
/// times; touching fresh pages of 4 KiB for each takes as long as planning, and was a seventh of
/// the time of one answer. For programs, at their start; without effect where the library is not
/// glibc.
void keep_freed_memory();

/// Large pages also for the calling thread, which has a heap of its own. For threads that plan or
/// simulate, at their start.
void keep_freed_memory_of_thread();

}  // namespace foreshard
