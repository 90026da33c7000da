#include "gpipe/model/sandbox.h"

#include <ATen/ATen.h>

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

Sandbox::Sandbox(const std::vector<ChainLayer>& layers) : listeners_(find_listeners(layers)) {
  for (const ChainLayer& layer : layers) {
    for (const at::Tensor& buffer : layer.layer.module->buffers()) {
      if (buffer.defined()) buffers_.emplace_back(buffer, buffer.detach().clone());
    }
  }
}

void Sandbox::keep() {
  buffers_.clear();
  listeners_.clear();
}

Sandbox::~Sandbox() {
  for (StepListener* listener : listeners_) listener->abandon_step();
  const at::NoGradGuard no_grad;
  for (auto& [buffer, copy] : buffers_) buffer.copy_(copy);
}

}  // namespace gpipe
