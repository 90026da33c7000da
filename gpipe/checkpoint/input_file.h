// A file that is read from its beginning to its end, and hashed on the way.
#pragma once

#include <cstddef>
#include <string>

#include "gpipe/checkpoint/content_hash.h"
#include "gpipe/error.h"
#include "gpipe/os/file_descriptor.h"

namespace gpipe {

class InputFile {
 public:
  // Throws CheckpointError if it is not there, not a plain file or cannot be opened.
  explicit InputFile(const std::string& path);

  // The next bytes, which `hash` gets, too, if there is one. Throws CheckpointError if there are fewer.
  void read(void* bytes, std::size_t size, ContentHash* hash);
  // The same without keeping them.
  void read_past(std::size_t size, ContentHash* hash);

 private:
  void read_piece(char* bytes, std::size_t size);

  const std::string path_;
  FileDescriptor file_;
};

}  // namespace gpipe
