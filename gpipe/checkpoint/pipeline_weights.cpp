#include "gpipe/checkpoint/pipeline_weights.h"

#include <torch/torch.h>

#include <map>
#include <utility>
#include <vector>

#include "gpipe/checkpoint/layer_names.h"
#include "gpipe/execute/engine/engine.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe {

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

  const LayerNames layers(*pipeline);
  std::map<std::pair<bool, int>, NamedTensors> found;  // by whether they are parameters, and by layer
  for (const detail::WireRecord& given : pipeline->engine().group().collect(own)) {
    detail::WireReader reader(given, "these are not weights of a rank");
    const std::size_t count = reader.num_rows({"names", "tensors"});
    const auto num_parameters = reader.integer<std::int64_t>("num_parameters", 0, static_cast<std::int64_t>(count));
    const std::vector<std::string>& of_rank = reader.texts("names");
    const Tensors values = reader.tensors("tensors");
    reader.finish();
    for (std::size_t index = 0; index < count; ++index) {
      const bool is_parameter = index < static_cast<std::size_t>(num_parameters);
      found[{is_parameter, layers.layer_of(of_rank[index])}].emplace_back(of_rank[index], values[index]);
    }
  }
  NamedTensors weights;
  for (const bool is_parameter : {true, false}) {
    for (const int layer : pipeline->engine().model().registration_order()) {
      for (auto& weight : found[{is_parameter, layer}]) weights.push_back(std::move(weight));
    }
  }
  return weights;
}

}  // namespace gpipe
