// Files and their hashes: one that is hashed while it is read, and the hash of its own data that a safetensors file
// carries.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "gpipe/checkpoint_files/safetensors_format.h"
#include "gpipe/error.h"
#include "gpipe/hash/content_hash.h"
#include "gpipe/os/file_descriptor.h"

namespace gpipe::detail {

// A file that is read from its beginning to its end, and hashed on the way.
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

// What a safetensors file says about its data, under kDataHashKey, and what is wrong with that; both empty if it says
// nothing.
struct DataHash {
  std::string hash;
  std::string problem;
};

// Compares it with the data of the file, and takes it out of the header's metadata. `file` is the whole file.
DataHash take_data_hash(SafetensorsHeader& header, std::string_view file);

}  // namespace gpipe::detail
