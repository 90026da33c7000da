#include "gpipe/checkpoint/layer_names.h"

#include <algorithm>
#include <string_view>

#include "gpipe/checkpoint/weights.h"
#include "gpipe/execute/engine/engine.h"
#include "gpipe/model/weight_names.h"

namespace gpipe::detail {

bool is_added(const std::string& name) {
  const std::string_view prefix = kAddedPrefix;
  return name.compare(0, prefix.size(), prefix) == 0;
}

LayerNames::LayerNames(const PipelineImpl& pipeline) : pipeline_(pipeline) {
  const std::vector<int>& layers_per_stage = pipeline.layers_per_stage();
  num_stages_ = std::max(1, static_cast<int>(layers_per_stage.size()));
  for (int stage = 0; stage < static_cast<int>(layers_per_stage.size()); ++stage) {
    stage_of_layer_.insert(stage_of_layer_.end(), static_cast<std::size_t>(layers_per_stage[stage]), stage);
  }
  stage_of_layer_.resize(static_cast<std::size_t>(pipeline.num_layers()));
}

int LayerNames::layer_of(const std::string& name) const {
  const WeightNames& names = pipeline_.engine().model().weight_names();
  int layer = names.layer_of(name);
  const std::size_t slash = name.rfind('/');
  if (layer == WeightNames::kNoLayer && slash != std::string::npos) layer = names.layer_of(name.substr(0, slash));
  return layer == WeightNames::kNoLayer ? pipeline_.num_layers() : layer;
}

int LayerNames::stage_of(const std::string& name) const {
  const int layer = layer_of(name);
  return layer < pipeline_.num_layers() ? stage_of_layer_[layer] : 0;
}

bool LayerNames::is_elsewhere(const std::string& name) const {
  const int layer = layer_of(name);
  return layer < pipeline_.num_layers() && !pipeline_.runs_layer(layer);
}

bool LayerNames::saves_stage(int stage) const {
  // Before there are stages, every rank has all layers.
  if (pipeline_.layers_per_stage().empty()) return pipeline_.world().rank == 0;
  const auto first = std::find(stage_of_layer_.begin(), stage_of_layer_.end(), stage);
  return pipeline_.world().replica() == 0 && pipeline_.runs_layer(static_cast<int>(first - stage_of_layer_.begin()));
}

}  // namespace gpipe::detail
