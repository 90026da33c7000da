#include "gpipe/checkpoint/hashed_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "gpipe/checkpoint/safetensors.h"
#include "gpipe/os/input_file.h"
#include "gpipe/os/output_file.h"

namespace gpipe::detail {
namespace {

constexpr std::size_t kReadPiece = std::size_t{1} << 18;  // stays in the cache until it is hashed

}  // namespace

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

DataHash take_data_hash(SafetensorsHeader& header, std::string_view file) {
  const auto said = header.metadata.find(kDataHashKey);
  if (said == header.metadata.end()) return {};
  DataHash hash{said->second, ""};
  header.metadata.erase(said);
  if (content_hash_of(file.substr(static_cast<std::size_t>(header.data_start))) != hash.hash) {
    hash.problem = fmt::format(
        "its tensors do not have the hash that its metadata says (\"{}\", which a program that changes the tensors has "
        "to "
        "leave out)",
        kDataHashKey);
  }
  return hash;
}

}  // namespace gpipe::detail
