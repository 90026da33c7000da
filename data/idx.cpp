#include "data/idx.h"

#include <fmt/format.h>

#include "data/data_error.h"
#include "data/gzip.h"

namespace gpipe::data {
namespace {

constexpr std::uint8_t kUnsignedByte = 8;

std::uint8_t byte_at(std::string_view bytes, std::size_t at) { return static_cast<std::uint8_t>(bytes[at]); }

std::int64_t big_endian_at(std::string_view bytes, std::size_t at) {
  std::int64_t value = 0;
  for (std::size_t byte = 0; byte < 4; ++byte) value = value << 8 | byte_at(bytes, at + byte);
  return value;
}

void check_magic(std::string_view bytes, int num_dims, const std::string& file) {
  if (bytes.size() < 4) throw DataError(file, fmt::format("too short for IDX: {} bytes", bytes.size()), kFetchAgain);
  const auto expected = static_cast<std::int64_t>(kUnsignedByte) << 8 | num_dims;
  const std::int64_t magic = big_endian_at(bytes, 0);
  if (magic == expected) return;
  throw DataError(file,
                  fmt::format("wrong magic number 0x{:08x} at byte 0; expected 0x{:08x}, IDX with unsigned bytes in {} "
                              "dimension{}",
                              magic, expected, num_dims, num_dims == 1 ? "" : "s"),
                  "check that images and labels are not swapped, or " + std::string(kFetchAgain));
}

}  // namespace

IdxArray parse_idx(std::string_view bytes, int num_dims, const std::string& file) {
  check_magic(bytes, num_dims, file);
  const std::size_t header_bytes = 4 + 4 * static_cast<std::size_t>(num_dims);
  if (bytes.size() < header_bytes) {
    throw DataError(
        file, fmt::format("cut off in the dimensions: {} bytes, expected at least {}", bytes.size(), header_bytes),
        kFetchAgain);
  }
  const auto num_values = static_cast<std::int64_t>(bytes.size() - header_bytes);
  IdxArray array;
  std::int64_t expected = 1;
  bool is_more = false;  // than there are bytes; counted no further, so that no product overflows
  for (std::size_t at = 4; at < header_bytes; at += 4) {
    const std::int64_t size = big_endian_at(bytes, at);
    if (size == 0) throw DataError(file, fmt::format("dimension {} at byte {} is 0", at / 4 - 1, at), kFetchAgain);
    array.dims.push_back(size);
    is_more = is_more || size > num_values / expected;
    if (!is_more) expected *= size;
  }
  if (is_more || expected != num_values) {
    throw DataError(file,
                    fmt::format("{} bytes of values from byte {} on, expected {}", num_values, header_bytes,
                                fmt::join(array.dims, " x ")),
                    kFetchAgain);
  }
  array.values.assign(bytes.begin() + static_cast<std::ptrdiff_t>(header_bytes), bytes.end());
  return array;
}

IdxArray read_idx(const std::string& path, int num_dims) { return parse_idx(read_bytes(path), num_dims, path); }

}  // namespace gpipe::data
