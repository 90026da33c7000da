#include "gpipe/model/changing_buffers.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/model/plain_values.h"

namespace gpipe::detail {
namespace {

std::int64_t bytes_if_plain(const Tensors& tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!is_plain(tensor)) return -1;
    bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  return bytes;
}

}  // namespace

ChangingBuffers::ChangingBuffers(const std::vector<ChainLayer>& layers) {
  for (const ChainLayer& layer : layers) {
    for (const at::Tensor& buffer : layer.layer.module->buffers()) {
      if (buffer.defined()) buffers_.push_back(buffer);
    }
  }
}

// See Note [Without operations].
BufferCopies ChangingBuffers::snapshot() const {
  BufferCopies copies;
  if (buffers_.empty()) return copies;
  const std::int64_t num_bytes = learnt_ ? bytes_if_plain(buffers_) : -1;
  if (num_bytes < 0) {
    for (const at::Tensor& buffer : buffers_) copies.tensors.push_back(buffer.detach().clone());
    return copies;
  }
  copies.bytes = at::empty({num_bytes}, at::kByte);
  auto* next = copies.bytes.data_ptr<std::uint8_t>();
  for (const at::Tensor& buffer : buffers_) {
    std::memcpy(next, buffer.data_ptr(), buffer.nbytes());
    next += buffer.nbytes();
  }
  return copies;
}

void ChangingBuffers::learn(BufferCopies& snapshot) {
  if (std::exchange(learnt_, true)) return;
  Tensors changing;
  Tensors copies;
  // By value: batch norm changes its statistics without libtorch counting it as a change.
  for (std::size_t index = 0; index < buffers_.size(); ++index) {
    if (buffers_[index].equal(snapshot.tensors[index])) continue;
    changing.push_back(buffers_[index]);
    copies.push_back(snapshot.tensors[index]);
  }
  buffers_ = std::move(changing);
  snapshot.tensors = std::move(copies);
}

// Through variable_data, so that autograd does not take it for a change of what graphs have saved.
void ChangingBuffers::put_back(const BufferCopies& snapshot) const {
  if (!snapshot.bytes.defined()) {
    for (std::size_t index = 0; index < buffers_.size(); ++index) {
      buffers_[index].variable_data().copy_(snapshot.tensors[index]);
    }
    return;
  }
  if (bytes_if_plain(buffers_) != snapshot.bytes.numel()) {
    throw Error("a buffer has another size or another place than before the forward, and cannot be put back");
  }
  const auto* next = snapshot.bytes.data_ptr<std::uint8_t>();
  for (const at::Tensor& buffer : buffers_) {
    std::memcpy(buffer.data_ptr(), next, buffer.nbytes());
    next += buffer.nbytes();
  }
}

ChangingBuffers::Rewind::Rewind(const ChangingBuffers& buffers, const BufferCopies& snapshot)
    : buffers_(buffers), present_(buffers.snapshot()) {
  buffers_.put_back(snapshot);
}

ChangingBuffers::Rewind::~Rewind() { buffers_.put_back(present_); }

}  // namespace gpipe::detail
