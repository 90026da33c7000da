#include "gpipe/checkpoint/weights.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "gpipe/checkpoint/checkpoint_files.h"
#include "gpipe/checkpoint/layer_names.h"
#include "gpipe/checkpoint/model_place.h"
#include "gpipe/checkpoint_files/checkpoint_folder.h"
#include "gpipe/execute/engine/engine.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe {
namespace {

using detail::is_added;

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
    if (is_added(full_name)) continue;
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
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      if (item.value().defined()) weights.emplace_back(item.key(), item.value());
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
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

WeightsReport load_weights(const std::string& path, const Pipeline& pipeline, const LoadWeightsOptions& options) {
  return load_weights(load_model(path), path, pipeline, options);
}

WeightsReport load_weights(const Safetensors& content, const std::string& path, const Pipeline& pipeline,
                           const LoadWeightsOptions& options) {
  const detail::LayerNames layers(*pipeline);
  LoadWeightsOptions own = options;
  own.ignore = [&](const std::string& name) {
    return layers.is_elsewhere(name) || (options.ignore && options.ignore(name));
  };
  return load_weights(content, path, *pipeline.ptr(), own);
}

NamedTensors gather_weights(const Pipeline& pipeline) {
  std::vector<std::string> names;
  Tensors tensors;
  const bool gives = pipeline->world().replica() == 0;  // the other replicas have the same
  for (const auto& [name, tensor] : gives ? weights_of(*pipeline) : NamedTensors()) {
    names.push_back(name);
    tensors.push_back(tensor.detach());
  }
  detail::WireRecord own;
  own.add("num_parameters", gives ? pipeline->named_parameters().size() : 0);
  own.add("names", std::move(names));
  own.add("tensors", tensors);

  const detail::LayerNames layers(*pipeline);
  const detail::ScopeTree& scopes = pipeline->engine().model().scopes();
  std::map<std::pair<bool, int>, NamedTensors> found;  // parameters before buffers; by place
  for (const detail::WireRecord& given : pipeline->engine().group().collect(own)) {
    detail::WireReader reader(given, "these are not weights of a rank");
    const std::size_t count = reader.num_rows({"names", "tensors"});
    const auto num_parameters = reader.integer<std::int64_t>("num_parameters", 0, static_cast<std::int64_t>(count));
    const std::vector<std::string>& of_rank = reader.texts("names");
    const Tensors values = reader.tensors("tensors");
    reader.finish();
    for (std::size_t index = 0; index < count; ++index) {
      const bool is_parameter = index < static_cast<std::size_t>(num_parameters);
      const int layer = layers.layer_of(of_rank[index]);
      const int place = layer < pipeline->num_layers() ? scopes.place_of(layer, of_rank[index]) : scopes.num_places();
      found[{!is_parameter, place}].emplace_back(of_rank[index], values[index]);
    }
  }
  NamedTensors weights;
  for (auto& [place, of_place] : found) {
    for (auto& weight : of_place) weights.push_back(std::move(weight));
  }
  return weights;
}

Safetensors load_model(const std::string& path) {
  const detail::ModelPlace place = detail::find_model(path);
  if (place.kind == detail::ModelPlace::kFile) return load_safetensors(place.path);
  if (place.kind == detail::ModelPlace::kSet) return load_safetensors_set(place.path);
  detail::check_hashes(place.path, detail::model_files(read_manifest(place.path)));
  return load_safetensors_set(place.path + "/" + kIndexName);
}

}  // namespace gpipe
