// Files that are read: a limited number of bytes of them, or all of them as memory. Never a wait for something that is
// no file.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "gpipe/error.h"
#include "gpipe/os/file_descriptor.h"

namespace gpipe::detail {

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

// Throws CheckpointError if it is not there, is not a plain file or cannot be opened.
PlainFile opened_file(const std::string& path);

// The content of a file of at most that many bytes. Throws CheckpointError, also if it has more.
std::string read_text(const std::string& path, std::size_t most_bytes);

// A file as memory: its pages are read when they are touched.
//
// The memory may be written to: that changes this process's copy of a page, never the file. Whoever shortens the file
// while it is mapped ends the process with SIGBUS; files that are replaced by rename, as all are here, are safe.
class MappedFile {
 public:
  // Throws CheckpointError if it is not there, not a file or cannot be read.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  char* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::string_view view() const { return {data_, size_}; }

 private:
  const std::string path_;
  char* data_ = nullptr;
  std::size_t size_ = 0;
};

// Links are followed. Throw CheckpointError if it cannot be told, such as in a folder that one may not look into.
bool is_there(const std::string& path);
bool is_folder(const std::string& path);

}  // namespace gpipe::detail
