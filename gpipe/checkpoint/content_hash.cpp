#include "gpipe/checkpoint/content_hash.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "gpipe/os/input_file.h"
#include "gpipe/os/output_file.h"

#define XXH_INLINE_ALL  // of this one file: a program needs no further library
#include <xxhash.h>

namespace gpipe {
namespace {

constexpr std::size_t kReadPiece = std::size_t{1} << 18;  // stays in the cache until it is hashed

}  // namespace

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

InputFile::InputFile(const std::string& path) : path_(path), file_(opened_file(path).descriptor) {}

void InputFile::read_piece(char* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t got = ::read(file_.get(), bytes, size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_file_error(path_, "cannot be read");
    if (got == 0) throw CheckpointError(path_, " became shorter while it was read; try again");
    bytes += got;
    size -= static_cast<std::size_t>(got);
  }
}

void InputFile::read(void* bytes, std::size_t size, ContentHash* hash) {
  auto* next = static_cast<char*>(bytes);
  for (std::size_t piece = 0; size > 0; next += piece, size -= piece) {
    piece = std::min(size, kReadPiece);
    read_piece(next, piece);
    if (hash != nullptr) hash->add(next, piece);
  }
}

void InputFile::read_past(std::size_t size, ContentHash* hash) {
  if (hash == nullptr) {
    if (lseek(file_.get(), static_cast<off_t>(size), SEEK_CUR) < 0) throw_file_error(path_, "cannot be read");
    return;
  }
  std::vector<char> bytes(std::min(size, kReadPiece));
  for (std::size_t piece = 0; size > 0; size -= piece) {
    piece = std::min(size, kReadPiece);
    read(bytes.data(), piece, hash);
  }
}

}  // namespace gpipe
