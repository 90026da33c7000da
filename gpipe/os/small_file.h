// The one reader of small files: a limited number of bytes, and never a wait for something that is no file.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>

#include "gpipe/os/file_descriptor.h"

namespace gpipe {

// What was read or, if `problem` is not empty, why it was not: "No such file or directory", "is not a plain file",
// "holds more than 64 KiB".
struct SmallFile {
  std::string content;
  std::string problem;
  int error = 0;  // errno, if that is the problem

  bool is_read() const { return problem.empty(); }
};

// A plain file; links are followed. Devices, pipes and folders are refused, and a pipe is not waited for.
SmallFile read_small_file(const std::string& path, std::size_t most_bytes);

// Whatever can be read until its end: for a file that the user names, which may be a pipe of the shell. The file
// descriptor stays open.
SmallFile read_small_stream(int file, std::size_t most_bytes);
// The same from a function that works as read(2).
SmallFile read_small_stream(const std::function<ssize_t(char* bytes, std::size_t size)>& read, std::size_t most_bytes);

// A plain file, opened for reading. Not open on failure; then `problem` says why.
struct PlainFile {
  FileDescriptor descriptor;
  off_t bytes = 0;
  std::string problem;
  int error = 0;
};
PlainFile open_plain_file(const std::string& path);

}  // namespace gpipe
