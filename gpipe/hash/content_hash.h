// The hash of a file's bytes, which come piece by piece: XXH3 of 128 bits, that of `xxhsum -H2`. It tells damage, at
// the speed of memory; it is no signature.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

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

}  // namespace gpipe
