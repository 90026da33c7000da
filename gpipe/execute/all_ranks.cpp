#include "gpipe/execute/all_ranks.h"

#include <torch/torch.h>

#include <algorithm>
#include <map>

#include "gpipe/checkpoint/weights.h"
#include "gpipe/execute/registration_order.h"
#include "gpipe/transport/c10d/exchange.h"
#include "gpipe/transport/c10d/fingerprint.h"

namespace gpipe {
namespace {

std::vector<std::string> layer_names(const Pipeline& pipeline) {
  std::vector<std::string> names;
  for (int layer = 0; layer < pipeline->num_layers(); ++layer) names.push_back(pipeline->layer_name(layer));
  return names;
}

// Which of the layers has it; their number if none does.
int layer_of(const std::vector<std::string>& layers, const std::string& weight) {
  const auto found = std::find_if(layers.begin(), layers.end(), [&](const std::string& layer) {
    return weight.size() > layer.size() && weight[layer.size()] == '.' && weight.compare(0, layer.size(), layer) == 0;
  });
  return static_cast<int>(found - layers.begin());
}

}  // namespace

WeightsReport load_weights(const std::string& path, const Pipeline& pipeline, const LoadWeightsOptions& options) {
  const std::vector<std::string> layers = layer_names(pipeline);
  LoadWeightsOptions own = options;
  own.ignore = [&](const std::string& name) {
    const int layer = layer_of(layers, name);
    const bool is_elsewhere = layer < pipeline->num_layers() && !pipeline->runs_layer(layer);
    return is_elsewhere || (options.ignore && options.ignore(name));
  };
  return load_weights(path, *pipeline.ptr(), own);
}

bool any_rank(const Pipeline& pipeline, bool value) {
  if (pipeline->ranks() == nullptr) return value;
  for (const std::string& given : pipeline->ranks()->exchange().gather(value ? "yes" : "no")) value |= given == "yes";
  return value;
}

std::string of_first_rank(const Pipeline& pipeline, const std::string& text) {
  return pipeline->ranks() == nullptr ? text : pipeline->ranks()->exchange().gather(text).front();
}

NamedTensors gather_weights(const Pipeline& pipeline) {
  if (pipeline->ranks() == nullptr) return weights_of(*pipeline);
  const std::size_t num_parameters = pipeline->named_parameters().size();
  Fingerprint names;
  Tensors own(1);
  const bool gives = pipeline->ranks()->own_replica() == 0;  // the other replicas have the same
  for (const auto& [name, tensor] : gives ? weights_of(*pipeline) : NamedTensors()) {
    names.emplace_back(names.size() < num_parameters ? "parameter" : "buffer", name);
    own.push_back(tensor.detach());
  }
  own[0] = to_tensor(encode(names));

  const std::vector<std::string> layers = layer_names(pipeline);
  std::map<std::pair<std::string, int>, NamedTensors> found;  // by kind and layer
  for (const Tensors& given : pipeline->ranks()->exchange().collect(own)) {
    std::size_t next = 1;
    for (const auto& [kind, name] : decode_fingerprint(to_text(given.at(0)))) {
      found[{kind, layer_of(layers, name)}].emplace_back(name, given.at(next++));
    }
  }
  NamedTensors weights;
  for (const char* kind : {"parameter", "buffer"}) {
    for (const int layer : registration_order(layers)) {
      for (auto& weight : found[{kind, layer}]) weights.push_back(std::move(weight));
    }
  }
  return weights;
}

}  // namespace gpipe
