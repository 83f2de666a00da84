#include "core/keep_memory.h"

#include <cstdlib>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace foreshard {

void keep_freed_memory() {
#if defined(__GLIBC__)
  constexpr int kLargestFromHeap = 32 << 20;  // The most that glibc takes.
  constexpr int kKept = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kLargestFromHeap);
  mallopt(M_TRIM_THRESHOLD, kKept);
#endif
}

}  // namespace foreshard
