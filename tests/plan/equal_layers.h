// A profile whose layers all cost the same.
#pragma once

#include <string>

#include "gpipe/plan/profile.h"

namespace gpipe::test {

inline Profile equal_layers(int num_layers) {
  Profile profile;
  for (int index = 0; index < num_layers; ++index) {
    LayerProfile layer;
    layer.name = "layer" + std::to_string(index);
    layer.forward_seconds = 1;
    layer.backward_seconds = 2;
    layer.parameter_bytes = 10;
    layer.activation_bytes = 100;
    layer.output_bytes = 1000;
    profile.layers.push_back(layer);
  }
  return profile;
}

}  // namespace gpipe::test
