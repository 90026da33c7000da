#include "gpipe/hash/content_hash.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL  // of this one file: a program needs no further library
#include <xxhash.h>

namespace gpipe {

struct ContentHash::State {
  XXH3_state_t xxh3;
};

ContentHash::ContentHash() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh3); }

ContentHash::~ContentHash() = default;

void ContentHash::add(const void* bytes, std::size_t size) { XXH3_128bits_update(&state_->xxh3, bytes, size); }

std::string ContentHash::finish() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh3);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string content_hash_of(std::string_view bytes) {
  ContentHash hash;
  hash.add(bytes.data(), bytes.size());
  return hash.finish();
}

}  // namespace gpipe
