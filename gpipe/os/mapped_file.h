// A file as memory: its pages are read when they are touched.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "gpipe/error.h"

namespace gpipe {

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

}  // namespace gpipe
