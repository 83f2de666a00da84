#include "exec/kernels/blas.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "core/error.h"

namespace foreshard {
namespace {

constexpr const char* kLibrary = "libopenblas.so.0";

void* load_library() {
  setenv("OPENBLAS_NUM_THREADS", "1", 1);  // Read when it is loaded: a rank is one thread.
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw RunError(std::string("OpenBLAS cannot be loaded (Debian: libopenblas0): ") + dlerror());
  return library;
}

}  // namespace

decltype(&cblas_sgemm) sgemm() {
  static const auto function = [] {
    void* const found = dlsym(load_library(), "cblas_sgemm");
    if (found == nullptr) throw RunError(std::string(kLibrary) + " has no cblas_sgemm");
    return reinterpret_cast<decltype(&cblas_sgemm)>(found);
  }();
  return function;
}

}  // namespace foreshard
