// The header of a safetensors file: which tensors are where in it. Plain values, no torch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "gpipe/error.h"

namespace gpipe {

// Note [The file]
// ~~~~~~~~~~~~~~~
//   8 bytes  length of the header, little-endian
//   header   JSON: {"__metadata__": {key: text}, name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
//            and spaces behind it
//   data     the tensors' bytes, little-endian, one after the other; the offsets count from here, and leave no gaps
//
// Written here, the data begins at a multiple of 8, and tensors of wider elements come before those of narrower ones:
// every element is aligned.
struct SafetensorsType {
  const char* name;  // "F32"
  int bytes;         // of an element
};

// Null if there is no such type.
const SafetensorsType* find_safetensors_type(std::string_view name);

struct SafetensorsEntry {
  std::string name;
  const SafetensorsType* type = nullptr;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  // in the data
  std::int64_t end = 0;

  std::int64_t num_bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their names
  std::map<std::string, std::string> metadata;
  std::int64_t data_start = 0;  // in the file
};

// Reads the header of a file that is in memory as a whole. Throws CheckpointError for whatever does not follow the
// format to the letter. What is returned is within the file, byte for byte; nothing is allocated that the file does not
// pay for with bytes of its own.
SafetensorsHeader parse_safetensors(std::string_view file, const std::string& path);

// What stands in front of the data: length and header. Orders the entries and fills in where they begin and end. Throws
// InvalidArgument for a name that is given twice or reserved, for what is not UTF-8, and for more than a header may
// hold.
std::string make_safetensors_header(std::vector<SafetensorsEntry>& entries,
                                    const std::map<std::string, std::string>& metadata);

}  // namespace gpipe
