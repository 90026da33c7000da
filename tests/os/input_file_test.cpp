// Small files are read up to a limit, and what is no file is not waited for.
#include "gpipe/os/input_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/os/temporary_folder.h"

namespace gpipe {
namespace {

using detail::read_small_file;
using detail::read_small_stream;
using detail::SmallFile;

using ::testing::HasSubstr;

TEST(SmallFile, IsReadAsAWhole) {
  const test::TemporaryFolder folder;
  const std::string text(100000, 'x');
  const SmallFile file = read_small_file(folder.write("file", text), text.size());
  EXPECT_TRUE(file.is_read()) << file.problem;
  EXPECT_EQ(file.content, text);
  EXPECT_EQ(read_small_file(folder.write("empty", ""), 0).problem, "");
  std::filesystem::create_symlink("file", folder.path("link"));
  EXPECT_EQ(read_small_file(folder.path("link"), text.size()).content, text);
}

TEST(SmallFile, OfMoreBytesThanTheLimitIsRefusedWithTheLimit) {
  const test::TemporaryFolder folder;
  const SmallFile file = read_small_file(folder.write("file", std::string(100000, 'x')), 65536);
  EXPECT_EQ(file.problem, "holds more than 64 KiB");
  EXPECT_EQ(file.content, "");
}

TEST(SmallFile, ThatIsNoFileIsNotWaitedFor) {
  const test::TemporaryFolder folder;
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/zero", folder.path("endless"));
  for (const char* name : {"pipe", "endless", ""}) {
    const SmallFile file = read_small_file(folder.path(name), 1000);
    EXPECT_EQ(file.problem, "is not a plain file") << name;
    EXPECT_EQ(file.content, "");
  }
  EXPECT_THAT(read_small_file(folder.path("none"), 1000).problem, HasSubstr("No such file"));
}

TEST(SmallFile, MayBeAPipeOfTheShell) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "text", 4), 4);
  close(ends[1]);
  EXPECT_EQ(read_small_stream(ends[0], 4).content, "text");
  close(ends[0]);
}

}  // namespace
}  // namespace gpipe
