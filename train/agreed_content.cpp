#include "train/agreed_content.h"

#include <fmt/format.h>

#include <cstdint>

#include "gpipe/checkpoint/content_hash.h"

namespace gpipe::train {

std::string agreed_weights(const std::string& option, const Safetensors& content) {
  ContentHash hash;
  std::size_t num_bytes = 0;
  for (const auto& [name, tensor] : content.tensors) {
    const at::Tensor values = tensor.contiguous();
    const std::string described =
        fmt::format("{} {} [{}]\n", name, static_cast<int>(values.scalar_type()), fmt::join(values.sizes(), ","));
    hash.add(described.data(), described.size());
    hash.add(values.data_ptr(), values.nbytes());
    num_bytes += values.nbytes();
  }
  return fmt::format("{}: {} tensors of {} bytes with the hash {}", option, content.tensors.size(), num_bytes,
                     hash.finish());
}

std::string agreed_training_data(const std::string& options, const Task& task) {
  return fmt::format("{}: {} batches an epoch of data with the hash {}", options, task.num_batches(), task.data_hash());
}

std::string agreed_test_data(const std::string& options, const Task& task) {
  return fmt::format("{}: test data with the hash {}", options, task.test_hash());
}

}  // namespace gpipe::train
