#include "gpipe/model/changing_buffers.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <utility>

namespace gpipe::detail {

ChangingBuffers::ChangingBuffers(const std::vector<ChainLayer>& layers) {
  for (const ChainLayer& layer : layers) {
    for (const at::Tensor& buffer : layer.layer.module->buffers()) {
      if (buffer.defined()) buffers_.push_back(buffer);
    }
  }
}

Tensors ChangingBuffers::snapshot() const {
  Tensors copies;
  for (const at::Tensor& buffer : buffers_) copies.push_back(buffer.detach().clone());
  return copies;
}

void ChangingBuffers::learn(Tensors& snapshot) {
  if (std::exchange(learnt_, true)) return;
  Tensors changing;
  Tensors copies;
  // By value: batch norm changes its statistics without libtorch counting it as a change.
  for (std::size_t index = 0; index < buffers_.size(); ++index) {
    if (buffers_[index].equal(snapshot[index])) continue;
    changing.push_back(buffers_[index]);
    copies.push_back(snapshot[index]);
  }
  buffers_ = std::move(changing);
  snapshot = std::move(copies);
}

// Through variable_data, so that autograd does not take it for a change of what graphs have saved.
void ChangingBuffers::put_back(const Tensors& values) const {
  for (std::size_t index = 0; index < buffers_.size(); ++index) buffers_[index].variable_data().copy_(values[index]);
}

ChangingBuffers::Rewind::Rewind(const ChangingBuffers& buffers, const Tensors& snapshot)
    : buffers_(buffers), present_(buffers.snapshot()) {
  buffers_.put_back(snapshot);
}

ChangingBuffers::Rewind::~Rewind() { buffers_.put_back(present_); }

}  // namespace gpipe::detail
