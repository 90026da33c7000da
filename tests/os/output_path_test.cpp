// What is no plain file is never replaced.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "gpipe/os/output_file.h"
#include "tests/os/file_limits.h"
#include "tests/os/temporary_folder.h"

namespace gpipe {
namespace {

using detail::FileDescriptor;
using detail::look_at_output;
using detail::open_output;
using detail::OutputKind;
using detail::OutputPath;
using detail::replace_file;
using detail::write_all;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(OutputPath, IsNewOrPlainOrAStreamOrRefused) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(look_at_output(folder.path("none")).kind, OutputKind::kNew);
  EXPECT_EQ(look_at_output(folder.write("file", "x")).kind, OutputKind::kPlainFile);
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(look_at_output(folder.path("pipe")).kind, OutputKind::kStream);
  std::filesystem::create_symlink("pipe", folder.path("to-pipe"));
  EXPECT_EQ(look_at_output(folder.path("to-pipe")).kind, OutputKind::kStream);
  for (const char* target : {"file", "none", ".", "loop"}) {
    const std::string link = folder.path("loop");
    std::filesystem::remove(link);
    std::filesystem::create_symlink(target, link);
    EXPECT_EQ(look_at_output(link).kind, OutputKind::kRefused) << target;
    EXPECT_EQ(look_at_output(link).what, "a link") << target;
  }
  EXPECT_EQ(look_at_output(folder.path("")).what, "a folder");
}

TEST(OutputPath, IsNotReplacedUnlessItIsAPlainFile) {
  const test::TemporaryFolder folder;
  folder.write("file", "old");
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("file", folder.path("link"));
  std::filesystem::create_directory(folder.path("folder"));
  for (const char* name : {"pipe", "link", "folder"}) {
    EXPECT_THAT([&] { replace_file(real_file_system(), folder.path(name), "new"); },
                ThrowsMessage<CheckpointError>(AllOf(HasSubstr(folder.path(name)), HasSubstr("is not a plain file"),
                                                     HasSubstr("name another one"))));
  }
  EXPECT_TRUE(std::filesystem::is_fifo(folder.path("pipe")));
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path("link")));
  EXPECT_EQ(folder.read("file"), "old");
  replace_file(real_file_system(), folder.path("file"), "new");
  EXPECT_EQ(folder.read("file"), "new");
  EXPECT_EQ(folder.num_entries(), 4u);
}

TEST(OutputPath, ATemporaryNameThatSomebodyHasTakenIsNotFollowed) {
  const test::TemporaryFolder folder;
  folder.write("file", "old");
  const std::string temporary = "file." + std::to_string(getpid()) + ".tmp";
  std::filesystem::create_symlink("file", folder.path(temporary));
  EXPECT_THROW(replace_file(real_file_system(), folder.path("file"), "new"), CheckpointError);
  EXPECT_EQ(folder.read("file"), "old");
}

TEST(OutputFileLimit, IsAnErrorLikeThatOfAFullDisk) {
  const test::TemporaryFolder folder;
  folder.write("file", "old");
  const FileSizeLimit limit(100);
  EXPECT_THAT(
      [&] { replace_file(real_file_system(), folder.path("file"), std::string(1000, 'x')); },
      ThrowsMessage<CheckpointError>(AllOf(HasSubstr("cannot be written: File too large"), HasSubstr("ulimit -f"))));
  EXPECT_EQ(folder.read("file"), "old");
  EXPECT_EQ(folder.num_entries(), 1u);
  const FileDescriptor file = open_output(folder.path("new"), OutputKind::kNew);
  EXPECT_FALSE(write_all(file.get(), std::string(1000, 'x').data(), 1000));
  EXPECT_EQ(errno, EFBIG);
  // And the signal is not kept for later.
  sigset_t pending;
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGXFSZ), 0);
}

}  // namespace
}  // namespace gpipe
