#include "gpipe/execute/all_ranks.h"

#include <torch/torch.h>

#include <map>
#include <vector>

#include "gpipe/checkpoint/layer_names.h"
#include "gpipe/checkpoint/weights.h"
#include "gpipe/execute/engine.h"
#include "gpipe/execute/registration_order.h"
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

bool any_rank(const Pipeline& pipeline, bool value) {
  detail::WireRecord own;
  own.add("value", value);
  for (const detail::WireRecord& given : pipeline->engine().group().gather(own)) {
    detail::WireReader reader(given, "this is not a rank's yes or no");
    value |= reader.flag("value");
    reader.finish();
  }
  return value;
}

void agree_on(const Pipeline& pipeline, const std::string& text) {
  pipeline->engine().group().compare({{kAgreedText, text}});
}

std::string of_first_rank(const Pipeline& pipeline, const std::string& text) {
  detail::WireRecord own;
  own.add("text", text);
  const detail::WireRecord first = pipeline->engine().group().gather(own).front();
  detail::WireReader reader(first, "this is not a rank's text");
  std::string of_first = reader.text("text");
  reader.finish();
  return of_first;
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
  std::vector<std::string> layer_names;
  for (int layer = 0; layer < pipeline->num_layers(); ++layer) layer_names.push_back(pipeline->layer_name(layer));
  NamedTensors weights;
  for (const bool is_parameter : {true, false}) {
    for (const int layer : registration_order(layer_names)) {
      for (auto& weight : found[{is_parameter, layer}]) weights.push_back(std::move(weight));
    }
  }
  return weights;
}

}  // namespace gpipe
