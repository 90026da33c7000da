// Skip connections: a tensor that one layer puts aside and a later one takes up, past the layers between them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>

#include "gpipe/error.h"

namespace gpipe {

// Called in a layer's forward. `pop` returns what an earlier layer stashed under the name, for the same micro-batch;
// its gradient goes back to where it was stashed. A pipeline sends it straight from stage to stage. Every name is
// stashed once and popped once a forward, and the stashed tensor must not be changed in place afterwards.
//
// Outside a pipeline they work, too: there the tensors wait in a store of the calling thread.
//
// `pop` throws SkipError when nothing is stashed under the name, or when the tensor was changed since.
void stash(const std::string& name, const at::Tensor& tensor);
at::Tensor pop(const std::string& name);

// While it lives, the names this thread stashes and pops are apart from those of other namespaces: a block that uses
// skips can then occur twice in a model. Namespaces nest. LayerChain::isolate opens one around a layer.
//
// Confined to its thread.
class SkipNamespace {
 public:
  explicit SkipNamespace(const std::string& name);
  ~SkipNamespace();
  SkipNamespace(const SkipNamespace&) = delete;
  SkipNamespace& operator=(const SkipNamespace&) = delete;

 private:
  std::size_t outer_size_;
};

}  // namespace gpipe
