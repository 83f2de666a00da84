#include "core/keep_memory.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#if defined(__GLIBC__)
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace foreshard {

#if defined(__GLIBC__)
namespace {

constexpr std::uintptr_t kHeap = 64 << 20;  ///< Size and alignment of the heaps of glibc's threads.
constexpr std::uintptr_t kLargePage = 2 << 20;

/// A hint: the system may refuse it.
void advise_large_pages(std::uintptr_t begin, std::uintptr_t end) {
  begin = (begin + kLargePage - 1) / kLargePage * kLargePage;
  end = end / kLargePage * kLargePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

std::uintptr_t end_of_heap() { return reinterpret_cast<std::uintptr_t>(sbrk(0)); }

/// Has the C library look for memory, and returns where it found it.
std::uintptr_t touch_heap(std::size_t bytes) {
  void* volatile some = std::malloc(bytes);
  const auto at = reinterpret_cast<std::uintptr_t>(some);
  std::free(some);
  return at;
}

}  // namespace

void keep_freed_memory() {
  constexpr int kLargestFromHeap = 32 << 20;  // The most that glibc takes.
  constexpr int kKept = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kLargestFromHeap);
  mallopt(M_TRIM_THRESHOLD, kKept);
  mallopt(M_TOP_PAD, kHeap);  // the heap grows by this at once
  const std::uintptr_t before = end_of_heap();
  touch_heap(1 << 20);
  advise_large_pages(before, end_of_heap());
}

void keep_freed_memory_of_thread() {
  const std::uintptr_t heap = touch_heap(1) / kHeap * kHeap;
  advise_large_pages(heap, heap + kHeap);
}
#else
void keep_freed_memory() {}
void keep_freed_memory_of_thread() {}
#endif

}  // namespace foreshard
