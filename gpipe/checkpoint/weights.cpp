#include "gpipe/checkpoint/weights.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <vector>

namespace gpipe {
namespace {

bool starts_with(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

bool ends_with(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

std::string shape_of(const at::Tensor& tensor) { return fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")); }

// The first, and how many there are besides.
std::string first_of(const std::vector<std::string>& names) {
  const std::size_t others = names.size() - 1;
  return others == 0 ? fmt::format("\"{}\"", names.front())
                     : fmt::format("\"{}\" and {} other{}", names.front(), others, others == 1 ? "" : "s");
}

std::map<std::string, at::Tensor> tensors_by_name(const NamedTensors& tensors) {
  const std::string wrapper = "module.";  // what a data-parallel wrapper puts in front
  const bool is_wrapped = !tensors.empty() && std::all_of(tensors.begin(), tensors.end(), [&](const auto& item) {
    return starts_with(item.first, wrapper);
  });
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : tensors) {
    if (!starts_with(name, kAddedPrefix)) by_name[is_wrapped ? name.substr(wrapper.size()) : name] = tensor;
  }
  return by_name;
}

}  // namespace

NamedTensors weights_of(const torch::nn::Module& module) {
  NamedTensors weights;
  for (const auto& item : module.named_parameters()) weights.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) weights.emplace_back(item.key(), item.value());
  weights.erase(
      std::remove_if(weights.begin(), weights.end(), [](const auto& weight) { return !weight.second.defined(); }),
      weights.end());
  return weights;
}

void save_weights(const std::string& path, const torch::nn::Module& module,
                  const std::map<std::string, std::string>& metadata) {
  save_safetensors(path, {weights_of(module), metadata});
}

void load_weights(const std::string& path, torch::nn::Module& module) {
  load_weights(load_safetensors(path), path, module);
}

void load_weights(const Safetensors& content, const std::string& path, torch::nn::Module& module) {
  std::map<std::string, at::Tensor> loaded = tensors_by_name(content.tensors);
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  std::vector<std::string> missing;
  const auto fail = [&](const std::string& why) {
    throw CheckpointError(
        fmt::format("{} holds the weights of another model: {}; load them into the model they are of", path, why));
  };
  for (const auto& [name, weight] : weights_of(module)) {
    const auto found = loaded.find(name);
    if (found == loaded.end()) {
      if (!ends_with(name, "num_batches_tracked")) missing.push_back(name);
      continue;
    }
    if (found->second.sizes() != weight.sizes()) {
      fail(fmt::format("\"{}\" is of shape {} there, but {} here", name, shape_of(found->second), shape_of(weight)));
    }
    copies.emplace_back(weight, found->second);
    loaded.erase(found);
  }
  if (!missing.empty()) fail(fmt::format("it has no {}", first_of(missing)));
  std::vector<std::string> left;
  for (const auto& item : loaded) left.push_back(item.first);
  if (!left.empty()) fail(fmt::format("{} in it {} no place here", first_of(left), left.size() == 1 ? "has" : "have"));
  const torch::NoGradGuard no_grad;
  for (auto& [weight, value] : copies) weight.copy_(value);
}

}  // namespace gpipe
