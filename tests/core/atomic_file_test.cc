// Output files: whole or not there, whatever ends the program.

#include "core/atomic_file.h"

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "core/error.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

/// An empty folder of its own.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "atomic_file_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  fs::path file(const char* name) const { return path_ / name; }
  std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(path_), fs::directory_iterator());
  }

 private:
  fs::path path_;
};

std::string text_of(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// What became of a process that runs `f`.
template <typename F>
int status_of_child(F&& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    f();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(AtomicFile, IsThereAfterCommitOnly) {
  const Folder folder;
  {
    AtomicFile file(folder.file("a"));
    file.out() << "whole";
    EXPECT_FALSE(fs::exists(folder.file("a")));
    EXPECT_EQ(folder.files(), 1);
    file.commit();
  }
  EXPECT_EQ(text_of(folder.file("a")), "whole");
  EXPECT_EQ(folder.files(), 1);
}

TEST(AtomicFile, LeavesTheOldOneWithoutCommit) {
  const Folder folder;
  write_file_atomically(folder.file("a"), "old");
  {
    AtomicFile file(folder.file("a"));
    file.out() << "half";
  }
  EXPECT_EQ(text_of(folder.file("a")), "old");
  EXPECT_EQ(folder.files(), 1);
}

TEST(AtomicFile, KeepsLinks) {
  const Folder folder;
  write_file_atomically(folder.file("target"), "old");
  fs::create_symlink("target", folder.file("link"));
  write_file_atomically(folder.file("link"), "new");
  EXPECT_TRUE(fs::is_symlink(folder.file("link")));
  EXPECT_EQ(text_of(folder.file("target")), "new");
}

TEST(AtomicFile, RefusesWhatIsNoFile) {
  const Folder folder;
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  EXPECT_THROW(AtomicFile(folder.file("pipe")), RunError);
  EXPECT_THROW(write_file_atomically(folder.file("no folder/a"), "x"), RunError);
  EXPECT_EQ(folder.files(), 1);
}

class EndingSignal : public testing::TestWithParam<int> {};

TEST_P(EndingSignal, LeavesNothing) {
  const Folder folder;
  write_file_atomically(folder.file("a"), "old");
  const int status = status_of_child([&] {
    AtomicFile first(folder.file("a")), second(folder.file("b"));
    first.out() << "half" << std::flush;
    second.out() << "half" << std::flush;
    ::raise(GetParam());
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), GetParam());
  EXPECT_EQ(folder.files(), 1);
  EXPECT_EQ(text_of(folder.file("a")), "old");
}

INSTANTIATE_TEST_SUITE_P(AtomicFile, EndingSignal, testing::Values(SIGINT, SIGTERM, SIGHUP));

// As under nohup, which ignores SIGHUP, and shells, which let background jobs ignore SIGINT. The
// signals are caught once a process, so this child must be the first here to write a file: it runs
// this test again, alone.
TEST(AtomicFile, IgnoredSignalsStayIgnored) {
  if (std::getenv("ATOMIC_FILE_CHILD") == nullptr) {
    const int status = status_of_child([] {
      ::setenv("ATOMIC_FILE_CHILD", "1", 1);
      ::execl("/proc/self/exe", "test", "--gtest_filter=AtomicFile.IgnoredSignalsStayIgnored",
              static_cast<char*>(nullptr));
    });
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return;
  }
  const Folder folder;
  ::signal(SIGHUP, SIG_IGN);
  AtomicFile file(folder.file("a"));
  file.out() << "whole";
  ::raise(SIGHUP);
  file.commit();
  EXPECT_EQ(text_of(folder.file("a")), "whole");
}

}  // namespace
}  // namespace foreshard
