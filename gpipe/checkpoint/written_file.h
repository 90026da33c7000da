// A safetensors file that is written in place, for who puts a whole folder in place.
#pragma once

#include <cstdint>
#include <string>

#include "gpipe/checkpoint/safetensors.h"
#include "gpipe/os/file_system.h"

namespace gpipe::detail {

struct WrittenFile {
  std::int64_t bytes = 0;
  std::string hash;  // see ContentHash
};

// The same as save_safetensors, but for the rename: the file is flushed, and has its own name from the beginning.
WrittenFile write_safetensors(FileSystem& files, const std::string& path, const Safetensors& content);

}  // namespace gpipe::detail
