// The hash of a file's bytes, which come piece by piece: XXH3 of 128 bits, that of `xxhsum -H2`. It tells damage, at
// the speed of memory; it is no signature.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "gpipe/error.h"
#include "gpipe/os/file_descriptor.h"

namespace gpipe {

class ContentHash {
 public:
  ContentHash();
  ~ContentHash();
  ContentHash(const ContentHash&) = delete;
  ContentHash& operator=(const ContentHash&) = delete;

  void add(const void* bytes, std::size_t size);
  // As hexadecimal digits, the most significant first.
  std::string finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string content_hash_of(std::string_view bytes);

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

}  // namespace gpipe
