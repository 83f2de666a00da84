#include "core/atomic_file.h"

#include <fmt/format.h>

#include <signal.h>
#include <unistd.h>
#include <array>
#include <atomic>
#include <climits>
#include <cstring>
#include <mutex>
#include <string>
#include <system_error>

#include "core/error.h"

namespace foreshard {
namespace {

/// A temporary name where a signal's handler may read it: no memory of its own, no lock.
struct Slot {
  enum State : int { kFree, kTaken, kNamed };
  std::atomic<int> state{kFree};
  char name[PATH_MAX] = {};
};
static_assert(std::atomic<int>::is_always_lock_free);

/// Files written at the same time; those of further threads are not removed by a signal.
constexpr int kSlots = 8;
std::array<Slot, kSlots> g_slots;

/// Calls only what POSIX allows in a handler. SA_RESETHAND: raised again, the signal ends the
/// program as if nobody had caught it.
void remove_temporaries(int signal) {
  for (Slot& s : g_slots)
    if (s.state.load(std::memory_order_acquire) == Slot::kNamed) ::unlink(s.name);
  ::raise(signal);
}

void catch_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now = {};
    if (::sigaction(signal, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 ||
        now.sa_handler != SIG_DFL)
      continue;
    struct sigaction ours = {};
    ours.sa_handler = remove_temporaries;
    ours.sa_flags = SA_RESETHAND;
    ::sigaction(signal, &ours, nullptr);
  }
}

int take_slot(const std::string& name) {
  static std::once_flag caught;
  std::call_once(caught, catch_signals);
  if (name.size() >= PATH_MAX) return -1;
  for (int i = 0; i < kSlots; ++i) {
    Slot& s = g_slots[static_cast<std::size_t>(i)];
    int free = Slot::kFree;
    if (!s.state.compare_exchange_strong(free, Slot::kTaken)) continue;
    std::memcpy(s.name, name.c_str(), name.size() + 1);
    s.state.store(Slot::kNamed, std::memory_order_release);
    return i;
  }
  return -1;
}

std::filesystem::path target_of(const std::filesystem::path& named) {
  std::error_code looked;
  const std::filesystem::path path = std::filesystem::is_symlink(named, looked)
                                         ? std::filesystem::weakly_canonical(named, looked)
                                         : named;
  // A rename would replace the device or pipe by a file.
  if (std::filesystem::exists(path, looked) && !std::filesystem::is_regular_file(path, looked))
    throw RunError(named.string() + ": cannot be written: it is no regular file");
  return path;
}

std::filesystem::path temporary_beside(const std::filesystem::path& path) {
  static std::atomic<unsigned> counter{0};
  std::filesystem::path out = path;
  out += fmt::format(".tmp{}-{}", ::getpid(), counter++);
  return out;
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& path)
    : path_(target_of(path)),
      temporary_(temporary_beside(path_)),
      slot_(take_slot(temporary_.string())) {
  out_.open(temporary_, std::ios::binary | std::ios::trunc);
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) {
    std::error_code ignored;
    std::filesystem::remove(temporary_, ignored);
  }
  if (slot_ >= 0) g_slots[static_cast<std::size_t>(slot_)].state.store(Slot::kFree);
}

void AtomicFile::commit() {
  out_.close();
  if (!out_) throw RunError(path_.string() + ": cannot be written");
  std::error_code failed;
  std::filesystem::rename(temporary_, path_, failed);
  if (failed) throw RunError(path_.string() + ": cannot be written: " + failed.message());
  temporary_.clear();
}

void write_file_atomically(const std::filesystem::path& path, std::string_view bytes) {
  AtomicFile file(path);
  file.out().write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.commit();
}

}  // namespace foreshard
