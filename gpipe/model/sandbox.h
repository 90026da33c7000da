// Sandbox: a model can be run for a trial, and is afterwards as it was.
#pragma once

#include <torch/nn/module.h>

#include <vector>

#include "gpipe/model/changing_buffers.h"
#include "gpipe/model/layer.h"
#include "gpipe/model/step_listener.h"

namespace gpipe::detail {

// Among the layers' modules.
inline std::vector<StepListener*> find_listeners(const std::vector<ChainLayer>& layers) {
  std::vector<StepListener*> listeners;
  for (const ChainLayer& layer : layers) {
    for (const auto& module : layer.layer.module->modules(/*include_self=*/true)) {
      if (auto* listener = dynamic_cast<StepListener*>(module.get())) listeners.push_back(listener);
    }
  }
  return listeners;
}

// Copies the buffers of the layers; the destructor writes them back and drops what step listeners have collected. What
// a trial does to gradients, to random generators and to members that are not buffers is its own affair.
class Sandbox {
 public:
  explicit Sandbox(const std::vector<ChainLayer>& layers)
      : buffers_(layers), copies_(buffers_.snapshot()), listeners_(find_listeners(layers)) {}
  ~Sandbox() {
    for (StepListener* listener : listeners_) listener->abandon_step();
    buffers_.put_back(copies_);
  }
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

 private:
  const ChangingBuffers buffers_;  // all of them
  const BufferCopies copies_;
  const std::vector<StepListener*> listeners_;
};

}  // namespace gpipe::detail
