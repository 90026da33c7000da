// The seam over the file operations that change something: the real ones and, in tests, ones that fail at a chosen
// call.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

namespace gpipe {

// Each is the call of that name of the operating system, and fails as it does: with -1, and the reason in errno. A
// write beyond the limit of file sizes fails, too (EFBIG), and is no signal.
// Implementations are thread-safe.
class FileSystem {
 public:
  FileSystem() = default;
  virtual ~FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;

  virtual int open(const std::string& path, int flags) = 0;
  virtual ssize_t write(int file, const void* bytes, std::size_t size) = 0;
  virtual int fsync(int file) = 0;
  virtual int close(int file) = 0;
  virtual int rename(const std::string& from, const std::string& to) = 0;
  virtual int mkdir(const std::string& path) = 0;
  virtual int unlink(const std::string& path) = 0;
  virtual int rmdir(const std::string& path) = 0;
};

FileSystem& real_file_system();

}  // namespace gpipe
