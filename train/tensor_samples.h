// TensorSamples: the tensors of a safetensors file, whose first dimension is the sample.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"

namespace gpipe::train {

struct TensorSamples {
  std::string path;
  NamedTensors tensors;  // in the order of their names
  std::int64_t num_rows = 0;

  std::vector<std::string> names() const;
  // Those rows of every tensor; a slice of them.
  Tensors rows(const at::Tensor& indices) const;
  Tensors rows(std::int64_t begin, std::int64_t end) const;
};

// `option` is what messages call it, "--inputs". Throws UsageError if the file is not there, CheckpointError for one
// that is not sound, InvalidArgument for one without tensors or without samples, or with unequal numbers of them.
TensorSamples read_tensor_samples(const std::string& option, const std::string& path);

// The only tensor of the file. Throws InvalidArgument if it has several.
const at::Tensor& only_tensor(const std::string& option, const TensorSamples& samples);

// Throws InvalidArgument unless both have as many samples.
void check_as_many(const std::string& option, const TensorSamples& samples, const std::string& other_option,
                   const TensorSamples& others);

}  // namespace gpipe::train
