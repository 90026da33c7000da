// Even share: which rows of a batch each of several takes, micro-batches and replicas alike.
#pragma once

#include <algorithm>
#include <cstdint>

namespace gpipe::detail {

struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// Part `part` of `num_parts`: consecutive rows, in the order of the parts, which differ by at most one row, the larger
// ones first, as in tensor_split. Seven rows in three parts:
//
//   row    0 1 2 3 4 5 6
//   part   0 0 0 1 1 2 2
//
// REQUIRES: rows >= 0, 0 <= part < num_parts.
inline RowRange even_share(std::int64_t rows, std::int64_t part, std::int64_t num_parts) {
  const std::int64_t remainder = rows % num_parts;
  return {rows / num_parts * part + std::min(part, remainder), rows / num_parts + (part < remainder ? 1 : 0)};
}

}  // namespace gpipe::detail
