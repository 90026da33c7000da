#include "gpipe/checkpoint/weights.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>

#include "gpipe/checkpoint/checkpoint_files.h"
#include "gpipe/checkpoint/model_place.h"
#include "gpipe/checkpoint_files/checkpoint_folder.h"

namespace gpipe {
namespace {

bool starts_with(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

bool ends_with(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

std::string shape_of(const at::Tensor& tensor) { return fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")); }

// The first ones, and how many there are besides.
std::string listed(const std::vector<std::string>& items) {
  constexpr std::size_t kShown = 8;
  const std::size_t shown = std::min(items.size(), kShown);
  const std::string text = fmt::format("{}", fmt::join(items.begin(), items.begin() + shown, ", "));
  const std::size_t others = items.size() - shown;
  return others == 0 ? text : fmt::format("{} and {} other{}", text, others, others == 1 ? "" : "s");
}

std::string renamed(const std::string& name, const std::map<std::string, std::string>& rename) {
  const auto whole = rename.find(name);
  if (whole != rename.end()) return whole->second;
  const std::pair<const std::string, std::string>* best = nullptr;
  for (const auto& item : rename) {
    const bool fits = ends_with(item.first, ".") && starts_with(name, item.first);
    if (fits && (best == nullptr || item.first.size() > best->first.size())) best = &item;
  }
  return best == nullptr ? name : best->second + name.substr(best->first.size());
}

std::map<std::string, at::Tensor> tensors_by_name(const NamedTensors& tensors, const std::string& path,
                                                  const LoadWeightsOptions& options) {
  const std::string wrapper = "module.";  // what a data-parallel wrapper puts in front
  const bool is_wrapped = !tensors.empty() && std::all_of(tensors.begin(), tensors.end(), [&](const auto& item) {
    return starts_with(item.first, wrapper);
  });
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [full_name, tensor] : tensors) {
    if (starts_with(full_name, kAddedPrefix)) continue;
    std::string name = is_wrapped ? full_name.substr(wrapper.size()) : full_name;
    if (!starts_with(name, options.prefix)) continue;
    name = renamed(name.substr(options.prefix.size()), options.rename);
    if (options.ignore && options.ignore(name)) continue;
    if (by_name.emplace(name, tensor).second) continue;
    throw CheckpointError(path, fmt::format(": two of its tensors would be \"{}\"; correct the new names", name));
  }
  return by_name;
}

void refuse(const WeightsReport& report, const std::string& path) {
  std::vector<std::string> reasons;
  if (!report.mismatched.empty()) reasons.push_back(fmt::format("of other shapes are {}", listed(report.mismatched)));
  if (!report.missing.empty()) reasons.push_back(fmt::format("it has no {}", listed(report.missing)));
  if (!report.unexpected.empty()) {
    reasons.push_back(fmt::format("there is no place here for its {}", listed(report.unexpected)));
  }
  if (reasons.empty()) return;
  throw CheckpointError(path, fmt::format(" holds the weights of another model: {}; load them into the model they are "
                                          "of, or what fits of them, not strict",
                                          fmt::join(reasons, "; ")));
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

WeightsReport load_weights(const std::string& path, torch::nn::Module& module, const LoadWeightsOptions& options) {
  return load_weights(load_model(path), path, module, options);
}

WeightsReport load_weights(const Safetensors& content, const std::string& path, torch::nn::Module& module,
                           const LoadWeightsOptions& options) {
  std::map<std::string, at::Tensor> loaded = tensors_by_name(content.tensors, path, options);
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  WeightsReport report;
  for (const auto& [name, weight] : weights_of(module)) {
    const auto found = loaded.find(name);
    if (found == loaded.end()) {
      if (!ends_with(name, "num_batches_tracked")) report.missing.push_back(fmt::format("\"{}\"", name));
      continue;
    }
    if (found->second.sizes() == weight.sizes()) {
      copies.emplace_back(weight, found->second);
    } else {
      report.mismatched.push_back(
          fmt::format("\"{}\": {} there, {} here", name, shape_of(found->second), shape_of(weight)));
    }
    loaded.erase(found);
  }
  for (const auto& item : loaded) report.unexpected.push_back(fmt::format("\"{}\"", item.first));
  if (options.strict) refuse(report, path);
  report.num_loaded = static_cast<int>(copies.size());
  const torch::NoGradGuard no_grad;
  for (auto& [weight, value] : copies) weight.copy_(value);
  return report;
}

Safetensors load_model(const std::string& path) {
  const ModelPlace place = find_model(path);
  if (place.kind == ModelPlace::kFile) return load_safetensors(place.path);
  if (place.kind == ModelPlace::kSet) return load_safetensors_set(place.path);
  check_hashes(place.path, model_files(read_manifest(place.path)));
  return load_safetensors_set(place.path + "/" + kIndexName);
}

}  // namespace gpipe
