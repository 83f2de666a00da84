#pragma once

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace foreshard {

/// While it lives this process can start so many threads more, or one (the C library may keep a
/// stack of a thread that has ended), and has memory for all else: each gets a stack of 1 GiB, and
/// the address space has no room for another one.
class FewThreads {
 public:
  explicit FewThreads(int allowed) {
    pthread_getattr_default_np(&attributes_);
    pthread_attr_t large = attributes_;
    pthread_attr_setstacksize(&large, kStack);
    pthread_setattr_default_np(&large);
    getrlimit(RLIMIT_AS, &limit_);
    rlimit few = limit_;
    few.rlim_cur = mapped() + static_cast<rlim_t>(allowed) * kStack + kStack / 2;
    setrlimit(RLIMIT_AS, &few);
  }
  ~FewThreads() {
    setrlimit(RLIMIT_AS, &limit_);
    pthread_setattr_default_np(&attributes_);
    pthread_attr_destroy(&attributes_);
  }
  FewThreads(const FewThreads&) = delete;
  FewThreads& operator=(const FewThreads&) = delete;

 private:
  static constexpr std::size_t kStack = std::size_t{1} << 30;
  static rlim_t mapped() {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
  }
  pthread_attr_t attributes_;
  rlimit limit_{};
};

/// While it lives this process can start no thread (a stack of 64 TiB fits nowhere), and may
/// reserve addresses as it likes.
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&attributes_);
    pthread_attr_t large = attributes_;
    pthread_attr_setstacksize(&large, std::size_t{1} << 46);
    pthread_setattr_default_np(&large);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&attributes_);
    pthread_attr_destroy(&attributes_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t attributes_;
};

}  // namespace foreshard
