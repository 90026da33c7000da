#include "gpipe/model/sandbox.h"

#include <torch/nn/module.h>

namespace gpipe {

std::vector<StepListener*> find_listeners(const std::vector<ChainLayer>& layers) {
  std::vector<StepListener*> listeners;
  for (const ChainLayer& layer : layers) {
    for (const auto& module : layer.layer.module->modules(/*include_self=*/true)) {
      if (auto* listener = dynamic_cast<StepListener*>(module.get())) listeners.push_back(listener);
    }
  }
  return listeners;
}

Sandbox::Sandbox(const std::vector<ChainLayer>& layers)
    : buffers_(layers), copies_(buffers_.snapshot()), listeners_(find_listeners(layers)) {}

Sandbox::~Sandbox() {
  for (StepListener* listener : listeners_) listener->abandon_step();
  buffers_.put_back(copies_);
}

}  // namespace gpipe
