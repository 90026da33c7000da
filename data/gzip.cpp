#include "data/gzip.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include "data/data_error.h"

namespace gpipe::data {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

bool is_gzip(std::string_view bytes) { return bytes.size() >= 2 && bytes[0] == '\x1f' && bytes[1] == '\x8b'; }

bool is_named_gzip(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  return extension == ".gz" || extension == ".dz";
}

[[noreturn]] void throw_too_large(const std::string& file, const char* how, std::int64_t max_bytes) {
  throw DataError(file, fmt::format("{} more than {} bytes", how, max_bytes),
                  fmt::format("no file may be longer: check that it is the right one, or {}", kFetchAgain));
}

std::string read_raw(const std::string& path, std::int64_t max_bytes) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  errno = is_folder ? EISDIR : 0;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(is_folder ? nullptr : std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (file == nullptr) {
    const std::string problem = fmt::format("cannot read it: {}", std::strerror(errno));
    const char* const remedy = "check the path and its permissions";
    throw errno == ENOENT ? DataError::missing(path, problem, remedy) : DataError(path, problem, remedy);
  }
  std::string bytes;
  // A hint only: what is read decides.
  const std::uintmax_t size_hint = std::filesystem::file_size(path, ignored);
  if (!ignored && size_hint <= static_cast<std::uintmax_t>(max_bytes)) bytes.reserve(size_hint + 1);
  std::size_t num_read = 0;
  do {
    const std::size_t old_size = bytes.size();
    bytes.resize(old_size + std::min(std::max(bytes.capacity() - old_size, std::size_t{4096}), kChunkBytes));
    num_read = std::fread(&bytes[old_size], 1, bytes.size() - old_size, file.get());
    bytes.resize(old_size + num_read);
    if (static_cast<std::int64_t>(bytes.size()) > max_bytes) throw_too_large(path, "has", max_bytes);
  } while (num_read > 0);
  if (std::ferror(file.get()) != 0) {
    throw DataError(path, fmt::format("cannot read it past byte {}: {}", bytes.size(), std::strerror(errno)),
                    kFetchAgain);
  }
  if (bytes.empty()) throw DataError(path, "empty", kFetchAgain);
  return bytes;
}

uInt as_count(std::size_t size) {
  return static_cast<uInt>(std::min<std::size_t>(size, std::numeric_limits<uInt>::max()));
}

// zlib's state, and how far it has come in both texts.
class Inflater {
 public:
  Inflater(std::string_view bytes, std::size_t max_bytes) : bytes_(bytes), max_bytes_(max_bytes) {
    constexpr int kGzipOnly = 16;
    if (inflateInit2(&stream_, MAX_WBITS + kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // Unpacks as much as there is room for; makes some first. Returns zlib's status.
  int step() {
    if (num_unpacked_ == unpacked_.size()) {
      const std::size_t wanted = std::max({std::size_t{1} << 16, 3 * bytes_.size(), 2 * unpacked_.size()});
      unpacked_.resize(std::min(wanted, max_bytes_ + 1));
    }
    const uInt given = as_count(bytes_.size() - at_);
    const uInt room = as_count(unpacked_.size() - num_unpacked_);
    // zlib does not write through next_in; its type is from before const.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes_.data() + at_));
    stream_.avail_in = given;
    stream_.next_out = reinterpret_cast<Bytef*>(&unpacked_[num_unpacked_]);
    stream_.avail_out = room;
    const int status = inflate(&stream_, Z_NO_FLUSH);
    at_ += given - stream_.avail_in;
    num_unpacked_ += room - stream_.avail_out;
    if (status == Z_MEM_ERROR) throw std::bad_alloc();
    return status;
  }
  void start_next_member() { inflateReset(&stream_); }

  std::size_t at() const { return at_; }
  std::string_view rest() const { return bytes_.substr(at_); }
  bool is_too_large() const { return num_unpacked_ > max_bytes_; }
  bool is_full() const { return num_unpacked_ == unpacked_.size(); }
  const char* message() const { return stream_.msg == nullptr ? "bad data" : stream_.msg; }
  std::string take() {
    unpacked_.resize(num_unpacked_);
    return std::move(unpacked_);
  }

 private:
  z_stream stream_ = {};
  std::string_view bytes_;
  std::size_t max_bytes_;
  std::size_t at_ = 0;
  std::string unpacked_;
  std::size_t num_unpacked_ = 0;
};

}  // namespace

std::string gunzip(std::string_view bytes, const std::string& file, std::int64_t max_bytes) {
  Inflater inflater(bytes, static_cast<std::size_t>(max_bytes));
  for (;;) {
    const int status = inflater.step();
    if (inflater.is_too_large()) throw_too_large(file, "unpacks to", max_bytes);
    if (status == Z_STREAM_END) {
      const std::string_view rest = inflater.rest();
      if (rest.empty()) break;
      if (!is_gzip(rest)) {
        throw DataError(file,
                        fmt::format("{} bytes follow the end of the gzip data at byte {}", rest.size(), inflater.at()),
                        kFetchAgain);
      }
      inflater.start_next_member();
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      throw DataError(file, fmt::format("corrupt gzip data at byte {}: {}", inflater.at(), inflater.message()),
                      kFetchAgain);
    } else if (inflater.rest().empty() && !inflater.is_full()) {
      throw DataError(file, fmt::format("cut off: the gzip data goes on behind the last of {} bytes", bytes.size()),
                      kFetchAgain);
    }
  }
  std::string unpacked = inflater.take();
  if (unpacked.empty()) throw DataError(file, "empty: there is nothing in the gzip data", kFetchAgain);
  return unpacked;
}

std::string read_bytes(const std::string& path, std::int64_t max_bytes) {
  std::string bytes = read_raw(path, max_bytes);
  if (is_gzip(bytes)) return gunzip(bytes, path, max_bytes);
  if (is_named_gzip(path)) throw DataError(path, "not gzip, though its name says so", kFetchAgain);
  return bytes;
}

}  // namespace gpipe::data
