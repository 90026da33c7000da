// IDX, the format of MNIST's files: a magic number, the dimensions, the values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe::data {

//   byte   0  1  2     3         4 ...                    4 + 4 * dims ...
//          0  0  type  num dims  dims, 32 bits big-endian  values, row by row
// Only type 8, unsigned bytes, is read.
struct IdxArray {
  std::vector<std::int64_t> dims;    // at least one, each at least 1
  std::vector<std::uint8_t> values;  // as many as the product of the dims
};

// Throws DataError, with `file` in its message, unless the bytes are an IDX array of `num_dims` dimensions and nothing
// else.
IdxArray parse_idx(std::string_view bytes, int num_dims, const std::string& file);

// The same from a file, plain or gzip.
IdxArray read_idx(const std::string& path, int num_dims);

}  // namespace gpipe::data
