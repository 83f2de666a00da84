#pragma once

// OpenBLAS, loaded when a plan is run: the other commands do not pay for its start, which maps tens
// of megabytes and leaves threads spinning for a while.

#include <cblas.h>

namespace foreshard {

/// cblas_sgemm on the calling thread alone. RunError if the library is not on this machine.
decltype(&cblas_sgemm) sgemm();

}  // namespace foreshard
