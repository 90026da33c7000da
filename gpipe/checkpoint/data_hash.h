// The hash of its own data that a safetensors file carries: see kDataHashKey.
#pragma once

#include <string>
#include <string_view>

#include "gpipe/checkpoint_files/safetensors_header.h"

namespace gpipe {

// What a file says about its data, and what is wrong with that; both empty if it says nothing.
struct DataHash {
  std::string hash;
  std::string problem;
};

// Compares it with the data of the file, and takes it out of the header's metadata. `file` is the whole file.
DataHash take_data_hash(SafetensorsHeader& header, std::string_view file);

}  // namespace gpipe
