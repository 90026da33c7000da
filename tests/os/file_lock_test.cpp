// One process at a time holds a lock, and loses it when it ends.
#include "gpipe/os/file_lock.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "gpipe/checkpoint_files/checkpoint_lock.h"
#include "gpipe/os/network.h"
#include "tests/os/file_limits.h"
#include "tests/os/temporary_folder.h"

namespace gpipe {
namespace {

using detail::FileLock;
using detail::host_name;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Another process, which holds the lock until it is killed.
class Holder {
 public:
  explicit Holder(const std::string& path) {
    int ready[2];
    if (pipe(ready) != 0) throw std::runtime_error("no pipe");
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const auto lock = FileLock::take(path);
      [[maybe_unused]] const ssize_t told = write(ready[1], lock->is_held() ? "y" : "n", 1);
      while (true) pause();
    }
    close(ready[1]);
    char answer = 'n';
    is_held_ = read(ready[0], &answer, 1) == 1 && answer == 'y';
    close(ready[0]);
  }
  ~Holder() { end(); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  pid_t pid() const { return pid_; }
  bool is_held() const { return is_held_; }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  bool is_held_ = false;
};

TEST(FileLock, OfAnotherProcessIsRefusedWithItsHostAndItsNumberUntilThatIsKilled) {
  const test::TemporaryFolder folder;
  Holder other(folder.path("lock"));
  ASSERT_TRUE(other.is_held());
  const auto refused = FileLock::take(folder.path("lock"));
  EXPECT_FALSE(refused->is_held());
  EXPECT_EQ(refused->holder(), fmt::format("process {} on host {}", other.pid(), host_name()));
  EXPECT_EQ(refused->problem(), "");
  other.end();
  EXPECT_TRUE(FileLock::take(folder.path("lock"))->is_held());
}

TEST(FileLock, IsSharedWithinAProcessAndHeldUntilTheLastIsGone) {
  const test::TemporaryFolder folder;
  auto first = FileLock::take(folder.path("lock"));
  auto second = FileLock::take(folder.path("./lock"));
  EXPECT_TRUE(first->is_held());
  EXPECT_EQ(first, second);
  first.reset();
  const auto others_get_it = [&] { return OtherLock(folder.path("lock")).is_held(); };
  EXPECT_FALSE(others_get_it());
  second.reset();
  EXPECT_TRUE(others_get_it());
}

TEST(FileLock, SaysWhyThereCannotBeOne) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(FileLock::take(folder.path("none/lock"))->problem(), HasSubstr("No such file"));
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_NE(FileLock::take(folder.path("pipe"))->problem(), "");
  folder.write("file", "mine");
  std::filesystem::create_symlink("file", folder.path("link"));
  const auto link = FileLock::take(folder.path("link"));
  EXPECT_FALSE(link->is_held());
  EXPECT_NE(link->problem(), "");
  EXPECT_EQ(link->holder(), "");
  EXPECT_EQ(folder.read("file"), "mine");
  EXPECT_FALSE(link->has_no_locks());
}

// The file of another user, from which root is not kept away: the holder takes another one's rights.
TEST(FileLock, OfAFileThatMayOnlyBeReadIsHeldAllTheSame) {
  const test::TemporaryFolder folder;
  folder.write("lock", "process 1 on host elsewhere\n");
  std::filesystem::permissions(folder.path("lock"), std::filesystem::perms(0444));
  std::filesystem::permissions(folder.path(""), std::filesystem::perms(0755));
  const pid_t child = fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (getuid() == 0 && setuid(kNobody) != 0) _exit(2);
    _exit(FileLock::take(folder.path("lock"))->is_held() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(CheckpointLock, OfAnotherTrainingIsAnErrorThatNamesHostAndProcess) {
  const test::TemporaryFolder folder;
  const std::string run = folder.path("run");
  std::filesystem::create_directory(run);
  Holder other(run + "/lock");
  EXPECT_THAT(
      [&] { detail::lock_checkpoints(real_file_system(), run); },
      ThrowsMessage<CheckpointError>(AllOf(HasSubstr(run), HasSubstr("another training"),
                                           HasSubstr(fmt::format("process {} on host {}", other.pid(), host_name())))));
  other.end();
  EXPECT_TRUE(detail::lock_checkpoints(real_file_system(), run + "/")->is_held());
  EXPECT_TRUE(detail::lock_checkpoints(real_file_system(), folder.path("not/there/yet"))->is_held());
}

TEST(CheckpointLock, ThatIsNoPlainFileIsAnErrorAndNotTakenForADiskWithoutLocks) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directories(folder.path("run/lock"));
  EXPECT_THAT([&] { detail::lock_checkpoints(real_file_system(), folder.path("run")); },
              ThrowsMessage<CheckpointError>(AllOf(HasSubstr("Is a directory"), HasSubstr("remove it"))));
}

}  // namespace
}  // namespace gpipe
