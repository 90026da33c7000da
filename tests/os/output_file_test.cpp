// Files are replaced whole or not at all, and read with an error that says what is wrong.
#include "gpipe/os/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <thread>
#include <vector>

#include "gpipe/os/file_descriptor.h"
#include "gpipe/os/input_file.h"
#include "tests/os/temporary_folder.h"

namespace gpipe {
namespace {

using detail::directory_of;
using detail::is_folder;
using detail::is_there;
using detail::make_pipe;
using detail::MappedFile;
using detail::opened_file;
using detail::OutputFile;
using detail::Pipe;
using detail::read_small_stream;
using detail::read_text;
using detail::replace_file;

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ReplaceFile, TheOldFileStaysWhenTheWriterFails) {
  const test::TemporaryFolder folder;
  folder.write("file", "old");
  const auto write_half = [](const std::string& temporary) {
    OutputFile(real_file_system(), temporary).write("ne", 2);
    throw std::runtime_error("no more");
  };
  EXPECT_THROW(replace_file(real_file_system(), folder.path("file"), write_half), std::runtime_error);
  EXPECT_EQ(folder.read("file"), "old");
  EXPECT_EQ(folder.num_entries(), 1u);
}

TEST(ReplaceFile, ThreadsThatReplaceOneFileLeaveOneOfTheirsWhole) {
  const test::TemporaryFolder folder;
  std::vector<std::thread> threads;
  for (const char letter : {'a', 'b', 'c', 'd'}) {
    threads.emplace_back([&folder, content = std::string(100'000, letter)] {
      for (int round = 0; round < 5; ++round) replace_file(real_file_system(), folder.path("file"), content);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string content = folder.read("file");
  ASSERT_EQ(content.size(), 100'000u);
  EXPECT_EQ(content.find_first_not_of(content.front()), std::string::npos);
  EXPECT_EQ(folder.num_entries(), 1u);
}

TEST(ReplaceFile, TheErrorCarriesTheErrnoOfTheCall) {
  const test::TemporaryFolder folder;
  try {
    replace_file(real_file_system(), folder.path("missing/file"), "new");
    FAIL() << "a file in a folder that is not there was written";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.error_number(), ENOENT);
    EXPECT_THAT(error.what(), HasSubstr("cannot be created: No such file or directory; check the path"));
  }
}

TEST(ReadFile, WhatCannotBeReadIsAnErrorThatSaysWhatToDo) {
  const test::TemporaryFolder folder;
  folder.write("file", "content");
  EXPECT_EQ(read_text(folder.path("file"), 7), "content");
  EXPECT_EQ(MappedFile(folder.path("file")).view(), "content");
  EXPECT_EQ(MappedFile(folder.write("empty", "")).view(), "");
  EXPECT_THAT([&] { read_text(folder.path("file"), 6); },
              ThrowsMessage<CheckpointError>(HasSubstr("holds more than 6 bytes; write or fetch it again")));
  EXPECT_THAT([&] { MappedFile file(folder.path("")); },
              ThrowsMessage<CheckpointError>(HasSubstr("is not a plain file; name one that is")));
  EXPECT_THAT([&] { opened_file(folder.path("missing")); },
              ThrowsMessage<CheckpointError>(HasSubstr("cannot be opened: No such file or directory")));
}

TEST(Paths, AnswerForFilesFoldersAndWhatIsNotThere) {
  const test::TemporaryFolder folder;
  folder.write("file", "");
  EXPECT_TRUE(is_there(folder.path("file")));
  EXPECT_FALSE(is_folder(folder.path("file")));
  EXPECT_TRUE(is_folder(folder.path("")));
  EXPECT_FALSE(is_there(folder.path("missing")));
  EXPECT_EQ(directory_of("a/b/c"), "a/b");
  EXPECT_EQ(directory_of("/c"), "/");
  EXPECT_EQ(directory_of("c"), ".");
}

TEST(Pipe, WhatIsWrittenIntoOneEndComesOutOfTheOther) {
  Pipe pipe = make_pipe();
  ASSERT_EQ(write(pipe.write_end.get(), "x", 1), 1);
  pipe.write_end.reset();
  EXPECT_EQ(read_small_stream(pipe.read_end.get(), 10).content, "x");
}

}  // namespace
}  // namespace gpipe
