// Safetensors: named tensors in one file, the format that other frameworks read and write too.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/error.h"

namespace gpipe {

// A file that cannot be read or written, or does not hold what it should.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct Safetensors {
  NamedTensors tensors;  // on the CPU, in the order of their names
  std::map<std::string, std::string> metadata;
};

// The file appears whole or not at all: it is written under another name, flushed to the disk and renamed. An existing one
// is replaced. Throws CheckpointError; throws InvalidArgument for a name that is given twice or reserved, and for a tensor
// of a type that the format does not have.
void save_safetensors(const std::string& path, const Safetensors& content);

// Throws CheckpointError for whatever does not follow the format to the letter, before any tensor is made from it.
Safetensors load_safetensors(const std::string& path);

}  // namespace gpipe
