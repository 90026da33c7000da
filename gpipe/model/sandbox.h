// Sandbox: a model can be run for a trial, and is afterwards as it was.
#pragma once

#include <vector>

#include "gpipe/model/changing_buffers.h"
#include "gpipe/model/layer.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/model/step_listener.h"

namespace gpipe {

// Copies the buffers of the layers; the destructor writes them back and drops what step listeners have collected. What
// a trial does to gradients, to random generators and to members that are not buffers is its own affair.
class Sandbox {
 public:
  explicit Sandbox(const std::vector<ChainLayer>& layers);
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

 private:
  const ChangingBuffers buffers_;  // all of them
  Tensors copies_;
  std::vector<StepListener*> listeners_;
};

// Among the layers' modules.
std::vector<StepListener*> find_listeners(const std::vector<ChainLayer>& layers);

}  // namespace gpipe
