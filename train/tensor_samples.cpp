#include "train/tensor_samples.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/files.h"

namespace gpipe::train {

std::vector<std::string> TensorSamples::names() const {
  std::vector<std::string> names;
  for (const auto& item : tensors) names.push_back(item.first);
  return names;
}

Tensors TensorSamples::rows(const at::Tensor& indices) const {
  Tensors rows;
  for (const auto& item : tensors) rows.push_back(item.second.index_select(0, indices));
  return rows;
}

Tensors TensorSamples::rows(std::int64_t begin, std::int64_t end) const {
  Tensors rows;
  for (const auto& item : tensors) rows.push_back(item.second.slice(0, begin, end));
  return rows;
}

TensorSamples read_tensor_samples(const std::string& option, const std::string& path) {
  cli::require_input(path);
  TensorSamples samples{path, load_safetensors(path).tensors};
  if (samples.tensors.empty()) {
    throw InvalidArgument(fmt::format("{} {} holds no tensors; save them with safetensors, one a name", option, path));
  }
  const auto& [first_name, first] = samples.tensors.front();
  for (const auto& [name, tensor] : samples.tensors) {
    if (tensor.dim() == 0 || tensor.size(0) == 0) {
      throw InvalidArgument(fmt::format("{} {}: \"{}\" is [{}], without samples; the first dimension is the sample",
                                        option, path, name, fmt::join(tensor.sizes(), ", ")));
    }
    if (tensor.size(0) == first.size(0)) continue;
    throw InvalidArgument(fmt::format(
        "{} {}: \"{}\" has {} samples, but \"{}\" has {}; the first dimension is the sample, and all have as many",
        option, path, first_name, first.size(0), name, tensor.size(0)));
  }
  samples.num_rows = first.size(0);
  return samples;
}

const at::Tensor& only_tensor(const std::string& option, const TensorSamples& samples) {
  if (samples.tensors.size() == 1) return samples.tensors.front().second;
  throw InvalidArgument(fmt::format("{} {} holds {} tensors, {}; the loss takes one: save it in a file by itself",
                                    option, samples.path, samples.tensors.size(), fmt::join(samples.names(), ", ")));
}

void check_as_many(const std::string& option, const TensorSamples& samples, const std::string& other_option,
                   const TensorSamples& others) {
  if (samples.num_rows == others.num_rows) return;
  throw InvalidArgument(fmt::format("{} {} has {} samples, but {} {} has {}; every sample needs its target", option,
                                    samples.path, samples.num_rows, other_option, others.path, others.num_rows));
}

}  // namespace gpipe::train
