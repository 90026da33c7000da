#include "gpipe/execute/all_ranks.h"

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <vector>

#include "gpipe/checkpoint/layer_names.h"
#include "gpipe/checkpoint/weights.h"
#include "gpipe/execute/engine.h"
#include "gpipe/execute/registration_order.h"
#include "gpipe/transport/c10d/exchange.h"
#include "gpipe/transport/c10d/fingerprint.h"

namespace gpipe {
namespace {

// By rank.
std::vector<std::string> gather_text(const Pipeline& pipeline, const std::string& text) {
  std::vector<std::string> of_rank;
  for (const Tensors& given : pipeline->engine().group().gather({to_tensor(text)})) {
    of_rank.push_back(to_text(given.at(0)));
  }
  return of_rank;
}

}  // namespace

WeightsReport load_weights(const std::string& path, const Pipeline& pipeline, const LoadWeightsOptions& options) {
  return load_weights(load_model(path), path, pipeline, options);
}

WeightsReport load_weights(const Safetensors& content, const std::string& path, const Pipeline& pipeline,
                           const LoadWeightsOptions& options) {
  const LayerNames layers(*pipeline);
  LoadWeightsOptions own = options;
  own.ignore = [&](const std::string& name) {
    return layers.is_elsewhere(name) || (options.ignore && options.ignore(name));
  };
  return load_weights(content, path, *pipeline.ptr(), own);
}

bool any_rank(const Pipeline& pipeline, bool value) {
  const std::vector<std::string> said = gather_text(pipeline, value ? "yes" : "no");
  return std::count(said.begin(), said.end(), "yes") > 0;
}

void agree_on(const Pipeline& pipeline, const std::string& text) {
  pipeline->engine().group().compare({{kAgreedText, text}});
}

std::string of_first_rank(const Pipeline& pipeline, const std::string& text) {
  return gather_text(pipeline, text).front();
}

NamedTensors gather_weights(const Pipeline& pipeline) {
  const std::size_t num_parameters = pipeline->named_parameters().size();
  Fingerprint names;
  Tensors own(1);
  const bool gives = pipeline->world().replica() == 0;  // the other replicas have the same
  for (const auto& [name, tensor] : gives ? weights_of(*pipeline) : NamedTensors()) {
    names.emplace_back(names.size() < num_parameters ? "parameter" : "buffer", name);
    own.push_back(tensor.detach());
  }
  own[0] = to_tensor(encode(names));

  const LayerNames layers(*pipeline);
  std::map<std::pair<std::string, int>, NamedTensors> found;  // by kind and layer
  for (const Tensors& given : pipeline->engine().group().collect(own)) {
    std::size_t next = 1;
    for (const auto& [kind, name] : decode_fingerprint(to_text(given.at(0)))) {
      found[{kind, layers.layer_of(name)}].emplace_back(name, given.at(next++));
    }
  }
  std::vector<std::string> layer_names;
  for (int layer = 0; layer < pipeline->num_layers(); ++layer) layer_names.push_back(pipeline->layer_name(layer));
  NamedTensors weights;
  for (const char* kind : {"parameter", "buffer"}) {
    for (const int layer : registration_order(layer_names)) {
      for (auto& weight : found[{kind, layer}]) weights.push_back(std::move(weight));
    }
  }
  return weights;
}

}  // namespace gpipe
